#include "rendezvous/control/log_events.hpp"

#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace ddp::rendezvous {
namespace {

using base::LogEvent;
using base::LogFields;
using base::LogLevel;

constexpr int kSignalCodes = 128;  // higher exit codes mean that a signal ended the job

// "SIGTERM"; empty for no signal.
std::string signal_of(int number) { return number == 0 ? "" : signal_name(number); }

std::optional<std::vector<int>> if_any(const std::vector<int>& numbers) {
  return numbers.empty() ? std::nullopt : std::optional(numbers);
}

LogEvent message_event(const Hello& hello) {
  LogFields fields;
  fields.add("host", hello.host_name)
      .add("node_rank", hello.node_rank)
      .add("nodes_min", hello.nodes_min)
      .add("nodes_max", hello.nodes_max)
      .add("workers", hello.workers)
      .add("restarts_max", hello.restarts_max)
      .add("versions", std::to_string(hello.versions.low) + "-" + std::to_string(hello.versions.high));
  if (hello.was_welcomed) fields.add("comes_again", true);
  if (hello.held)
    fields.add("held_round_id", to_string(hello.held->round))
        .add("held_group_rank", hello.held->group_rank)
        .add("is_left_behind", hello.held->is_left_behind);
  return {"hello", std::move(fields)};
}
LogEvent message_event(const StoreOpened& message) {
  return {"store_opened", LogFields().add("round", message.round).add("port", message.port)};
}
LogEvent message_event(const RoundStarted& message) {
  return {"round_started", LogFields().add("round", message.round)};
}
LogEvent message_event(const FirstStep& message) { return {"first_step", LogFields().add("round", message.round)}; }
LogEvent message_event(const RoundFailed& message) {
  return {"round_failed",
          LogFields()
              .add("round", message.round)
              .add("what", message.what)
              .add("hung_ranks", if_any(message.hung_ranks))
              .add("job_time", message.job_time),
          LogLevel::warning};
}
LogEvent message_event(const RoundEnded& message) {
  LogFields fields;
  fields.add("round", message.round)
      .add("failures", message.failures.size())
      .add("stopped", message.stopped)
      .add("stopped_at_step", message.stopped_at_step)
      .add("tree_survived", message.tree_survived)
      .add_if_any("signal", signal_of(message.signal_number.value_or(0)))
      .add("commits", message.progress.commits)
      .add("checkpoint_step", message.progress.checkpoint_step);
  if (!message.failures.empty()) fields.add("first_failure", describe_failure(message.failures.front()));
  return {"round_ended", std::move(fields)};
}
LogEvent message_event(const StopAsked& message) {
  return {"stop_asked",
          LogFields().add_if_any("signal", signal_of(message.signal_number)).add("is_warning", message.is_warning)};
}
LogEvent message_event(const StopReady& message) {
  return {"stop_ready", LogFields().add("round", message.round).add("call", message.call)};
}

LogEvent message_event(const Welcome& message) {
  return {
      "welcome",
      LogFields().add("job_time", message.job_time).add("is_spare", message.is_spare).add("version", message.version)};
}
LogEvent message_event(const Elsewhere& message) {
  return {"elsewhere", LogFields().add("address", message.address).add("port", message.port)};
}
LogEvent message_event(const Refused& message) {
  return {"refused",
          LogFields()
              .add("what", message.what)
              .add("is_other_job", message.is_other_job)
              .add("is_round_unknown", message.is_round_unknown),
          LogLevel::warning};
}
LogEvent message_event(const OpenStore& message) {
  return {"open_store", LogFields()
                            .add("round", message.round.number)
                            .add("allowed", message.allow.size())
                            .add("is_last", message.is_last)};
}
LogEvent message_event(const StartRound& message) {
  return {"start_round",
          LogFields()
              .add("round", message.round.number)
              .add("round_id", to_string(message.round))
              .add("group_rank", message.group_rank)
              .add("nodes", message.group_world_size)
              .add("rank_first", message.rank_first)
              .add("world_size", message.world_size)
              .add("restarts", message.restart_count)
              .add("restarts_max", message.restarts_max)
              .add_if_any("master_address", message.master_address)
              .add("master_port", message.master_port)
              .add_if_any("why", message.why),
          LogLevel::info};
}
LogEvent message_event(const RoundEstablished& message) {
  return {"round_established", LogFields().add("round", message.round)};
}
LogEvent message_event(const PrepareStop& message) {
  return {"prepare_stop", LogFields().add("round", message.round).add("is_warning", message.is_warning)};
}
LogEvent message_event(const StopAt& message) {
  return {"stop_at", LogFields()
                         .add("round", message.round)
                         .add("call", message.call)
                         .add_if_any("signal", signal_of(message.signal_number))};
}
LogEvent message_event(const StopRound& message) {
  return {"stop_round",
          LogFields()
              .add("round", message.round)
              .add_if_any("signal", signal_of(message.signal_number))
              .add("kill", message.kill)
              .add("reseat", message.reseat)
              .add("is_left_behind", message.is_left_behind)
              .add("hung_ranks", if_any(message.hung_ranks))
              .add_if_any("why", message.why),
          LogLevel::info};
}
LogEvent message_event(const FinishJob& message) {
  const bool was_stopped = message.exit_code == kStoppedAtStep || message.exit_code > kSignalCodes;
  const bool is_bad = message.cause || (message.exit_code != 0 && !was_stopped);
  LogFields fields;
  fields.add("exit_code", message.exit_code).add("stopped", message.stopped).add_if_any("what", message.what);
  if (message.cause)
    fields.add("cause", describe_failure(*message.cause))
        .add("host", message.cause->host)
        .add("worker_pid", message.cause->pid)
        .add_if_any("reason", message.cause->message);
  return {"finish_job", std::move(fields), is_bad ? LogLevel::error : LogLevel::info};
}

std::optional<LogEvent> host_event(const HostCore::Came& event) {
  auto out = message_event(event.hello);
  out.name = "node_came";
  out.fields.add("address", event.address);
  out.level = LogLevel::info;
  return out;
}
std::optional<LogEvent> host_event(const HostCore::Said& event) { return log_event_of(event.message); }
std::optional<LogEvent> host_event(const HostCore::Ended& event) {
  return LogEvent{"node_gone", LogFields().add_if_any("why", event.why).add("by_peer", event.by_peer), LogLevel::info};
}
std::optional<LogEvent> host_event(const HostCore::OwnAgentSaid& event) { return log_event_of(event.message); }
std::optional<LogEvent> host_event(const HostCore::GuardianSaid&) { return LogEvent{"farewell", {}, LogLevel::info}; }
std::optional<LogEvent> host_event(const HostCore::OwnAgentFinished&) { return LogEvent{"own_agent_finished"}; }

// Other messages to nodes are not logged: many nodes get the same one, and the phase says it once.
template <typename Action>
std::optional<LogEvent> host_event(const Action& action) {
  if constexpr (std::is_same_v<Action, HostCore::Print>)
    return LogEvent{"note", LogFields().add("text", action.line), LogLevel::info};
  else if constexpr (std::is_same_v<Action, HostCore::Tell>)
    return std::holds_alternative<Refused>(action.message) ? std::optional(log_event_of(action.message)) : std::nullopt;
  else if constexpr (std::is_same_v<Action, HostCore::StepDown>)
    return LogEvent{"step_down", LogFields().add("why", action.why), LogLevel::warning};
  else
    return {};
}

}  // namespace

