#include "rendezvous/membership/round_end.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSameMoment = 50ms;   // clocks of nodes are no more exact
constexpr auto kLateReport = 250ms;  // of a death, from a loaded machine
constexpr auto kSlowEnd = 50ms;      // of a process: one that began to end because of another one is mostly quicker
constexpr auto kUnnoticed = 10s;     // how long after its consequences the loss of a node may become known

bool was_killed(const FailureReport& failure) { return failure.ending.kind == Ending::Kind::killed; }

// A library may abort because its peer has failed.
bool may_be_late(const FailureReport& failure) {
  const int signal_number = failure.ending.value;
  return was_killed(failure) && !failure.is_killed_by_ddprun() &&
         (signal_number == SIGKILL || signal_number == SIGSEGV || signal_number == SIGBUS || signal_number == SIGTERM);
}

// At which its end had begun at the latest. Reaping may come much later: a process with much memory ends slowly.
std::chrono::milliseconds time_of(const FailureReport& failure) { return failure.job_time - failure.was_ending_for; }

// What a failure says of itself, the first cause first. `killed`: before anybody was told to stop. Who is killed in the
// grace, while it saves, is not what the others failed for.
enum class CauseClass { own_error, killed, plain, left };

CauseClass cause_class_of(const FailureReport& failure) {
  if (failure.is_own_error) return CauseClass::own_error;
  if (failure.was_ending && was_killed(failure) && !failure.is_killed_by_ddprun() && failure.ending.value != SIGABRT &&
      !is_schedulers_signal(failure.ending))
    return CauseClass::killed;
  return failure.ending.kind == Ending::Kind::left ? CauseClass::left : CauseClass::plain;
}

// Those that no other failure explains; where each is explained by another, those that somebody accuses.
std::vector<std::size_t> unexplained_among(const std::vector<FailureReport>& failures) {
  std::set<int> failed, accused;
  for (const auto& failure : failures) failed.insert(failure.rank);
  const bool may_explain_unnamed =
      std::any_of(failures.begin(), failures.end(), std::mem_fn(&FailureReport::accuses_nobody));
  std::vector<std::size_t> out, in_a_circle;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    bool is_explained = failures[i].missed_a_peer && may_explain_unnamed;
    for (const int rank : failures[i].accused) {
      if (rank == failures[i].rank || failed.count(rank) == 0) continue;
      is_explained = true;
      accused.insert(rank);
    }
    if (!is_explained) out.push_back(i);
  }
  if (!out.empty()) return out;
  for (std::size_t i = 0; i < failures.size(); ++i)
    if (accused.count(failures[i].rank) != 0) in_a_circle.push_back(i);
  return in_a_circle;
}

// By how much a may be the later one although its time is the earlier one, or the other way round. One clock tells the
// times of one node.
std::chrono::milliseconds doubt_between(const FailureReport& a, const FailureReport& b) {
  const bool is_one_clock = a.host == b.host && a.seen_address == b.seen_address;
  return is_one_clock ? 0ms : a.job_time_error + b.job_time_error;
}

// Who had the first failure, or may have had it as far as the clocks tell. Without a comparison of each two: a large
// job may have ten thousand failures, and the endpoint's loop waits.
std::vector<std::size_t> first_in_time(const std::vector<FailureReport>& failures,
                                       const std::vector<std::size_t>& those) {
  using Clock = std::pair<std::string, std::string>;
  std::map<Clock, std::chrono::milliseconds> first_of_clock;
  auto latest = std::chrono::milliseconds::max();  // at which the first of all happened
  for (const auto i : those) {
    const auto& failure = failures[i];
    const auto [first, is_new] =
        first_of_clock.try_emplace(Clock(failure.host, failure.seen_address), time_of(failure));
    if (!is_new) first->second = std::min(first->second, time_of(failure));
    latest = std::min(latest, time_of(failure) + failure.job_time_error);
  }
  std::vector<std::size_t> out;
  for (const auto i : those) {
    const auto& failure = failures[i];
    const bool is_first_of_clock = time_of(failure) == first_of_clock.at(Clock(failure.host, failure.seen_address));
    if (is_first_of_clock && time_of(failure) - failure.job_time_error <= latest) out.push_back(i);
  }
  return out;
}

// By rank.
std::map<int, int> count_accusers(const std::vector<FailureReport>& failures) {
  std::map<int, int> out;
  for (const auto& failure : failures)
    for (const int rank : std::set<int>(failure.accused.begin(), failure.accused.end()))
      if (rank != failure.rank) ++out[rank];
  return out;
}

template <class Predicate>
void forgive(CurrentRound& round, Predicate is_no_failure) {
  round.stopped += static_cast<int>(std::erase_if(round.failures, is_no_failure));
}

}  // namespace

std::size_t first_cause(const std::vector<FailureReport>& failures) {
  auto those = unexplained_among(failures);
  CauseClass best = CauseClass::left;
  for (const auto i : those) best = std::min(best, cause_class_of(failures[i]));
  std::erase_if(those, [&](std::size_t i) { return cause_class_of(failures[i]) != best; });
  const auto is_earlier = [&](std::size_t a, std::size_t b) { return time_of(failures[a]) < time_of(failures[b]); };
  // Facts decide where the clocks do not.
  const auto accusers = count_accusers(failures);
  const auto is_likelier = [&](std::size_t a, std::size_t b) {
    const auto rank_of = [&](std::size_t i) {
      const auto found = accusers.find(failures[i].rank);
      return std::tuple(found == accusers.end() ? 0 : -found->second, !may_be_late(failures[i]),
                        failures[i].was_ending_for < kSlowEnd, time_of(failures[i]));
    };
    return rank_of(a) < rank_of(b);
  };
  const auto candidates = first_in_time(failures, those);
  const auto first = *std::min_element(candidates.begin(), candidates.end(), is_likelier);
  if (best != CauseClass::plain || may_be_late(failures[first])) return first;
  std::erase_if(those, [&](std::size_t i) {
    return !may_be_late(failures[i]) ||
           time_of(failures[i]) - time_of(failures[first]) > kLateReport + doubt_between(failures[i], failures[first]);
  });
  return those.empty() ? first : *std::min_element(those.begin(), those.end(), is_earlier);
}

