#include "launcher/node/log_events.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/control/log_events.hpp"

namespace ddp::launcher {
namespace {

using base::LogEvent;
using base::LogFields;
using base::LogLevel;

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 does not deduce it

constexpr auto kNoLine = [](const auto&) -> std::optional<LogEvent> { return {}; };

std::optional<LogEvent> event(std::string_view name, LogFields fields = {}, LogLevel level = LogLevel::debug) {
  return LogEvent{name, std::move(fields), level};
}

LogFields of_signal(int number) { return LogFields().add("signal", rendezvous::signal_name(number)); }
LogFields of_worker(int local_rank) { return LogFields().add("local_rank", local_rank); }
LogFields of_workers(const std::vector<int>& local_ranks) { return LogFields().add("local_ranks", local_ranks); }

// sender_of() begins with a space.
std::string_view without_space(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

std::optional<LogEvent> worker_event(const WorkerGroupEvent& what) {
  return std::visit(Overloaded{
                        [](const auto&) -> std::optional<LogEvent> { return {}; },  // made by the core itself
                        [](const WorkerStarted& e) { return event("worker_started", of_worker(e.local_rank)); },
                        [](const WorkerStopping& e) { return event("worker_stopping", of_worker(e.local_rank)); },
                        [](const WorkerEnded& e) {
                          return event("worker_ended",
                                       of_worker(e.local_rank).add("how", rendezvous::describe(e.ending)),
                                       e.ending.is_success() ? LogLevel::debug : LogLevel::info);
                        },
                        [](const WorkerNotSpawned& e) { return event("worker_not_spawned", of_worker(e.local_rank)); },
                        [](const OrphansGone&) { return event("orphans_gone"); },
                        [](const TreeEmpty&) { return event("tree_empty"); },
                    },
                    what);
}

std::optional<LogEvent> said_by_worker(int local_rank, const worker_link::FromWorker& message) {
  return std::visit(
      Overloaded{
          [&](const worker_link::LinkHello& m) {
            auto fields = of_worker(local_rank).add("takes_seats", m.takes_seats).add("takes_stops", m.takes_stops);
            if (m.departure)
              fields.add("departure", name_of(m.departure->kind))
                  .add("left_for", m.departure->ranks)
                  .add_if_any("why", m.departure->why);
            return event("worker_hello", fields);
          },
          [&](const worker_link::LinkLeft& m) {
            return event(
                "worker_left",
                of_worker(local_rank).add("round", m.round).add("hung_ranks", m.hung_ranks).add_if_any("why", m.why),
                LogLevel::info);
          },
          [](const worker_link::LinkProgress&) { return std::optional<LogEvent>(); },  // sent at training steps
          [&](const worker_link::LinkStopReady& m) {
            return event("worker_stop_ready", of_worker(local_rank).add("round", m.round).add("call", m.call));
          },
          [&](const worker_link::LinkStopping& m) {
            return event("worker_stopping", of_worker(local_rank).add("round", m.round));
          },
      },
      message);
}

}  // namespace

std::vector<LogEvent> log_events_of(const NodeCore::Event& what) {
  std::vector<LogEvent> out;
  if (const auto* changed = std::get_if<NodeCore::WorkersChanged>(&what)) {
    for (const auto& each : *changed)
      if (auto line = worker_event(each)) out.push_back(std::move(*line));
    return out;
  }
  auto line = std::visit(
      Overloaded{
          [](const NodeCore::StopSignalled& e) {
            return event("stop_signalled", of_signal(e.signal_number).add_if_any("sender", without_space(e.sender)),
                         LogLevel::info);
          },
          [](const NodeCore::WarningSignalled& e) {
            return event("warning_signalled", of_signal(e.signal_number).add_if_any("sender", without_space(e.sender)),
                         LogLevel::info);
          },
          [](const NodeCore::SuspendSignalled&) { return event("suspend_signalled"); },
          [](const NodeCore::ContinueSignalled&) { return event("continue_signalled"); },
          [](const NodeCore::OutputClosed&) { return event("output_closed", {}, LogLevel::warning); },
          kNoLine,  // WorkersChanged, see above
          [](const NodeCore::TreeHasSignal& e) { return event("tree_has_signal", of_signal(e.signal_number)); },
          [](const NodeCore::SignalForwarded& e) {
            return event("signal_forwarded", LogFields().add("handlers", e.handlers));
          },
          [](const NodeCore::GuardianEnded& e) {
            return event("guardian_ended", LogFields().add("how", rendezvous::describe(e.ending)).add("pid", e.pid),
                         e.ending.is_success() ? LogLevel::debug : LogLevel::error);
          },
          [](const NodeCore::WorkerSaid& e) { return said_by_worker(e.local_rank, e.message); },
          [](const NodeCore::WorkerLinkLost& e) {
            return event("worker_link_lost", of_worker(e.local_rank).add("why", text_of(e.fault)), LogLevel::warning);
          },
          [](const NodeCore::OutputOpened& e) {
            return event("output_opened", LogFields().add("why_not", e.why_not),
                         e.why_not ? LogLevel::error : LogLevel::debug);
          },
          [](const NodeCore::OutputWritten&) { return event("output_written"); },
          [](const NodeCore::SpawnFailed& e) {
            return event("spawn_failed", of_workers(e.local_ranks).add("why", e.why), LogLevel::error);
          },
          [](const NodeCore::ReasonsRead& e) {
            const auto& messages = e.reasons.messages;
            return event(
                "reasons_read",
                LogFields().add("number", e.number).add_if_any("first", messages.empty() ? "" : messages.front()));
          },
          [](const NodeCore::SeatsFailed& e) {
            return event("seats_failed", of_workers(e.local_ranks).add("why", e.why), LogLevel::error);
          },
          [](const NodeCore::MembershipSaid& e) { return std::optional(rendezvous::log_event_of(e.message)); },
          [](const NodeCore::MembershipLost& e) {
            return event("membership_lost", LogFields().add("what", e.why.what).add("where", e.why.where),
                         LogLevel::error);
          },
          [](const NodeCore::Orphaned& e) {
            return event("orphaned", LogFields().add("why", e.why), LogLevel::warning);
          },
          [](const NodeCore::StoreIsOpen& e) {
            return event("store_is_open", LogFields().add("round", e.round.number).add("port", e.port));
          },
          [](const NodeCore::StoreFailed& e) {
            return event("store_failed", LogFields().add("why", e.why), LogLevel::error);
          },
      },
      what);
  if (line) out.push_back(std::move(*line));
  return out;
}

std::optional<LogEvent> log_event_of(const NodeCore::Action& what) {
  return std::visit(
      Overloaded{
          kNoLine,
          [](const NodeCore::PrintError& a) { return event("printed_error", LogFields().add("what", a.error.what)); },
          [](const NodeCore::Send& a) { return std::optional(rendezvous::log_event_of(a.message)); },
          [](const NodeCore::SendRoundEnded& a) {
            return std::optional(rendezvous::log_event_of(rendezvous::ToMembership(a.message)));
          },
          [](const NodeCore::OpenOutput& a) { return event("open_output", of_workers(a.local_ranks)); },
          [](const NodeCore::Spawn& a) { return event("spawn", of_workers(a.local_ranks), LogLevel::info); },
          [](const NodeCore::Seat& a) { return event("seat", of_workers(a.local_ranks), LogLevel::info); },
          [](const SignalWorker& a) {
            return event("signal_worker",
                         of_worker(a.local_rank).add("signal", rendezvous::signal_name(a.signal_number)),
                         LogLevel::info);
          },
          [](const KillWorker& a) { return event("kill_worker", of_worker(a.local_rank), LogLevel::info); },
          [](const SignalTree& a) { return event("signal_tree", of_signal(a.signal_number)); },
          [](const KillOrphans&) { return event("kill_orphans"); },
          [](const KillTree&) { return event("kill_tree", {}, LogLevel::warning); },
          [](const NodeCore::ForwardSignal& a) { return event("forward_signal", of_signal(a.signal_number)); },
          [](const NodeCore::ForgetTree&) { return event("forget_tree", {}, LogLevel::warning); },
          [](const NodeCore::ReadReasons& a) {
            return event("read_reasons", of_workers(a.local_ranks).add("number", a.number));
          },
          [](const NodeCore::CloseOutput& a) { return event("close_output", LogFields().add("kept", a.kept)); },
          [](const NodeCore::Finish& a) {
            return event("finish", LogFields().add("exit_code", rendezvous::exit_code_of(a.outcome)), LogLevel::info);
          },
          [](const NodeCore::Quit&) { return event("quit", {}, LogLevel::info); },
      },
      what);
}

}  // namespace ddp::launcher
