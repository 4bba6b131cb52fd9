// Who has told the job to stop, and who has warned of a stop.
//
// A scheduler tells each of several nodes once. A person tells one node twice: whatever still runs is then killed.
//
// Nodes of which the job has enough may leave it instead. Those that are told within kLeaveWindow leave together: if
// all are told, the job is to stop. The next round waits for that. A warned node leaves at an agreed step, without a
// grace, and its window begins when the step is agreed.
//
// A scheduler also signals every process of a job at about the same time. If workers of a node die of that, the node
// says so when its round ends. This stops the job too, even if no ddprun has asked for it yet.
//
// Pure.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/reasons.hpp"

namespace ddp::rendezvous {

// `timeout` and schedulers send a signal twice; a later one means it.
constexpr std::chrono::milliseconds kSameWish{200};

// In which all nodes of a job are told, if it is meant.
constexpr std::chrono::milliseconds kLeaveWindow{2'000};

// What one node has said.
struct NodeStop {
  std::optional<TimePoint> asked{};  // first
  int signal_number = 0;             // of a spare
  int warning = 0;                   // the signal that warned it of a stop; 0: none
  bool leaves_if_warned = false;     // it wants to leave the job at the step that the warning leads to
  bool says_again = false;           // after a broken connection: its next request is no second one
};

class StopRequests {
 public:
  enum class Next { nothing, stop, kill };

  // The ddprun of that node was told to stop. is_second: not for the first time, as it says itself.
  Next ask(NodeStop& node, const JobStop& stop, bool is_second, TimePoint now);
  // Workers of that host have died of the signal, at that job time. Returns whether this stops the job.
  bool workers_died(int signal_number, const std::string& host, std::chrono::milliseconds when);
  const std::optional<JobStop>& stop() const { return stop_; }
  int signal_number() const { return stop_ ? stop_->signal_number : 0; }  // 0: there was no more than a warning

  // A node leaves. is_urgent: it was told to, not only warned.
  void leave(bool is_urgent, TimePoint now) {
    if (!leave_ends_) leave_ends_ = now + kLeaveWindow;
    is_leave_urgent_ = is_leave_urgent_ || is_urgent;
  }
  const std::optional<TimePoint>& leave_ends() const { return leave_ends_; }  // empty: nobody leaves
  bool is_leave_urgent() const { return is_leave_urgent_; }                   // a grace has begun
  void end_leave() {
    leave_ends_.reset();
    is_leave_urgent_ = false;
  }

  // At those job times. Only of a stop.
  void round_stopped(std::chrono::milliseconds when) { stop_->round_stopped_at = when; }
  void workers_signalled(std::chrono::milliseconds when) { stop_->note_signalled(when); }

  // A member was warned. Returns whether that is new.
  bool warn();
  bool is_warned() const { return is_warned_; }
  void forget_warning() { is_warned_ = false; }

 private:
  std::optional<JobStop> stop_;
  bool is_warned_ = false;
  std::optional<TimePoint> leave_ends_;
  bool is_leave_urgent_ = false;
};

}  // namespace ddp::rendezvous
