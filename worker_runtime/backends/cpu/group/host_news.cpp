#include "worker_runtime/backends/cpu/group/host_news.hpp"

#include <chrono>
#include <utility>

namespace ddp::cpu_backend {

using core::RankState;

namespace {

// For other leaders, which have asked or ask a little later, to tell whom they miss.
constexpr std::chrono::seconds kOthersMax = 2 * kAnswerMax;
static_assert(kAnswerMax + kOthersMax < kVerdictMax);

}  // namespace

void HostNews::begin(std::vector<core::LinkSockets> sockets, std::function<void()> heard) {
  links_.emplace(
      members_.layout, members_.own_host, std::move(sockets),
      [this, heard = std::move(heard)](const RankNews& news) {
        const RankState state{news.rank, news.pid, news.presence, news.calls, core::decode(news.last_call)};
        arrivals_.presence().note(news.rank, state, news.trouble);
        heard();
      },
      [this](std::uint64_t call) { return missing_here(call); });
}

void HostNews::end() { links_.reset(); }

void HostNews::tell(const Outcome& outcome) {
  if (!links_) return;
  const Trouble trouble = outcome.kind == Outcome::Kind::timed_out ? Trouble::missing : Trouble::lost;
  for (const int rank : outcome.ranks) links_->tell(states_.news_of(rank, trouble));
}

// The rank for which it gave up is told first: this rank may notice the end of that one later.
void HostNews::tell_end_of(std::size_t index) {
  if (!links_) return;
  const std::vector<int>& here = members_.here();
  const std::size_t cause = arrivals_.presence().cause_of(index);
  if (cause != index) links_->tell(states_.news_of(here[cause], Trouble::lost));
  links_->tell(states_.news_of(here[index], Trouble::lost));
}

void HostNews::say_farewell(Presence how) {
  if (!links_) return;
  RankNews farewell = states_.news_of(members_.who.rank, Trouble::lost);
  farewell.presence = how;
  links_->say_farewell(farewell);
  links_->wake();
}

void HostNews::ask() {
  for (const int host : links_->ask(arrivals_.posts().own_call())) {
    for (const int rank : members_.layout.ranks_of(host)) {
      RankState state = states_.state_of(rank);
      if (state.answer != core::Answer::told) {
        state.calls = kCallsUnknown;
        state.presence = Presence::unreachable;
      }
      arrivals_.presence().note(rank, state, Trouble::missing);
    }
  }
}

// An awaited host may wait for another one in turn, so all are asked. If all have answered and no rank is missing, two
// other hosts may not reach each other, and one of them is about to find that.
Outcome HostNews::find_missing(const std::vector<int>& awaited) {
  ask();
  const int leader = members_.layout.leader_of(awaited.front());
  const auto is_known = [&] {
    return arrivals_.failure().has_value() || !arrivals_.presence().noted_missing().empty();
  };
  if (!is_known())
    arrivals_.presence().wait_until_noted(leader, std::chrono::steady_clock::now() + kOthersMax, is_known);
  if (auto failure = arrivals_.failure()) return *failure;
  auto missing = arrivals_.presence().noted_missing();
  if (missing.empty()) return arrivals_.failure_without(leader);
  return {Outcome::Kind::timed_out, std::move(missing)};
}

// The leader whose time was up first may have asked nobody, and has told of its own host only.
Outcome HostNews::with_all_missing(const Outcome& outcome) {
  if (outcome.kind != Outcome::Kind::timed_out) return outcome;
  ask();
  auto missing = missing_elsewhere();
  if (missing.empty()) return outcome;
  return {Outcome::Kind::timed_out, std::move(missing)};
}

// A leader that is about to wait for other hosts is said to be missing, though it has come.
std::vector<int> HostNews::missing_elsewhere() const {
  std::vector<int> missing = arrivals_.presence().noted_missing();
  std::erase_if(missing, [&](int rank) {
    const RankState state = states_.state_of(rank);
    return state.answer == core::Answer::told && state.calls >= arrivals_.posts().own_call();
  });
  return missing;
}

Outcome HostNews::failure_without(int host) {
  links_->hear_out(host);
  return arrivals_.failure_without(members_.layout.leader_of(host));
}

// For another leader: the ranks of this host that have not come to the call; else this rank, if it has not done its
// part. Its part is done while it waits for other hosts itself, even in an earlier call: others may have finished that
// one.
std::vector<RankNews> HostNews::missing_here(std::uint64_t call) const {
  const std::uint64_t exchanged = exchanged_call_.load();
  if (exchanged != 0 && exchanged <= call) return {};
  std::vector<RankNews> missing;
  for (const int rank : members_.here()) {
    if (arrivals_.posts().calls(members_.layout.index_of(rank)) < call) {
      missing.push_back(states_.news_of(rank, Trouble::missing));
    }
  }
  if (missing.empty() && finished_call_.load() < call) {
    missing.push_back(states_.news_of(members_.who.rank, Trouble::missing));
  }
  return missing;
}

}  // namespace ddp::cpu_backend
