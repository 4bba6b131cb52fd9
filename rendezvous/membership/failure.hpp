// How a worker ended, what every node of the job is told of a failure, and the words for it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::rendezvous {

// How a worker ended.
struct Ending {
  enum class Kind { exited, killed, not_started, left };  // left: it runs on, but gave up its group for no known reason
  Kind kind = Kind::exited;
  int value = 0;  // exit code, signal number, or errno of the spawn
  bool core_dumped = false;
  std::optional<bool> out_of_memory{};  // whether the kernel sent SIGKILL for that; empty: nothing counts it

  bool is_success() const { return kind == Kind::exited && value == 0; }
  bool operator==(const Ending&) const = default;
};

constexpr std::size_t kStderrLinesMax = 16;
constexpr std::size_t kStderrLineBytesMax = 400;  // that ddprun keeps of a line
constexpr std::size_t kAccusedMax = 16;

constexpr std::size_t kKilledForBytesMax = 512;

// One worker's failure, in words that are the same on every node.
struct FailureReport {
  int rank = 0;
  int local_rank = 0;
  std::string host;
  std::int64_t pid = 0;  // 0 where it never ran
  std::string program;
  Ending ending;
  std::uint32_t round = 0;                // its number
  std::chrono::milliseconds after{0};     // since its round began
  std::chrono::milliseconds job_time{0};  // on the job's clock, which is the endpoint's
  std::string message;                    // from the worker's error file; or empty
  std::vector<std::string> stderr_tail;   // its last lines, oldest first, at most kStderrLinesMax
  std::string stderr_file;                // that has all of it; or empty
  std::string stderr_lost{};              // why that file may lack what the worker wrote; empty: it has all
  std::string gpu_faults{};               // that its host's GPUs reported at about that time; or empty
  std::vector<int> accused{};  // ranks of the job for which this one left its group, as it said; at most kAccusedMax
  bool is_own_error = false;   // it said that it left its group for an error of its own: it missed nobody
  bool was_ending = false;     // its end had begun before its node sent any signal, and when its node's first was seen
  std::chrono::milliseconds was_ending_for{0};  // so long before job_time its end had been seen to have begun
  std::chrono::milliseconds job_time_error{0};  // of job_time, at most, either way: the clock is not this node's
  bool missed_a_peer = false;  // its error says that a connection to another rank ended, but not to which one
  bool runs_python = false;    // Python runs the program, also if its name does not say so
  std::string killed_for{};    // why ddprun ended it, at most kKilledForBytesMax; empty: it did not
  std::string seen_address{};  // of its node, as membership sees it; no part of a message
  bool is_killed_by_ddprun() const { return !killed_for.empty(); }
  bool says_why() const { return !message.empty(); }
  // It names nobody that it failed for, and does not say that there was somebody.
  bool accuses_nobody() const { return accused.empty() && !missed_a_peer; }
  bool operator==(const FailureReport&) const = default;
};

// It died of SIGTERM, SIGINT or SIGUSR1, which a scheduler sends to every process of a job, or says so by its exit code
// as a shell does.
bool is_schedulers_signal(const Ending& ending);

std::string counted(int count, const std::string& thing);           // "1 node", "2 nodes"
std::string signal_name(int signal_number);                         // "SIGKILL"
std::string describe(const Ending& ending);                         // "was killed by SIGKILL"
std::string describe_duration(std::chrono::milliseconds duration);  // "3.2 s", "12 min", "2 h 5 min"
std::string describe_failure(const FailureReport& failure);         // "rank 1 was killed by SIGKILL after 3.2 s"
// Follows the words for a failure that is taken for the cause.
constexpr const char* certainty_text(bool is_certain) { return is_certain ? "" : " (not certain)"; }

}  // namespace ddp::rendezvous
