#include "tests/soak/faults_checks.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "tests/text.hpp"

namespace ddp::soak {
namespace {

using namespace std::chrono_literals;

constexpr auto kGapMax = 10s;
constexpr auto kUntouched = 20s;     // a fault may be followed by a stop of workers for so long
constexpr auto kAtTheEnd = 2s;       // a round that commits so late goes on
constexpr auto kAftermath = 1500ms;  // from a fault to the last commit that was under way

std::string name_of(const RoundNumbers& round) {
  if (round == RoundNumbers{}) return "nothing";
  return "round " + std::to_string(round[2]) + " of term " + std::to_string(round[0]) + "-" +
         std::to_string(round[1] % 10'000);
}

struct Committed {
  std::map<std::int64_t, Nanoseconds> steps;  // when the first rank committed each
};

using Rounds = std::map<RoundNumbers, Committed>;

Rounds rounds_of(const History& run) {
  Rounds out;
  for (const auto& worker : run.workers) {
    for (const auto& commit : worker.commits) {
      auto& first = out[commit.round].steps.try_emplace(commit.step, commit.time).first->second;
      first = std::min(first, commit.time);
    }
  }
  return out;
}

Nanoseconds first_time(const Committed& round) { return round.steps.begin()->second; }
Nanoseconds last_time(const Committed& round) { return round.steps.rbegin()->second; }

// The first begin of each round in any worker.
std::map<RoundNumbers, Begin> begins_of(const History& run) {
  std::map<RoundNumbers, Begin> out;
  for (const auto& worker : run.workers) {
    for (const auto& begin : worker.begins) {
      auto& known = out.try_emplace(begin.round, begin).first->second;
      if (begin.time < known.time) known = begin;
    }
  }
  return out;
}

// The rounds that a later one began with, and those that go on at the end.
std::set<RoundNumbers> survivors_of(const History& run, const Rounds& rounds) {
  std::set<RoundNumbers> out;
  for (const auto& [id, begin] : begins_of(run)) {
    if (rounds.contains(id)) out.insert(begin.adopted);
  }
  for (const auto& [id, round] : rounds) {
    if (last_time(round) + kAtTheEnd > run.end) out.insert(id);
  }
  return out;
}

void check_split(const History& run, const Rounds& rounds, std::vector<Violation>& out) {
  const auto survivors = survivors_of(run, rounds);
  for (auto a = rounds.begin(); a != rounds.end(); ++a) {
    for (auto b = std::next(a); b != rounds.end(); ++b) {
      if (!survivors.contains(a->first) || !survivors.contains(b->first)) continue;
      const bool is_a_first = first_time(a->second) < first_time(b->second);
      const auto& [older, newer] = is_a_first ? std::pair(a, b) : std::pair(b, a);
      const auto begin = first_time(newer->second);
      const auto late = std::count_if(older->second.steps.begin(), older->second.steps.end(),
                                      [&](const auto& step) { return step.second > begin; });
      if (late < 2) continue;  // one may have been under way in a worker that was stopped meanwhile
      out.push_back({"split", begin,
                     name_of(older->first) + " commits " + std::to_string(late) + " steps beside " +
                         name_of(newer->first) + ", and both survive"});
    }
  }
}

bool is_seen_after(const WorkerLog& worker, Nanoseconds time) {
  return (!worker.commits.empty() && worker.commits.back().time > time) ||
         (!worker.begins.empty() && worker.begins.back().time > time);
}

bool still_has(const History& run, const WorkerLog& worker, Nanoseconds committed, Nanoseconds now) {
  bool is_touched = false;
  for (const auto& fault : run.faults) {
    if (!fault.hosts.contains(worker.host)) continue;
    if (fault.ends_worker && fault.end >= committed - 100ms && fault.begin <= now) return false;
    is_touched = is_touched || (fault.begin <= now && fault.end + kUntouched >= now);
  }
  return !is_touched || is_seen_after(worker, now);
}

void check_lost(const History& run, const Rounds& rounds, std::vector<Violation>& out) {
  const auto survivors = survivors_of(run, rounds);
  std::set<std::pair<const WorkerLog*, std::int64_t>> told;
  for (const auto& [id, begin] : begins_of(run)) {
    if (!survivors.contains(id)) continue;
    for (const auto& worker : run.workers) {
      std::optional<Commit> last;
      for (const auto& commit : worker.commits) {
        if (commit.time < begin.time && commit.round < id) last = commit;
      }
      if (!last || last->step - 1 <= begin.step || !still_has(run, worker, last->time, begin.time)) continue;
      if (!told.emplace(&worker, last->step).second) continue;
      out.push_back({"lost", begin.time,
                     name_of(id) + " begins with step " + std::to_string(begin.step) + " of " + name_of(begin.adopted) +
                         ", but node" + std::to_string(worker.host) + " had committed step " +
                         std::to_string(last->step) + " in " + name_of(last->round)});
    }
  }
}

// The part of an interval in which some fault lasts.
Nanoseconds disturbed_part(const std::vector<Fault>& faults, Nanoseconds begin, Nanoseconds end) {
  std::vector<std::pair<Nanoseconds, Nanoseconds>> parts;
  for (const auto& fault : faults) parts.emplace_back(std::max(fault.begin, begin), std::min(fault.end, end));
  std::sort(parts.begin(), parts.end());
  Nanoseconds sum{}, covered = begin;
  for (const auto& [from, to] : parts) {
    if (to <= std::max(from, covered)) continue;
    sum += to - std::max(from, covered);
    covered = to;
  }
  return sum;
}

void check_gaps(const History& run, const Rounds& rounds, std::vector<Violation>& out) {
  std::vector<Nanoseconds> times;
  for (const auto& [id, round] : rounds) {
    for (const auto& [step, time] : round.steps) times.push_back(time);
  }
  times.push_back(run.end);
  std::sort(times.begin(), times.end());
  for (std::size_t i = 1; i < times.size(); ++i) {
    const auto gap = times[i] - times[i - 1];
    const auto disturbed = disturbed_part(run.faults, times[i - 1], times[i]);
    if (gap - disturbed <= kGapMax) continue;
    out.push_back({"gap", times[i - 1],
                   "no commit for " + std::to_string(gap / 1ms) + " ms, in which faults lasted " +
                       std::to_string(disturbed / 1ms) + " ms"});
  }
}

struct Named {
  std::set<int> hosts;             // one of them
  bool was_killed_by_job = false;  // its worker, as one that hangs
};

std::set<int> hosts_of_rank(const History& run, const RoundNumbers& before, int rank) {
  std::set<int> out;  // in one of the two rounds before
  for (const auto& other : run.reasons) {
    const bool is_before = other.round < before && other.round[2] + 2 >= before[2];
    if (is_before && other.rank == rank) out.insert(other.host);
  }
  return out;
}

// What each part of the text names. A rank that left for another one says so, and names that one.
std::vector<Named> named_in(const History& run, const Reason& reason) {
  const std::string separator = "; then ";
  std::vector<Named> out;
  for (std::size_t at = 0; at < reason.why.size();) {
    const auto end = std::min(reason.why.find(separator, at), reason.why.size());
    const std::string part = reason.why.substr(at, end - at);
    at = end + separator.size();
    if (part.find("(not certain)") != std::string::npos) continue;  // it accuses nobody
    Named named{.hosts = {}, .was_killed_by_job = part.find(" was killed by ddprun") != std::string::npos};
    for (const auto& host : test::matches(part, "host node([0-9]+)")) named.hosts.insert(std::stoi(host[1]));
    for (const auto& rank : test::matches(part, "rank ([0-9]+) ")) {
      named.hosts.merge(hosts_of_rank(run, reason.round, std::stoi(rank[1])));
    }
    if (!named.hosts.empty()) out.push_back(named);
  }
  return out;
}

bool is_explained(const History& run, const Reason& reason, const Named& named, Nanoseconds last_commit) {
  const auto serves = [&](int host) {
    return std::any_of(run.servers.begin(), run.servers.end(), [&](const auto& server) {
      return server.second == host && server.first <= reason.round && server.first[2] + 2 >= reason.round[2];
    });
  };
  return std::any_of(run.faults.begin(), run.faults.end(), [&](const Fault& fault) {
    if (fault.begin > reason.time || fault.end + kAftermath < last_commit) return false;
    if (named.was_killed_by_job && !fault.ends_worker) return false;
    return std::any_of(fault.hosts.begin(), fault.hosts.end(),
                       [&](int host) { return named.hosts.contains(host) || (fault.is_of_network && serves(host)); });
  });
}

void check_culprits(const History& run, const Rounds& rounds, std::vector<Violation>& out) {
  std::set<RoundNumbers> told;
  for (const auto& reason : run.reasons) {
    if (!told.insert(reason.round).second) continue;
    Nanoseconds last_commit = reason.time - kUntouched;
    for (const auto& [id, round] : rounds) {
      if (id < reason.round) last_commit = std::max(last_commit, last_time(round));
    }
    for (const auto& named : named_in(run, reason)) {
      if (is_explained(run, reason, named, last_commit)) continue;
      out.push_back({"culprit", reason.time, name_of(reason.round) + " because: " + reason.why});
    }
  }
}

}  // namespace

std::vector<Violation> violations_of(const History& run) {
  const Rounds rounds = rounds_of(run);
  std::vector<Violation> out;
  check_split(run, rounds, out);
  check_lost(run, rounds, out);
  check_gaps(run, rounds, out);
  check_culprits(run, rounds, out);
  std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  return out;
}

}  // namespace ddp::soak
