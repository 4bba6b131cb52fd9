#include "launcher/agent/agent.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "base/host_name.hpp"
#include "base/line_log.hpp"
#include "base/printable.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "ddp/round.hpp"
#include "launcher/agent/agent_log.hpp"
#include "launcher/agent/assignment.hpp"
#include "launcher/agent/guardian_link.hpp"
#include "launcher/agent/guardian_start.hpp"
#include "launcher/agent/hello.hpp"
#include "launcher/agent/meeting.hpp"
#include "launcher/agent/own_process.hpp"
#include "launcher/agent/own_signals.hpp"
#include "launcher/agent/part_options.hpp"
#include "launcher/agent/reason_files.hpp"
#include "launcher/agent/report_file.hpp"
#include "launcher/agent/worker_links.hpp"
#include "launcher/binding/worker_bindings.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/node/log_events.hpp"
#include "launcher/node/node_core.hpp"
#include "launcher/output/output.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

class Agent {
 public:
  Agent(const LaunchConfig& config, const std::vector<std::string>& environment)
      : config_(config),
        inherited_(environment),
        bindings_(worker_bindings(config, environment)),
        core_(node_options(config)),
        report_file_(config.report_file.empty() ? std::nullopt : std::make_optional<ReportFile>(config.report_file)),
        taken_in_(signals_to_take_in(config.stop_signals, config.forward_signals,
                                     config.in_slurm_step || !config.slurm_step.empty())),
        security_(security_of(config)),
        guardian_(prepare_guardian(config, environment, bindings_, scratch_.path(), security_, taken_in_),
                  config.workers),
        signals_(io_, taken_in_, config.forward_signals,
                 {[this](const NodeCore::Event& event) { decide(event); }, [this] { reap_guardian(); },
                  [this] { output_.resize(); }}),
        timer_(io_),
        links_(io_, config.workers,
               {[this](int local_rank, const worker_link::ToAgent& message) {
                  decide(NodeCore::WorkerSaid{local_rank, message});
                },
                [this](int local_rank, const std::string& why) {
                  decide(NodeCore::WorkerLinkLost{local_rank, why});
                }}),
        output_(io_, config.output, scratch_.path(), [this] { decide(NodeCore::OutputClosed{}); }),
        warnings_(io_, [this](const std::string& line) { print(line); }),
        store_(io_, store_options(config, std::ref(warnings_))),
        meeting_(
            io_, config, security_, hello_of(config, {run_id_, node_key_}, output_.highest_round(run_id_)), term_,
            [this](base::UniqueFd socket, const sockaddr_storage& peer) { store_.adopt(std::move(socket), peer); },
            warnings_,
            {[this](const rendezvous::ToAgent& message) {
               decide(NodeCore::MembershipSaid{message, meeting_.endpoint_host()});
             },
             [this](const rendezvous::LinkLost& why) { decide(NodeCore::MembershipLost{why}); },
             [this](const std::string& line) { print(line, !meeting_.serves_endpoint()); },
             [this](const std::string& why) { decide(NodeCore::Orphaned{why}); },
             {}},
            [this](const base::LogEvent& event, const base::LogFields& where) { log_.of_host(event, where); }) {
    ::signal(SIGPIPE, SIG_IGN);
  }

  int run() {
    for (const auto& notice : config_.notices) print(notice);
    signals_.listen();
    guardian_.listen(io_, {[this](const std::vector<WorkerGroupEvent>& events) {
                             hear_out(events);
                             decide(events);
                           },
                           [this](int signal_number) { decide(NodeCore::TreeHasSignal{signal_number}); },
                           [this](int workers) { decide(NodeCore::SignalForwarded{workers}); }});
    meeting_.start();
    io_.run();
    // When nothing else is left to do: nobody waits for a slow disk.
    if (report_file_) write_report(*report_file_, run_id_, exit_code_, core_.report());
    if (exit_code_ != 0) write_log();
    return exit_code_;
  }

 private:
  void write_log() {
    const auto failure = log_.write_kept(output_.own_log(run_id_, base::host_name()));
    if (!failure.empty()) std::cerr << "ddprun: its own log was not written: " << failure << '\n';
  }

  // --- what happens ---

  void reap_guardian() {
    const auto pid = guardian_.pid();
    if (const auto ending = guardian_.reap()) decide(NodeCore::GuardianEnded{*ending, pid});
  }

  // What workers that have ended said before goes before their end.
  void hear_out(const std::vector<WorkerGroupEvent>& events) {
    for (const auto& event : events)
      if (const auto* ended = std::get_if<WorkerEnded>(&event)) links_.hear_out(ended->local_rank);
  }

  void decide(const NodeCore::Event& event) {
    for (const auto& line : log_events_of(event)) log_(line);
    perform(core_.step(event, facts()));
  }

  NodeCore::Facts facts() const {
    return {Clock::now(), meeting_.job_time(), meeting_.serves_endpoint(), meeting_.is_joined()};
  }

  // --- what the core decides ---