LogEvent log_event_of(const ToMembership& message) {
  return std::visit([](const auto& what) { return message_event(what); }, message);
}

LogEvent log_event_of(const ToAgent& message) {
  return std::visit([](const auto& what) { return message_event(what); }, message);
}

std::optional<LogEvent> log_event_of(const HostCore::Event& event) {
  return std::visit([](const auto& what) { return host_event(what); }, event);
}

std::optional<LogEvent> log_event_of(const HostCore::Action& action) {
  return std::visit([](const auto& what) { return host_event(what); }, action);
}

LogEvent log_event_of(const HostCore& core) {
  const auto view = core.membership().view();
  LogFields fields;
  fields.add("phase", core.verdict() ? "finished" : view.phase);
  if (view.round >= 0) fields.add("round", view.round).add("world_size", view.world_size);
  fields.add("nodes", view.nodes.size())
      .add("restarts", view.restart_count)
      .add("restarts_max", view.restarts_max)
      .add_if_any("round_before_ended", view.last_reason)
      .add_if_any("stop", core.membership().stop_why());
  if (!core.verdict()) return {"phase", std::move(fields), LogLevel::info};
  const auto verdict = message_event(*core.verdict());
  return {"phase", std::move(fields.add(verdict.fields)), verdict.level};
}

}  // namespace ddp::rendezvous
