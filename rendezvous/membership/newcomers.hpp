// Nodes that come while a round runs with room for more, and when the round stops to take them in.
//
// They are taken in together, once a last call for other nodes is over. If the maximum is reached, no other node is
// waited for. A round lasts as long as a last call even then, so that a node that comes and goes lets the others work.
//
// Pure.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/limits.hpp"

namespace ddp::rendezvous {

struct MembershipOptions;
class Nodes;

class Newcomers {
 public:
  struct Facts {
    const MembershipOptions& options;
    const Nodes& nodes;
    const CoolDown& cool_down;     // hosts that are left out are no newcomers
    bool is_round_ending = false;  // by itself, also where that is only likely: a node has left or is awaited
  };
  struct Next {
    std::optional<TimePoint> deadline{};  // when to ask again; empty: once nodes come or go
    std::optional<std::string> print{};
    std::optional<std::string> taken_in{};  // the round stops now, for these nodes: "1 more node has come: gpu3"
  };

  void round_begins(TimePoint now) {
    *this = {};
    round_began_ = now;
  }
  Next next(const Facts& facts, TimePoint now);

 private:
  TimePoint round_began_{};
  std::optional<TimePoint> last_call_ends_;
};

}  // namespace ddp::rendezvous
