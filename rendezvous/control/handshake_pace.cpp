#include "rendezvous/control/handshake_pace.hpp"

#include <algorithm>

namespace ddp::rendezvous {
std::optional<HandshakePace::TimePoint> HandshakePace::begin(const base::Address& source, TimePoint now) {
  const auto owed = owed_until_.find(base::network_of(source));
  if (owed == owed_until_.end() || sessions_.count(source) != 0) return now;
  const auto start = owed->second - options_.free;
  if (start <= now) return now;
  if (start > now + options_.delay_max) return {};
  charge(source, now);
  return start;
}

void HandshakePace::failed(const base::Address& source, TimePoint now) {
  if (sessions_.count(source) == 0) charge(source, now);
}

void HandshakePace::left(const base::Address& source) {
  const auto found = sessions_.find(source);
  if (found != sessions_.end() && --found->second == 0) sessions_.erase(found);
}

// Many that began together may fail together: what they owe has a bound, so that the source is heard again soon.
void HandshakePace::charge(const base::Address& source, TimePoint now) {
  const auto network = base::network_of(source);
  if (owed_until_.size() >= options_.sources_max && owed_until_.count(network) == 0)
    std::erase_if(owed_until_, [now](const auto& entry) { return entry.second <= now; });
  if (owed_until_.size() >= options_.sources_max && owed_until_.count(network) == 0) return;
  auto& until = owed_until_[network];
  until = std::min(std::max(until, now) + options_.price, now + options_.free + options_.delay_max + options_.price);
}

}  // namespace ddp::rendezvous
