// Passes the lines of a process's warnings on as they fall due (warning.hpp).
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "rendezvous/io/warning.hpp"

namespace ddp::io {

class WarningLog {
 public:
  WarningLog(boost::asio::io_context& io, std::function<void(const std::string& line)> say)
      : timer_(io), say_(std::move(say)) {}
  WarningLog(const WarningLog&) = delete;

  void operator()(const Warning& warning) {
    if (const auto line = tally_.take(warning, Clock::now())) return say_(*line);
    wait_for_deadline();
  }

  std::map<std::string, std::uint64_t> counts() const { return tally_.counts(); }

 private:
  using Clock = std::chrono::steady_clock;

  void wait_for_deadline() {
    const auto deadline = tally_.next_deadline();
    if (!deadline || std::exchange(is_waiting_, true)) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      is_waiting_ = false;
      for (const auto& line : tally_.tick(Clock::now())) say_(line);
      wait_for_deadline();
    });
  }

  boost::asio::steady_timer timer_;
  std::function<void(const std::string&)> say_;
  WarningTally tally_;
  bool is_waiting_ = false;
};

}  // namespace ddp::io
