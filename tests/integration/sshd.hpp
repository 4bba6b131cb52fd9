// A real sshd on this machine, for one test, and a configuration of ssh that knows it under several names.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {

class Sshd {
 public:
  struct Options {
    std::string login{};  // lines of a shell script that runs at each login, before the command
    std::string address{"127.0.0.1"};
    std::string port{};       // empty: a free one
    std::string arguments{};  // more lines of sshd's configuration
  };

  // Why there can be none; empty: there can. For GTEST_SKIP().
  static std::string why_not();

  // Listens when this returns; with `runs` false, only its files are made. Throws std::runtime_error.
  explicit Sshd(const Options& options, bool runs = true);
  Sshd() : Sshd(Options{}) {}

  // "-F <file>": hosts a, b, c and d are this sshd. `others`: more lines, which go before.
  std::string ssh_arguments(const std::string& others = "") const;
  std::string command() const;  // of sshd, for a shell
  const std::string& folder() const { return folder_; }
  const std::string& port() const { return port_; }
  const std::string& said() const { return server_->err(); }

 private:
  ScratchDirectory scratch_;
  const std::string folder_, address_, port_;
  std::optional<Job> server_;
};

}  // namespace ddp::test
