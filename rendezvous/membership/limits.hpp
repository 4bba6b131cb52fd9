// What a job may cost: its restarts, and the rounds that one host ends.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

using TimePoint = std::chrono::steady_clock::time_point;

// So much time has passed since their ages were told.
void age(std::vector<SpentRestarts>& spent, TimePoint::duration time);

// The one budget of restarts of a job. With a window only the restarts of that time before a failure count.
class RestartBudget {
 public:
  RestartBudget(int restarts_max, std::chrono::milliseconds window) : restarts_max_(restarts_max), window_(window) {}

  // How many there have been, as far as a membership before this one has counted. The greatest count wins, with its
  // ages. If the ages are not known, what is new counts as of now.
  void restate(int count, const std::optional<std::vector<SpentRestarts>>& spent, TimePoint now);
  void set_limits(int restarts_max, std::chrono::milliseconds window);  // what was counted before counts
  void spend(TimePoint now) { add(1, now); }
  void refill();  // with a window, that is
  bool is_left(TimePoint now) const;
  int count() const { return count_; }  // of the whole job
  // Those that the window counts. Empty without a window.
  std::optional<std::vector<SpentRestarts>> spent(TimePoint now) const;

 private:
  struct Spent {
    TimePoint when;
    int count;
  };

  void add(int count, TimePoint now);
  void note(Spent spent);

  int restarts_max_;
  std::chrono::milliseconds window_;  // 0: all count
  int count_ = 0;
  std::deque<Spent> spent_;  // the oldest first, at most kSpentRestartsMax: older ones count as of the first one here
};

// Tells a job that fails now and then from one that fails again and again without having kept anything in between. It
// knows of no job whose workers do not tell what they keep. A round in which a node was lost does not count: that is a
// fault of the network or of a host, and says nothing of the program.
class CrashLoop {
 public:
  // What the workers of a round that is over have kept. Returns whether they have come further by it: by any commit,
  // which goes on from the last one, or a checkpoint of a step beyond all before.
  bool end_round(const Progress& kept, bool has_worker_failed);

  bool is_one() const { return failures_ >= kFailures; }

  static constexpr int kFailures = 3;  // of rounds in a row that came no further

 private:
  bool is_told_ = false;
  std::uint64_t furthest_checkpoint_ = 0;
  int failures_ = 0;
};

// The pause before the next round where rounds end at once, so that a missing module, or a node that comes and goes,
// does not burn all restarts within a second: 0.1 s after the first such round, twice as long after each further one,
// and 10 s at most. The first of these rounds in which a node is lost, or a worker is killed by SIGKILL, counts for
// nothing: mostly somebody did that once, and training waits.
class RestartPause {
 public:
  enum class AtOnce { no, node_lost, worker_killed, worker_failed };  // what ended the round at once

  void end_round(AtOnce what);
  int failures() const { return failures_; }  // rounds in a row that ended at once, and count
  std::chrono::milliseconds length() const;   // 0: the next round need not wait

  static constexpr std::chrono::seconds kAtOnce{10};  // since the start of the round

 private:
  int failures_ = 0;
  bool was_struck_ = false;  // in one of these rounds: a node was lost, or a worker killed
};

// A host that ends round after round is left out for a while.
class CoolDown {
 public:
  void blame(const std::string& host, TimePoint now);
  void leave_out(const std::string& host, TimePoint now);  // at once
  // For a broken link. Returns whether it may be let in before its time: not if it was within the window.
  bool leave_out_for_link(const std::string& host, TimePoint now);
  void let_in(const std::string& host, TimePoint now);  // that may be; else nothing happens
  bool is_out(const std::string& host, TimePoint now) const { return out_until(host, now).has_value(); }
  std::optional<TimePoint> out_until(const std::string& host, TimePoint now) const;
  bool is_anyone_out(TimePoint now) const { return now < last_until_; }

  static constexpr std::chrono::minutes kBlameWindow{10}, kOut{5};
  static constexpr std::size_t kBlames = 3;

 private:
  struct HostRecord {
    std::deque<TimePoint> blamed;  // within the window, the oldest first
    TimePoint until{};
    bool may_be_let_in = false;
    std::optional<TimePoint> let_in_at{};
  };
  std::map<std::string, HostRecord> hosts_;
  TimePoint last_until_{};
};

}  // namespace ddp::rendezvous
