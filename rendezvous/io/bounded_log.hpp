// Passes lines that others can cause on, as far as a limit lets them through (line_limit.hpp).
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "rendezvous/io/line_limit.hpp"

namespace ddp::io {

class BoundedLog {
 public:
  BoundedLog(boost::asio::io_context& io, std::function<void(const std::string& line)> say,
             LineLimit limit = LineLimit())
      : timer_(io), say_(std::move(say)), limit_(std::move(limit)) {}
  BoundedLog(const BoundedLog&) = delete;

  void operator()(const std::string& line) {
    if (const auto text = limit_.take(line, Clock::now())) return say_(*text);
    wait_for_deadline();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void wait_for_deadline() {
    const auto deadline = limit_.next_deadline(Clock::now());
    if (!deadline || std::exchange(is_waiting_, true)) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      is_waiting_ = false;
      if (const auto line = limit_.tick(Clock::now())) say_(*line);
      wait_for_deadline();
    });
  }

  boost::asio::steady_timer timer_;
  std::function<void(const std::string&)> say_;
  LineLimit limit_;
  bool is_waiting_ = false;
};

}  // namespace ddp::io
