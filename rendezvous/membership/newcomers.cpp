#include "rendezvous/membership/newcomers.hpp"

#include <algorithm>

#include "rendezvous/membership/membership_words.hpp"
#include "rendezvous/membership/nodes.hpp"
#include "rendezvous/membership/options.hpp"
#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

constexpr int kNewcomersShown = 8;

}  // namespace

Newcomers::Next Newcomers::next(const Facts& facts, TimePoint now) {
  int newcomers = 0, members = 0;
  std::string names;
  bool is_ending = facts.is_round_ending;
  std::optional<TimePoint> next_fit;  // a host that is left out may take part again
  if (facts.nodes.has_spares())       // hardly ever, also while thousands of members leave
    for (const auto& [id, node] : facts.nodes) {
      is_ending = is_ending || (node.is_member() && !node.runs());
      if (node.is_member()) {
        ++members;
      } else if (const auto until = facts.cool_down.out_until(place_of(node.hello.host_name, node.seen_address), now)) {
        next_fit = next_fit ? std::min(*next_fit, *until) : *until;
      } else if (facts.nodes.is_available(id, node) && ++newcomers <= kNewcomersShown) {
        names += (names.empty() ? "" : ", ") + node.hello.host_name;
      }
    }
  const int nodes_max = facts.options.nodes_max;
  const bool has_room = members < nodes_max;
  if (newcomers == 0 || !has_room || is_ending) {
    last_call_ends_.reset();
    return {.deadline = has_room && !is_ending ? next_fit : std::nullopt};
  }
  const auto those = newcomers_text(newcomers, names);
  const auto last_call = facts.options.last_call_timeout;
  const bool is_new = !last_call_ends_;
  if (is_new) last_call_ends_ = now + last_call;
  if (members + newcomers >= nodes_max) last_call_ends_ = std::min(*last_call_ends_, round_began_ + last_call);
  if (now >= *last_call_ends_) return {.taken_in = those};
  Next out{.deadline = last_call_ends_};
  if (is_new)
    out.print =
        next_round_begins_text(those, std::chrono::duration_cast<std::chrono::milliseconds>(*last_call_ends_ - now));
  return out;
}

}  // namespace ddp::rendezvous
