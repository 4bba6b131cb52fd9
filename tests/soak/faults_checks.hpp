// What faults_soak asks of a job's logs. Pure: logs and faults in, violations out.
//
// Rule `split`    Two rounds that both survive do not commit at the same time. A round survives if a later one begins
//                 with its commit, or if it goes on at the end. What a cut-off side does beside that is lost with it,
//                 and breaks no rule.
// Rule `lost`     A round that survives begins with the newest commit, or with the one before, that a node still has. A
// node has what
//                 it committed until a fault of the test ends its worker. A node counts if its worker is seen again
//                 later, or if no fault has touched the node for a while.
// Rule `gap`      Between two commits there are 10 s at most, not counting the time in which a fault lasts.
// Rule `culprit`  A round ends for a host or rank that a fault has hit since shortly before that round's last commit.
//                 No worker is killed by the job for a broken link.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace ddp::soak {

using Nanoseconds = std::chrono::nanoseconds;       // of the steady clock
using RoundNumbers = std::array<std::uint64_t, 3>;  // term, its random bits, number; all 0: none

struct Begin {  // of a round, in one worker
  RoundNumbers round{};
  int rank = 0;
  int size = 0;
  Nanoseconds time{};
  RoundNumbers adopted{};  // the round that made the commit with which it begins
  std::int64_t step = 0;   // of that commit
};

struct Commit {
  RoundNumbers round{};
  std::int64_t step = 0;
  Nanoseconds time{};
};

struct WorkerLog {
  int host = 0;
  std::vector<Begin> begins;
  std::vector<Commit> commits;  // in the order of their times
};

// What an agent was told as the reason for a round.
struct Reason {
  RoundNumbers round{};
  int host = 0;  // of the agent
  int rank = 0;  // of its worker in this round
  Nanoseconds time{};
  std::string why;
};

struct Fault {
  std::string what;
  Nanoseconds begin{}, end{};  // end: when it is over, be it by the start of a replacement
  std::set<int> hosts{};       // that it hits
  bool is_of_network = false;  // if it hits the host that serves the job, other hosts seem to be lost as well
  bool ends_worker = false;    // on these hosts, or may do so
};

struct History {
  std::vector<WorkerLog> workers;
  std::vector<Reason> reasons;
  std::map<RoundNumbers, int> servers;  // the host whose membership began the round
  std::vector<Fault> faults;
  Nanoseconds end{};  // of the training, before it is stopped
};

struct Violation {
  std::string rule;
  Nanoseconds time{};
  std::string what;
};

std::vector<Violation> violations_of(const History& run);

}  // namespace ddp::soak
