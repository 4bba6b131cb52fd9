#include "rendezvous/membership/gathering.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kReturning = 1s;  // nodes that one broken network has cut off come back so close to each other

constexpr std::size_t kNamesShown = 8;

}  // namespace

void Gathering::begin(TimePoint ends) {
  ends_ = ends;
  last_call_ends_.reset();
  is_wait_said_ = false;
  returning_until_.reset();
}

void Gathering::await_returning(TimePoint now) {
  if (!returning_until_) returning_until_ = now + kReturning;
}

Gathering::Next Gathering::next(const Facts& facts, TimePoint now) {
  const auto& options = facts.options;
  const int count = facts.count;
  Next out;
  if (!facts.are_all_away || count >= options.nodes_max) {
    away_until_.reset();
  } else if (!away_until_ && count >= options.nodes_min) {
    away_until_ = now + kAwayMax;
    out.print = waiting_for_all_text(std::min<std::chrono::milliseconds>(kAwayMax, options.join_timeout));
  }
  const auto deadline = [&] { return std::min(last_call_ends_.value_or(ends_), ends_); };
  const bool are_enough = count >= options.nodes_min && (!facts.is_first || now >= deadline());
  if (count >= options.nodes_max || are_enough) {
    const bool waits_for_returning = returning_until_ && facts.are_nodes_missed;
    auto not_before = facts.is_first        ? no_first_round_before_
                      : waits_for_returning ? std::max(pause_ends_, *returning_until_)
                                            : pause_ends_;
    if (away_until_) not_before = std::max(not_before, *away_until_);
    const bool is_too_early = now < not_before;
    if (now >= ends_ || (!is_too_early && !facts.nodes.is_member_absent())) {
      away_until_.reset();
      return {.is_complete = true};
    }
    out.deadline = is_too_early ? std::min(not_before, ends_) : ends_;
    return out;
  }
  if (count < options.nodes_min) {
    last_call_ends_.reset();
    if (count > 0 && !std::exchange(is_wait_said_, true))
      out.print = waiting_for_enough_text(options.nodes_min - count, options.join_timeout, names_of(facts.nodes));
  } else if (!last_call_ends_) {
    last_call_ends_ = std::max(now + options.last_call_timeout, listens_until_);
    out.print = last_call_text(options.nodes_max - count, options.last_call_timeout, names_of(facts.nodes));
  }
  out.deadline = deadline();
  return out;
}

std::string names_of(const Nodes& nodes) {
  std::string out;
  std::size_t shown = 0;
  for (const auto& [id, node] : nodes) {
    if (shown == kNamesShown) return out + " and " + std::to_string(nodes.size() - shown) + " more";
    out += (shown++ == 0 ? "" : ", ") + node.hello.host_name;
    if (node.hello.node_rank) out += " (node rank " + std::to_string(*node.hello.node_rank) + ")";
  }
  return out;
}

}  // namespace ddp::rendezvous
