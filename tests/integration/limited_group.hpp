// A limit of memory for the ranks of a test.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tests/text.hpp"

namespace ddp::test {

// A cgroup of this test alone, of whichever version has a controller of memory here, with a limit; none where none can
// be made.
class LimitedGroup {
 public:
  explicit LimitedGroup(std::size_t bytes) {
    const std::filesystem::path root = "/sys/fs/cgroup";
    if (contents_of(root / "cgroup.controllers").find("memory") != std::string::npos) {
      std::ofstream(root / "cgroup.subtree_control") << "+memory";
      make(root, "memory.max", bytes);
    } else if (std::filesystem::exists(root / "memory" / "memory.limit_in_bytes")) {
      make(root / "memory", "memory.limit_in_bytes", bytes);
    }
  }
  ~LimitedGroup() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove(path_, error);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  bool exists() const { return !path_.empty(); }
  void enter() const { std::ofstream(path_ / "cgroup.procs") << ::getpid() << std::flush; }

 private:
  void make(const std::filesystem::path& parent, const char* limit, std::size_t bytes) {
    const std::filesystem::path group = parent / ("ddp_test_" + std::to_string(::getpid()));
    std::error_code error;
    if (!std::filesystem::create_directory(group, error)) return;
    path_ = group;
    if (std::ofstream file(group / limit); file << bytes << std::flush) return;
    std::filesystem::remove(group, error);
    path_.clear();
  }

  std::filesystem::path path_;
};

}  // namespace ddp::test