  // What an action causes comes later, as an event of its own; only OpenStore and SuspendProcess have their answers at
  // once, and stand at the end of what was decided.
  void perform(const NodeCore::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto line = log_event_of(action)) log_(*line);
      std::visit([this](const auto& what) { perform(what); }, action);
    }
    const auto deadline = core_.next_deadline();
    timer_.cancel();
    if (!deadline) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](error_code error) {
      if (!error) perform(core_.tick(facts()));
    });
  }

  void perform(const NodeCore::Print& action) { print(action.line, action.is_limited); }
  void perform(const NodeCore::PrintText& action) { output_.say(action.text); }

  void perform(const NodeCore::PrintError& action) {
    const auto& error = action.error;
    output_.say("error: " + base::printable(error.what) + "\nwhere: " + base::printable(error.where) +
                "\ntry:   " + base::printable(error.try_this));
  }

  void perform(const NodeCore::Send& action) { meeting_.send(action.message); }

  void perform(const NodeCore::SendRoundEnded& action) {
    auto ended = action.message;
    for (auto& failure : ended.failures) {
      failure.pid = guardian_.pid_of(failure.local_rank);
      failure.program = config_.program;
      failure.stderr_file = output_.stderr_file(failure.local_rank);
    }
    if (!ended.failures.empty() && ended.failures.front().stderr_file.empty())
      ended.failures.front().stderr_tail = output_.stderr_tail(ended.failures.front().local_rank);
    meeting_.send(ended);
  }

  void perform(const NodeCore::ReadReasons& action) {
    ReasonFiles::Paths paths{{}, output_.stderr_file(action.local_ranks.front())};
    for (const int local_rank : action.local_ranks) paths.error_files.push_back(output_.error_file(local_rank));
    reason_files_.read(std::move(paths), [this, number = action.number](const Reasons& reasons) {
      decide(NodeCore::ReasonsRead{number, reasons});
    });
  }

  void perform(const NodeCore::SendToWorker& action) {
    std::visit([&](const auto& message) { links_.send(action.local_rank, message); }, action.message);
  }

  void perform(const NodeCore::SendToWorkers& action) {
    std::visit([&](const auto& message) { links_.send_to_all(message); }, action.message);
  }

  void perform(const NodeCore::OpenOutput& action) {
    show_bindings();
    open_output(others_than(action.local_ranks), [this](std::exception_ptr error) {
      spawn_error_ = error;
      decide(NodeCore::OutputOpened{error ? std::optional(text_of(error)) : std::nullopt});
    });
  }

  void perform(const NodeCore::Spawn& action) {
    auto left = action.local_ranks;
    try {
      for (; !left.empty(); left.erase(left.begin())) spawn(left.front());
    } catch (const std::exception& error) {
      spawn_error_ = std::current_exception();
      // Not within the step that asked for them.
      asio::post(io_, [this, why = text_of(error), left] { decide(NodeCore::SpawnFailed{why, left}); });
    }
  }

  void perform(const NodeCore::Rethrow&) { std::rethrow_exception(spawn_error_); }

  void spawn(int local_rank) {
    const auto socket = links_.open(local_rank);
    const auto side = output_.worker_side(local_rank);
    guardian_.spawn(local_rank, variables_of(local_rank), {side[0], side[1], side[2], socket.get()});
    output_.worker_is_spawned(local_rank);
  }

  void perform(const NodeCore::Seat& action) {
    try {
      if (action.are_all) {
        show_bindings();
        open_output(action.local_ranks, [](std::exception_ptr) {});  // there is nothing to open
      }
    } catch (const std::exception& error) {
      return asio::post(io_, [this, why = text_of(error), local_ranks = action.local_ranks] {
        decide(NodeCore::SeatsFailed{why, local_ranks});
      });
    }
    for (const int local_rank : action.local_ranks) {
      worker_link::Seat seat;
      for (const auto& variable : variables_of(local_rank))
        seat.variables[name_of(variable)] = variable.substr(variable.find('=') + 1);
      links_.send(local_rank, seat);
    }
  }

  void open_output(const std::vector<int>& kept, Output::Opened opened) {
    const bool foreground = ::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
    output_.begin_round({run_id_, core_.round().round.number, core_.round().rank_first, config_.workers,
                         core_.round().world_size, config_.role, foreground},
                        kept, std::move(opened));
  }

  std::vector<std::string> variables_of(int local_rank) const {
    return worker_variables(
        assignment_of(core_.round(), config_, run_id_, core_.store_address()),
        {local_rank, output_.error_file(local_rank), core_share(local_rank), output_.round_directory()}, inherited_);
  }

  std::vector<int> others_than(const std::vector<int>& local_ranks) const {
    std::vector<int> out;
    for (int local_rank = 0; local_rank < config_.workers; ++local_rank)
      if (std::find(local_ranks.begin(), local_ranks.end(), local_rank) == local_ranks.end()) out.push_back(local_rank);
    return out;
  }

  // Once, and again where the workers' ranks are new.
  void show_bindings() {
    if (!config_.binding.display ||
        std::exchange(shown_rank_first_, core_.round().rank_first) == core_.round().rank_first)
      return;
    for (std::size_t i = 0; i < bindings_.size(); ++i)
      print("rank " + std::to_string(core_.round().rank_first + static_cast<int>(i)) + ": " + describe(bindings_[i]));
  }

  std::optional<int> core_share(int local_rank) const {
    return bindings_.empty() ? std::nullopt : bindings_[static_cast<std::size_t>(local_rank)].core_share;
  }

  static std::string text_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& what) {
      return text_of(what);
    }
  }

  static std::string text_of(const std::exception& error) {
    const auto* usage = dynamic_cast<const UsageError*>(&error);
    return error.what() + (usage == nullptr ? "" : " (" + usage->where() + ")");
  }

  void perform(const SignalWorker& action) { guardian_.signal_worker(action.local_rank, action.signal_number); }
  void perform(const KillWorker& action) { guardian_.kill_worker(action.local_rank); }
  void perform(const SignalTree& action) { guardian_.signal_tree(action.signal_number); }
  void perform(const KillOrphans&) { guardian_.kill_orphans(); }
  void perform(const KillTree&) { guardian_.kill_tree(); }
  void perform(const NodeCore::ForwardSignal& action) { guardian_.forward(action.signal_number); }
  void perform(const NodeCore::ForgetTree&) { guardian_.give_up(); }

  void perform(const NodeCore::SetFarewell& action) {
    const auto there = action.is_wanted ? meeting_.whereabouts() : std::nullopt;
    guardian_.set_farewell(there ? guardian::Farewell{node_key_, there->address, there->port} : guardian::Farewell{});
  }

  void perform(const NodeCore::OpenStore& action) {
    try {
      store_.begin_round(action.users);
      meeting_.drop_pending();
      decide(NodeCore::StoreIsOpen{action.round, meeting_.store_port()});
    } catch (const Error& error) {
      decide(NodeCore::StoreFailed{error.what()});
    }
  }

  void perform(const NodeCore::CloseOutput& action) {
    output_.end_round(action.kept, [this] { decide(NodeCore::OutputWritten{}); });
  }

  // A launcher that started this one reads the reason where it reads that of any worker.
  void perform(const NodeCore::TellCaller& action) {
    const auto path = value_of("TORCHELASTIC_ERROR_FILE", inherited_);
    if (!path || path->empty()) return;
    const auto& cause = action.cause;
    reason_files_.pass_on({action.is_own ? output_.error_file(cause.local_rank) : "",
                           cause.ending.kind == Ending::Kind::killed ? -cause.ending.value : exit_code_of(cause.ending),
                           describe_failure(cause)},
                          *path);
  }

  void perform(const NodeCore::Finish& action) {
    exit_code_ = action.exit_code;
    store_.stop();
    meeting_.finish([this] { output_.when_drained([this] { io_.stop(); }); });
  }

  void perform(const NodeCore::Quit&) { io_.stop(); }

  // The tree has stopped already. Now this process does, and its shell sees that.
  void perform(const NodeCore::SuspendProcess&) {
    suspend_this_process();
    decide(NodeCore::ContinueSignalled{});  // also where nobody could have continued us
    output_.resize();
  }

  // One line, whatever others have put into it. is_limited: they can cause it without end.
  void print(const std::string& line, bool is_limited = false) {
    if (is_limited) return limited_log_(line);
    log_.note(line);
    output_.say("ddprun: " + base::printable(line));
  }

  const LaunchConfig& config_;
  const std::vector<std::string>& inherited_;  // ddprun's own environment
  const std::vector<Binding> bindings_;        // of each worker; empty: none is bound
  const RoundId term_ = rendezvous::begin_term();
  const std::string run_id_ = run_id_of(config_, term_);
  const std::string node_key_ = base::random_key();
  NodeCore core_;
  ScratchDirectory scratch_;
  const std::optional<ReportFile> report_file_;
  const sigset_t taken_in_;  // the signals that signals_ tells of
  asio::io_context io_{1};
  const std::shared_ptr<const security::Security> security_;  // none without a token
  GuardianLink guardian_;  // forked before anything of the event loop is in use, and before any thread
  OwnSignals signals_;
  asio::steady_timer timer_;
  WorkerLinks links_;
  Output output_;
  AgentLog log_{config_.log_level, run_id_, [this](const std::string& line) { output_.log(line); }};
  ReasonFiles reason_files_{io_};
  base::WarningLog warnings_;
  base::BoundedLog limited_log_{io_, [this](const std::string& line) { print(line); }};
  store::Server store_;
  Meeting meeting_;
  std::exception_ptr spawn_error_;  // the last one
  int exit_code_ = 1;
  int shown_rank_first_ = -1;  // by --display-binding
};

}  // namespace

int run_job(const LaunchConfig& config, const std::vector<std::string>& environment) {
  return Agent(config, environment).run();
}

}  // namespace ddp::launcher
