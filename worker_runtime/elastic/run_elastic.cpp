#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/cut.hpp"
#include "ddp/elastic.hpp"
#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/files/process_log.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/make_group.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {

namespace {

using agent_link::AgentLink;
using core::Launch;
using process_group::AbortCause;
using worker_link::LinkLeft;

// What the end of a round ends: the meeting of its ranks, then its group.
class RoundCut {
 public:
  // From the link's thread.
  void come(const std::string& why) {
    const std::lock_guard lock(mutex_);
    if (has_come_) return;
    has_come_ = true;
    was_in_call_ = flight_recorder::process_recorder().has_incomplete_call();
    why_ = "the round is over" + (why.empty() ? "" : ": " + why);
    cut_.cut(why_);
    if (group_) group_->abort(why_, AbortCause::round_over);
  }

  bool has_come() const {
    const std::lock_guard lock(mutex_);
    return has_come_;
  }

  // Whether the round's end has met this rank in a call.
  bool was_in_call() const {
    const std::lock_guard lock(mutex_);
    return was_in_call_;
  }

  base::Cut* cut() { return &cut_; }

  void watch(std::shared_ptr<ProcessGroup::Impl> group) {
    const std::lock_guard lock(mutex_);
    group_ = std::move(group);
    if (has_come_) group_->abort(why_, AbortCause::round_over);
  }

  void unwatch() {
    const std::lock_guard lock(mutex_);
    group_.reset();
  }

 private:
  base::Cut cut_;
  mutable std::mutex mutex_;
  bool has_come_ = false, was_in_call_ = false;
  std::string why_;
  std::shared_ptr<ProcessGroup::Impl> group_;
};

std::string first_line_of(const std::string& text) { return text.substr(0, text.find('\n')); }

// The group of one round, from its meeting until nothing here uses it.
class GroupOfRound {
 public:
  GroupOfRound(const Launch& launch, const InitOptions& options, RoundCut& end)
      : end_(end), group_(process_group::make_group(launch, options, end.cut())) {
    end_.watch(group_);
  }
  ~GroupOfRound() {
    end_.unwatch();
    // Whoever keeps the group beyond `train` keeps it from ending, but not others from leaving it behind.
    if (group_.use_count() > 1) group_->abort("its round has ended", AbortCause::program);
  }
  GroupOfRound(const GroupOfRound&) = delete;
  GroupOfRound& operator=(const GroupOfRound&) = delete;

  ProcessGroup handle() const { return ProcessGroup(group_); }

 private:
  RoundCut& end_;
  std::shared_ptr<ProcessGroup::Impl> group_;
};

using Train = std::function<void(ProcessGroup world)>;

void train_in(const GroupOfRound& group, ElasticState& state, const Train& train) {
  ProcessGroup world = group.handle();
  state.sync(world);
  train(world);
  world.barrier();  // who fails before all have come here makes all others come again
}

// Whether a new round is an answer to this error. While the ranks meet, whatever goes wrong may be the end of one of
// them.
bool is_answered_by_a_round(const Error& error, bool has_met) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr || dynamic_cast<const MismatchError*>(&error) != nullptr)
    return false;
  return !has_met || dynamic_cast<const RankFailure*>(&error) != nullptr ||
         dynamic_cast<const TimeoutError*>(&error) != nullptr || dynamic_cast<const AbortedError*>(&error) != nullptr;
}

// Empty where `train` has come to its end on all ranks. Else the group is gone when it returns.
std::optional<LinkLeft> run_round(const Launch& launch, AgentLink& link, ElasticState& state, const Train& train,
                                  const ElasticOptions& options) {
  RoundCut end;
  const auto round = launch.round ? launch.round->number : 0;
  link.enter(round, [&end](const std::string& why) { end.come(why); });
  std::optional<LinkLeft> left;
  bool has_met = false;
  try {
    const GroupOfRound group(launch, options.group, end);
    has_met = true;
    train_in(group, state, train);
  } catch (const Error& error) {
    if (!end.has_come() && !is_answered_by_a_round(error, has_met)) {
      link.leave();
      throw;
    }
    left.emplace(LinkLeft{round, {}, first_line_of(error.what()), end.was_in_call()});
    const auto* timeout = dynamic_cast<const TimeoutError*>(&error);
    if (timeout != nullptr && !end.has_come()) left->hung_ranks = timeout->ranks();
    if (left->hung_ranks.size() > worker_link::kRanksMax) left->hung_ranks.resize(worker_link::kRanksMax);
  } catch (...) {
    link.leave();
    throw;
  }
  link.leave();
  return left;
}

void run_rounds(AgentLink& link, ElasticState& state, const Train& train, const ElasticOptions& options) {
  while (auto left = run_round(process_group::present_launch(), link, state, train, options)) {
    process_log::log(
        {"round_left",
         base::LogFields().add("round", left->round).add("why", left->why).add("hung_ranks", left->hung_ranks.size()),
         base::LogLevel::info});
    link.send(*left);
    state.restore();
    process_group::set_launch_variables(link.wait_for_seat(options.seat_timeout));
    process_log::log({"seat_taken", {}, base::LogLevel::info});
  }
}

// While it lives the agent counts on this process for another round.
class SeatTaker {
 public:
  explicit SeatTaker(AgentLink& link) : link_(link) { link_.take_seats(true); }
  ~SeatTaker() { link_.take_seats(false); }
  SeatTaker(const SeatTaker&) = delete;
  SeatTaker& operator=(const SeatTaker&) = delete;

 private:
  AgentLink& link_;
};

}  // namespace

void DDP_ABI::run_elastic(ElasticState& state, const Train& train, const ElasticOptions& options) {
  AgentLink* const link = agent_link::open_process_link();
  if (link == nullptr) {
    RoundCut nobody_ends_it;
    return train_in(GroupOfRound(process_group::present_launch(), options.group, nobody_ends_it), state, train);
  }
  const SeatTaker seat_taker(*link);
  run_rounds(*link, state, train, options);
}

}  // namespace ddp
