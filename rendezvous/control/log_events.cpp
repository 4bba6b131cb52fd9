#include "rendezvous/control/log_events.hpp"

#include <string>
#include <utility>
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

std::string text_of(const VersionRange& range) { return std::to_string(range.low) + "-" + std::to_string(range.high); }

std::optional<std::vector<int>> if_any(const std::vector<int>& numbers) {
  return numbers.empty() ? std::nullopt : std::optional(numbers);
}

// Levels apart from the events, because the text of an event costs more than all else that is done with it.
template <typename Message>
LogLevel level_of(const Message&) {
  return LogLevel::debug;
}
LogLevel level_of(const RoundFailed&) { return LogLevel::warning; }
LogLevel level_of(const Refused&) { return LogLevel::warning; }
LogLevel level_of(const StartRound&) { return LogLevel::info; }
LogLevel level_of(const StopRound&) { return LogLevel::info; }
LogLevel level_of(const FinishJob& message) {
  const bool was_stopped = message.exit_code == kStoppedAtStep || message.exit_code > kSignalCodes;
  const bool is_bad = message.cause || (message.exit_code != 0 && !was_stopped);
  return is_bad ? LogLevel::error : LogLevel::info;
}
template <typename... Messages>
LogLevel level_of(const std::variant<Messages...>& message) {
  return std::visit([](const auto& what) { return level_of(what); }, message);
}

LogEvent message_event(const Hello& hello) {
  LogFields fields;
  fields.add("host", hello.host_name)
      .add("node_rank", hello.node_rank)
      .add("nodes_min", hello.nodes_min)
      .add("nodes_max", hello.nodes_max)
      .add("workers", hello.workers)
      .add("restarts_max", hello.restarts_max)
      .add("versions", text_of(hello.versions));
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
  return {"round_failed", LogFields()
                              .add("round", message.round)
                              .add("what", message.what)
                              .add("hung_ranks", if_any(message.hung_ranks))
                              .add("job_time", message.job_time)};
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
  return {"stop_asked", LogFields()
                            .add_if_any("signal", signal_of(message.signal_number))
                            .add("is_warning", message.is_warning)
                            .add("is_second", message.is_second)
                            .add("time_limit", message.time_limit)};
}
LogEvent message_event(const StopReady& message) {
  return {"stop_ready", LogFields().add("round", message.round).add("call", message.call)};
}

LogEvent message_event(const Leaving& message) { return {"leaving", LogFields().add("why", message.why)}; }

LogEvent message_event(const TimeAsked& message) { return {"time_asked", LogFields().add("number", message.number)}; }
LogEvent message_event(const TimeTold& message) {
  return {"time_told", LogFields().add("number", message.number).add("job_time", message.job_time)};
}

LogEvent message_event(const LinksWork&) { return {"links_work", {}}; }
LogEvent message_event(const CheckLinks& message) {
  return {"check_links", LogFields().add("links", message.to.size())};
}

LogEvent message_event(const Welcome& message) {
  return {"welcome", LogFields()
                         .add("job_time", message.job_time)
                         .add("is_spare", message.is_spare)
                         .add("version", message.version)
                         .add("versions", text_of(message.versions))};
}
LogEvent message_event(const Elsewhere& message) {
  return {"elsewhere", LogFields().add("address", message.address).add("port", message.port)};
}
LogEvent message_event(const Refused& message) {
  return {"refused", LogFields()
                         .add("what", message.what)
                         .add("is_other_job", message.is_other_job)
                         .add("is_round_unknown", message.is_round_unknown)};
}
LogEvent message_event(const OpenStore& message) {
  return {"open_store", LogFields()
                            .add("round", message.round.number)
                            .add("allowed", message.allow.size())
                            .add("is_last", message.is_last)};
}
LogEvent message_event(const StartRound& message) {
  return {"start_round", LogFields()
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
                             .add("why", message.why)};
}
LogEvent message_event(const RoundEstablished& message) {
  return {"round_established", LogFields().add("round", message.round)};
}
LogEvent message_event(const HostLeaves& message) { return {"host_leaves", LogFields().add("why", message.why)}; }
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
  return {"stop_round", LogFields()
                            .add("round", message.round)
                            .add_if_any("signal", signal_of(message.signal_number))
                            .add("kill", message.kill)
                            .add("reseat", message.reseat)
                            .add("is_left_behind", message.is_left_behind)
                            .add("hung_ranks", if_any(message.hung_ranks))
                            .add("why", message.why)};
}
LogEvent message_event(const FinishJob& message) {
  LogFields fields;
  fields.add("exit_code", message.exit_code).add("stopped", message.stopped).add("what", message.what);
  if (message.has_left) fields.add("has_left", true);
  if (message.cause)
    fields.add("cause", describe_failure(*message.cause))
        .add("host", message.cause->host)
        .add("worker_pid", message.cause->pid)
        .add_if_any("reason", message.cause->message);
  return {"finish_job", std::move(fields)};
}

