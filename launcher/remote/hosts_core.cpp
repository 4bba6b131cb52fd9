#include "launcher/remote/hosts_core.hpp"

#include <csignal>

#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kBeyondGrace{20};  // for a ddprun to report its end once its workers have ended

int code_of_too_few() { return rendezvous::exit_code_of(rendezvous::outcome::NotTogether{}); }
int code_of_signal(int number) { return rendezvous::exit_code_of(rendezvous::outcome::StoppedBySignal{number}); }

}  // namespace

HostsCore::Actions HostsCore::connected(TimePoint now) {
  --connecting_;
  ++running_;
  return begin_or_wait(now);
}

HostsCore::Actions HostsCore::ended(std::optional<int> exit_code, bool was_connected, TimePoint now) {
  if (was_connected)
    --running_;
  else
    --connecting_;
  if (given_up_) return connecting_ + running_ == 0 ? finish() : Actions{};
  if (!started_) return begin_or_wait(now);
  if (exit_code) last_code_ = exit_code;
  if (exit_code == 0) ++succeeded_;
  if (running_ + succeeded_ < options_.hosts_min) {
    if (!result_ && exit_code.value_or(0) != 0) result_ = exit_code;
    if (!stop_at_ && !leave_at_) stop_at_ = now + options_.settle;
  }
  return running_ == 0 ? finish() : Actions{};
}

HostsCore::Actions HostsCore::begin_or_wait(TimePoint now) {
  if (connecting_ > 0 || given_up_) return {};
  if (running_ >= options_.hosts_min) {
    started_ = true;
    return {StartJob{}};
  }
  given_up_ = true;
  result_ = code_of_too_few();
  leave_at_ = now;
  Actions out{TooFewHosts{}};
  if (running_ == 0)
    for (const auto& action : finish()) out.push_back(action);
  return out;
}

HostsCore::Actions HostsCore::stopping(int signal_number, TimePoint now) {
  if (leave_at_) return {};
  leave_at_ = started_ ? now + options_.grace + kBeyondGrace : now;
  if (started_) return {};
  given_up_ = true;
  result_ = code_of_signal(signal_number);  // the hosts have given none
  return connecting_ + running_ == 0 ? finish() : Actions{};
}

HostsCore::Actions HostsCore::tick(TimePoint now) {
  Actions out;
  if (stop_at_ && now >= *stop_at_) {
    stop_at_.reset();
    if (!leave_at_) {
      leave_at_ = now + options_.grace + kBeyondGrace;
      if (!result_) result_ = code_of_too_few();
      out.emplace_back(StopHosts{});
    }
  }
  if (leave_at_ && now >= *leave_at_) {
    leave_at_ = TimePoint::max();
    out.emplace_back(LeaveHosts{});
  }
  return out;
}

std::optional<HostsCore::TimePoint> HostsCore::next_deadline() const {
  if (stop_at_) return stop_at_;
  return leave_at_ == TimePoint::max() ? std::nullopt : leave_at_;
}

HostsCore::Actions HostsCore::finish() {
  if (is_reader_gone_) return {Finish{code_of_signal(SIGPIPE)}};
  return {Finish{result_.value_or(last_code_.value_or(code_of_too_few()))}};
}

}  // namespace ddp::launcher
