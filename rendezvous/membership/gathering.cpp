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

// Until when; now, if for nobody. The time runs from the silence of the last of them, whoever else is here. One that
// has come is still awaited while its workers end, because it takes no part before. With as many newcomers as the job
// takes the nodes have been replaced.
TimePoint Gathering::wait_for_nodes_away(const Facts& facts, TimePoint now) {
  if (facts.are_all_away) {
    if (!away_until_) is_away_said_ = false;
    away_until_ = away_until_.value_or(now + kAwayMax);
  } else if (!facts.nodes.has_older_rounds()) {
    away_until_.reset();
  }
  if (!away_until_ || facts.count >= facts.options.nodes_max) return now;
  return std::min(*away_until_, ends_);
}

Gathering::Next Gathering::next(const Facts& facts, TimePoint now) {
  const auto& options = facts.options;
  const int count = facts.count;
  Next out;
  const auto awaited_until = wait_for_nodes_away(facts, now);
  if (now < awaited_until && count >= options.nodes_min && !std::exchange(is_away_said_, true))
    out.print = waiting_for_all_text(std::chrono::ceil<std::chrono::milliseconds>(awaited_until - now));
  const auto deadline = [&] { return std::min(last_call_ends_.value_or(ends_), ends_); };
  const bool are_enough = count >= options.nodes_min && (!facts.is_first || now >= deadline());
  if (count >= options.nodes_max || are_enough) {
    const bool waits_for_returning = returning_until_ && facts.are_nodes_missed;
    const auto pause_over = facts.is_first        ? no_first_round_before_
                            : waits_for_returning ? std::max(pause_ends_, *returning_until_)
                                                  : pause_ends_;
    const auto not_before = std::max(pause_over, awaited_until);
    const bool is_too_early = now < not_before;
    if (now >= ends_ || (!is_too_early && !facts.nodes.is_member_absent())) return {.is_complete = true};
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
