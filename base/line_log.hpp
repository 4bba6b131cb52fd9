// Passes lines on as a policy lets them through, now or when they fall due: a process's warnings (warning.hpp), and
// lines that others can cause (line_limit.hpp).
//
// Policy: take(entry, now) -> the line to write now, if there is one; tick(now) -> the lines that are due;
// next_deadline() -> when tick() next has one.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "base/line_limit.hpp"
#include "base/warning.hpp"

namespace ddp::base {

template <class Policy, class Line>
class LineLog {
 public:
  LineLog(boost::asio::io_context& io, std::function<void(const Line& line)> say, Policy policy = Policy())
      : timer_(io), say_(std::move(say)), policy_(std::move(policy)) {}
  LineLog(const LineLog&) = delete;

  void operator()(const auto& entry) {
    if (const auto line = policy_.take(entry, Clock::now())) return say_(*line);
    wait_for_deadline();
  }

  auto counts() const { return policy_.counts(); }  // of a WarningTally

 private:
  using Clock = std::chrono::steady_clock;

  void wait_for_deadline() {
    const auto deadline = policy_.next_deadline();
    if (!deadline || std::exchange(is_waiting_, true)) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      is_waiting_ = false;
      for (const auto& line : policy_.tick(Clock::now())) say_(Line{line});
      wait_for_deadline();
    });
  }

  boost::asio::steady_timer timer_;
  std::function<void(const Line&)> say_;
  Policy policy_;
  bool is_waiting_ = false;
};

using WarningLog = LineLog<WarningTally, WarningLine>;
using BoundedLog = LineLog<LineLimit, std::string>;

}  // namespace ddp::base
