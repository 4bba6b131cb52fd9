// Decides when a job on several hosts starts, when it can't go on, and with which exit code it ends.
//
// Pure: events and the time go in, actions come out. The job itself runs in the hosts' ddpruns, which agree on how it
// ends; this only sees hosts come and go.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <variant>
#include <vector>

namespace ddp::launcher {

class HostsCore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    std::size_t hosts = 1;
    std::size_t hosts_min = 1;                // the job starts and goes on with so many
    std::chrono::milliseconds grace{};        // of the hosts' ddpruns
    std::chrono::milliseconds settle{5'000};  // for the other hosts to notice by themselves that one is missing
  };

  struct StartJob {};     // on the hosts that are connected
  struct TooFewHosts {};  // were reached: nothing has started
  struct StopHosts {};    // those that are left, as the job can't go on without the others
  struct LeaveHosts {};   // they do not end: their connections are to be closed
  struct Finish {
    int exit_code = 0;
  };
  using Action = std::variant<StartJob, TooFewHosts, StopHosts, LeaveHosts, Finish>;
  using Actions = std::vector<Action>;

  explicit HostsCore(const Options& options) : options_(options) {}

  // Of one host each.
  Actions connected(TimePoint now);
  Actions ended(std::optional<int> exit_code, bool was_connected, TimePoint now);  // no code: its connection is lost

  // ddprun was told to stop by a signal, and has told the hosts.
  Actions stopping(int signal_number, TimePoint now);
  void reader_gone() { is_reader_gone_ = true; }  // of ddprun's output; the job is stopped for it

  Actions tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

  bool has_started() const { return started_; }

 private:
  Actions begin_or_wait(TimePoint now);
  Actions finish();

  const Options options_;
  std::size_t connecting_ = options_.hosts, running_ = 0, succeeded_ = 0;
  bool started_ = false, given_up_ = false, is_reader_gone_ = false;
  std::optional<int> result_;     // that the first host to fail has given
  std::optional<int> last_code_;  // that any host has given
  std::optional<TimePoint> stop_at_, leave_at_;
};

}  // namespace ddp::launcher
