// The rounds of a job before its newest ones, for the report of the run: in a file, so that ddprun's memory does not
// grow with every round. Membership tells of the newest rounds at the end (RunReport).
//
// Drop rule: what the disk does not take, and what comes after kRoundsMax rounds, is missing in the report.
//
// Threads: the event loop's only. A thread of its own writes the file, because the disk may stop answering.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/file_thread.hpp"

namespace ddp::launcher {

class RoundList {
 public:
  static constexpr std::size_t kRoundsMax = 10'000;

  RoundList(boost::asio::io_context& io, std::string path) : io_(io), path_(std::move(path)) {}

  // One line. A round that was added before is passed over.
  void add(std::uint32_t round, std::string line);

  // All of them, each with a newline. Waits for the disk, 2 s at most.
  std::string take();

 private:
  boost::asio::io_context& io_;
  const std::string path_;
  std::optional<base::FileThread> thread_;  // from the first round on
  std::optional<std::uint32_t> last_;
  std::size_t count_ = 0;
};

}  // namespace ddp::launcher
