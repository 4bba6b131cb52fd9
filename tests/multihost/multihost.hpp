// The fixture of tests that need several hosts: skips, with the reason, where the machine can't have them.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/multihost/hosts.hpp"

namespace ddp::test {

class Multihost : public ::testing::Test {
 protected:
  // The test's hosts. Returns nothing where there can be none: the test is skipped, and returns at once.
  Hosts* make_hosts(Hosts::Options options) {
    try {
      return &hosts_.emplace(options);
    } catch (const NoHosts& reason) {
      skip(reason.what());
      return nullptr;
    }
  }

  // As Hosts::disturb(). False where this machine can't: the test is skipped, and returns at once.
  bool disturb(int host, const Disturbance& disturbance) {
    try {
      hosts_->disturb(host, disturbance);
      return true;
    } catch (const NoHosts& reason) {
      skip(reason.what());
      return false;
    }
  }

 private:
  static void skip(const std::string& reason) { GTEST_SKIP() << reason; }

  std::optional<Hosts> hosts_;
};

}  // namespace ddp::test
