// The fixture of tests that need a Slurm: skips, with the reason, where the machine can't have one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "tests/slurm/cluster.hpp"

namespace ddp::test {

class OnCluster : public ::testing::Test {
 protected:
  static inline const Cluster::End kCompleted{"COMPLETED", "0:0"};

  // The test's cluster. Returns nothing where there can be none: the test is skipped, and returns at once.
  Cluster* make_cluster(Cluster::Options options) {
    try {
      return &cluster_.emplace(options);
    } catch (const NoCluster& reason) {
      skip(reason.what());
      return nullptr;
    }
  }

  // Whether a checkpoint is in this folder of the cluster's.
  static bool has_checkpoint(const Cluster& cluster, const std::string& folder) {
    std::error_code ignored;
    const std::filesystem::directory_iterator files(cluster.folder() / folder, ignored);
    return std::any_of(begin(files), end(files),
                       [](const auto& entry) { return entry.path().extension() == ".safetensors"; });
  }

  static void skip(const std::string& reason) { GTEST_SKIP() << reason; }

 private:
  std::optional<Cluster> cluster_;
};

}  // namespace ddp::test