bool is_certain(const std::vector<FailureReport>& failures, std::size_t cause) {
  // Its end needs no other one: it failed by itself, or somebody ended it.
  const auto speaks = [](const FailureReport& failure) {
    const int signal_number = was_killed(failure) ? failure.ending.value : 0;
    return speaks_for_itself(failure) || failure.is_killed_by_ddprun() || is_hopeless(failure) ||
           signal_number == SIGKILL || signal_number == SIGTERM;
  };
  const auto& first = failures[cause];
  if (speaks(first)) return true;
  if (!first.accuses_nobody()) return false;  // of those that it failed for none has failed, or for this one
  if (count_accusers(failures).count(first.rank) != 0) return true;
  for (const auto i : unexplained_among(failures)) {
    const auto& other = failures[i];
    const bool is_same = other.ending == first.ending && other.says_why() && other.message == first.message;
    const auto apart = std::chrono::abs(time_of(other) - time_of(first));
    const bool may_be_first = i != cause && !speaks(other) && other.accused.empty();
    // One that was ending already when the first one was seen may have ended before it, whenever it is reported.
    const bool are_close = other.was_ending || apart <= kLateReport + doubt_between(other, first);
    if (may_be_first && !is_same && are_close) return false;
  }
  return true;
}

std::optional<std::size_t> seen_before(const std::vector<FailureReport>& failures, std::size_t cause) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    const auto earliest = first ? failures[*first].job_time : std::chrono::milliseconds::max();
    const auto doubt = doubt_between(failures[i], failures[cause]);
    if (failures[i].job_time < earliest && failures[i].job_time + doubt < failures[cause].job_time) first = i;
  }
  return first;
}

const FailureReport* cause_of(const CurrentRound& round) {
  if (round.failures.empty()) return nullptr;
  const auto& first = round.failures[first_cause(round.failures)];
  const bool is_for_lost_node = round.loss && !first.accuses_nobody();
  return is_for_lost_node ? nullptr : &first;
}

bool are_all_for_others(const std::vector<FailureReport>& failures) {
  return !failures.empty() &&
         std::none_of(failures.begin(), failures.end(), std::mem_fn(&FailureReport::accuses_nobody));
}

bool speaks_for_itself(const FailureReport& failure) { return cause_class_of(failure) <= CauseClass::killed; }

bool is_hopeless(const FailureReport& failure) { return failure.ending.kind == Ending::Kind::not_started; }

std::string place_of(const std::string& host, const std::string& seen_address) { return host + '@' + seen_address; }

void forgive_what_follows_from_signals(CurrentRound& round, const JobStop& stop) {
  forgive(round, [&](const FailureReport& failure) {
    const auto& ending = failure.ending;
    const bool was_killed = ending.kind == Ending::Kind::killed;
    if (was_killed && ending.value == stop.signal_number) return true;
    const auto latest = failure.job_time + failure.job_time_error;  // as far as its node's clock tells
    if (was_killed && stop.round_stopped_at && latest >= *stop.round_stopped_at) return true;
    const bool is_by_itself = ending.kind == Ending::Kind::exited || ending.kind == Ending::Kind::left;
    return stop.workers_signalled_at && latest >= *stop.workers_signalled_at - kLateReport &&
           (is_by_itself || is_schedulers_signal(ending));
  });
}

void forgive_what_follows_from_change(CurrentRound& round) {
  if (!round.change) return;
  forgive(round, [&](const FailureReport& failure) {
    const bool was_killed = failure.ending.kind == Ending::Kind::killed && failure.ending.value == SIGKILL;
    return !was_killed && failure.job_time + failure.job_time_error >= round.change->at - kSameMoment;
  });
}

bool is_change_of_members(const CurrentRound& round, bool has_begun, bool are_enough_left) {
  const auto* first = cause_of(round);
  // Where nodes leave, the others were to stop at a step too.
  const bool has_stopped_for_change = round.change && (round.stopped_at_step > 0 || round.change->is_decided);
  const bool is_done = has_begun && round.stopped == 0 && round.failures.empty() && !has_stopped_for_change;
  if (round.change && !round.loss) return first == nullptr && !is_done;
  if (round.loss && round.loss->link != Loss::Link::none) return round.loss->link == Loss::Link::leaves_one_out;
  return round.loss && are_enough_left && !is_done &&
         (first == nullptr || first->job_time >= round.loss->at - kUnnoticed);
}

std::string why_ended(const CurrentRound& round, bool is_change_of_members) {
  const auto* first = cause_of(round);
  if (is_change_of_members || first == nullptr) return round.loss ? round.loss->what : round.change->who;
  const auto index = static_cast<std::size_t>(first - round.failures.data());
  return failure_reason_text(*first, is_certain(round.failures, index));
}

std::optional<std::string> place_to_blame(const CurrentRound& round, bool is_change_of_members) {
  const auto* first = cause_of(round);
  if (first != nullptr && !is_change_of_members) return place_of(first->host, first->seen_address);
  return round.loss ? round.loss->place : std::nullopt;
}

}  // namespace ddp::rendezvous