LogEvent host_event(const HostCore::Came& event) {
  auto out = message_event(event.hello);
  out.name = "node_came";
  out.fields.add("address", event.address);
  return out;
}
LogEvent host_event(const Heard& event) { return log_event_of(event.message); }
LogEvent host_event(const HostCore::Ended& event) {
  return {"node_gone", LogFields().add("why", event.why).add("by_peer", event.by_peer)};
}
LogEvent host_event(const HostCore::OwnAgentSaid& event) { return log_event_of(event.message); }
LogEvent host_event(const HostCore::GuardianSaid&) { return {"farewell"}; }
LogEvent host_event(const HostCore::CallAnswered& event) {
  return {"call_answered", LogFields().add("address", event.from.address).add("round", event.message.round)};
}
LogEvent host_event(const HostCore::OwnAgentFinished&) { return {"own_agent_finished"}; }

LogLevel host_level(const Heard& event) { return level_of(event.message); }
LogLevel host_level(const HostCore::OwnAgentSaid& event) { return level_of(event.message); }
LogLevel host_level(const HostCore::OwnAgentFinished&) { return LogLevel::debug; }
template <typename Event>
LogLevel host_level(const Event&) {
  return LogLevel::info;
}

LogEvent with_level(LogEvent event, LogLevel level) {
  event.level = level;
  return event;
}

}  // namespace

LogEvent log_event_of(const ToMembership& message) {
  return with_level(std::visit([](const auto& what) { return message_event(what); }, message), level_of(message));
}

LogEvent log_event_of(const ToAgent& message) {
  return with_level(std::visit([](const auto& what) { return message_event(what); }, message), level_of(message));
}

LogLevel log_level_of(const HostCore::Event& event) {
  return std::visit([](const auto& what) { return host_level(what); }, event);
}

LogEvent log_event_of(const HostCore::Event& event) {
  return with_level(std::visit([](const auto& what) { return host_event(what); }, event), log_level_of(event));
}

// Other messages to nodes are not logged: many nodes get the same one, and the phase says it once.
std::optional<LogLevel> log_level_of(const HostCore::Action& action) {
  if (std::holds_alternative<HostCore::Print>(action)) return LogLevel::info;
  if (std::holds_alternative<HostCore::StepDown>(action)) return LogLevel::warning;
  const auto* tell = std::get_if<HostCore::Tell>(&action);
  if (tell != nullptr && std::holds_alternative<Refused>(tell->message)) return level_of(tell->message);
  return {};
}

LogEvent log_event_of(const HostCore::Action& action) {
  LogEvent out;
  if (const auto* print = std::get_if<HostCore::Print>(&action)) out = {"note", LogFields().add("text", print->line)};
  if (const auto* down = std::get_if<HostCore::StepDown>(&action))
    out = {"step_down", LogFields().add("why", down->why)};
  if (const auto* tell = std::get_if<HostCore::Tell>(&action)) out = log_event_of(tell->message);
  return with_level(std::move(out), log_level_of(action).value());
}

LogEvent log_event_of(const HostCore& core) {
  const auto job = core.membership().summary();
  LogFields fields;
  fields.add("phase", core.verdict() ? "finished" : job.phase);
  if (job.round >= 0) fields.add("round", job.round).add("world_size", job.world_size);
  fields.add("nodes", job.node_count)
      .add("restarts", job.restart_count)
      .add("restarts_max", job.restarts_max)
      .add_if_any("round_before_ended", job.last_reason);
  if (const auto& stop = core.membership().job_stop()) fields.add("stop", stop->why());
  if (core.is_deserted()) {
    fields.add("all_nodes_are_gone", true);
    return {"phase", std::move(fields), LogLevel::error};
  }
  if (!core.verdict()) return {"phase", std::move(fields), LogLevel::info};
  fields.add(message_event(*core.verdict()).fields);
  return {"phase", std::move(fields), level_of(*core.verdict())};
}

}  // namespace ddp::rendezvous
