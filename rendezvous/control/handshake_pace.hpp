// Slows down sources whose TLS handshakes fail, so that guesses of the token cost the endpoint little.
//
// A failure costs its source some time. Once a source owes more than it may, its next handshakes begin one after
// another, and those that would have to wait for too long do not begin at all. A source that has a live session is
// never delayed, because many nodes may share an address. What IPv6 addresses owe is counted for each /64, because one
// host may use all addresses of that.
//
// Pure: the time goes in. Threads: one caller at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>

#include "base/address.hpp"

namespace ddp::rendezvous {

class HandshakePace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    Milliseconds price{5};   // of a failure, and of a handshake that had to wait: about 100 a second remain
    Milliseconds free{200};  // what a source may owe without a delay
    Milliseconds delay_max{1'000};
    std::size_t sources_max = 1'024;  // that are remembered; of those beyond it the failures are forgotten
  };

  explicit HandshakePace(Options options) : options_(options) {}

  // When the handshake of a new connection may begin; empty: too many of its source wait already.
  [[nodiscard]] std::optional<TimePoint> begin(const base::Address& source, TimePoint now);

  void failed(const base::Address& source, TimePoint now);

  // A session of the source has begun, has ended.
  void joined(const base::Address& source) { ++sessions_[source]; }
  void left(const base::Address& source);

 private:
  void charge(const base::Address& source, TimePoint now);

  Options options_;
  std::map<base::Address, TimePoint> owed_until_;  // by the sources' networks, where there were failures
  std::map<base::Address, std::size_t> sessions_;
};

}  // namespace ddp::rendezvous
