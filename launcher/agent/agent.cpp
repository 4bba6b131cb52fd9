#include "launcher/agent/agent.hpp"

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <ctime>
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
#include "launcher/agent/failure_details.hpp"
#include "launcher/agent/guardian_link.hpp"
#include "launcher/agent/guardian_start.hpp"
#include "launcher/agent/guarded_loop.hpp"
#include "launcher/agent/hello.hpp"
#include "launcher/agent/last_words.hpp"
#include "launcher/agent/link_trial.hpp"
#include "launcher/agent/local_workers.hpp"
#include "launcher/agent/meeting.hpp"
#include "launcher/agent/own_process.hpp"
#include "launcher/agent/own_signals.hpp"
#include "launcher/agent/part_options.hpp"
#include "launcher/agent/reason_files.hpp"
#include "launcher/agent/report_file.hpp"
#include "launcher/agent/round_list.hpp"
#include "launcher/agent/worker_links.hpp"
#include "launcher/binding/worker_bindings.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/gpu_faults/gpu_watch.hpp"
#include "launcher/guardian/cgroup.hpp"
#include "launcher/node/event_order.hpp"
#include "launcher/node/log_events.hpp"
#include "launcher/node/node_core.hpp"
#include "launcher/node/node_words.hpp"
#include "launcher/output/log_tree.hpp"
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
  Agent(const LaunchConfig& config, const std::vector<std::string>& environment, const ReportPipe& report_pipe)
      : config_(config),
        inherited_(environment),
        report_pipe_(report_pipe),
        bindings_(worker_bindings(config, environment)),
        core_(node_options(config)),
        report_file_(config.report_file.empty() ? nullptr : std::make_shared<const ReportFile>(config.report_file)),
        taken_in_(signals_to_take_in(config.stop_signals, config.forward_signals,
                                     config.in_slurm_step || !config.slurm_step.empty())),
        security_(security_of(config)),
        guardian_(prepare_guardian(config, environment, bindings_, scratch_.path(), cgroup_.path(), security_,
                                   taken_in_, report_pipe.fd()),
                  config.workers),
        signals_(io_, taken_in_, config.forward_signals,
                 {[this](const NodeCore::Event& event) { decide(event); }, [this] { guardian_.child_ended(); },
                  [this] { output_.resize(); }}),
        timer_(io_),
        links_(io_, config.workers,
               {[this](int local_rank, const worker_link::FromWorker& message) {
                  decide(NodeCore::WorkerSaid{local_rank, message});
                },
                [this](int local_rank, LinkFault fault) {
                  decide(NodeCore::WorkerLinkLost{local_rank, fault});
                }}),
        output_(io_, config.output, scratch_.path(), [this] { decide(NodeCore::OutputClosed{}); }),
        workers_(io_, {config, environment, bindings_, run_id_, core_, guardian_, links_, output_},
                 {[this](const NodeCore::Event& event) { decide(event); },
                  [this](const std::string& line) { print(line); }}),
        warnings_(io_, [this](const base::WarningLine& line) { print(line.text); }),
        store_(io_, store_options(config, std::ref(warnings_))),
        meeting_(
            io_, config, security_,
            hello_of(config, {run_id_, node_key_, started_, scratch_.ended_nodes()}, output_.highest_round(run_id_)),
            term_,
            [this](base::UniqueFd socket, const sockaddr_storage& peer) { store_.adopt(std::move(socket), peer); },
            warnings_,
            {[this](const rendezvous::ToAgent& message) {
               if (const auto* start = std::get_if<rendezvous::StartRound>(&message)) keep_round_before(*start);
               decide(NodeCore::MembershipSaid{message, meeting_.endpoint_host()});
             },
             [this](const rendezvous::LinkLost& why) { decide(NodeCore::MembershipLost{why}); },
             [this](const std::string& line) { print(line, !meeting_.serves_endpoint()); },
             [this](const rendezvous::Session::StopOrphans& stop) {
               decide(NodeCore::Orphaned{stop.why, stop.may_reseat});
             },
             {}},
            [this](const base::LogEvent& event, const base::LogFields& where) { log_.of_host(event, where); }) {
    ::signal(SIGPIPE, SIG_IGN);
  }

  int run() {
    for (const auto& notice : config_.notices) print(notice);
    log_({"guardian_cgroup", base::LogFields()
                                 .add_if_any("path", cgroup_.path())
                                 .add_if_any("why_not", cgroup_.why_not())
                                 .add("left_groups", cgroup_.swept_count())});
    signals_.listen();
    guardian_.listen(io_, {[this](const std::vector<WorkerGroupEvent>& events) { decide(events); },
                           [this](int signal_number) { decide(NodeCore::TreeHasSignal{signal_number}); },
                           [this](int workers) { decide(NodeCore::SignalForwarded{workers}); },
                           [this](const Ending& ending, pid_t pid, bool is_tree_left) {
                             decide(NodeCore::GuardianEnded{ending, pid, is_tree_left});
                           }});
    meeting_.start();
    perform(NodeCore::Actions{});  // sets the timer, if there is a time limit
    run_guarded([this] { io_.run(); }, [this] { return core_.has_spawned(); }, [this] { write_log(); });
    return exit_code_;
  }

 private:
  void write_log() {
    const auto& round = core_.round();
    const auto job = job_folder(run_id_, round.round.term == 0 ? started_ : round.job_started);
    complain(write_own_log(output_.own_log(job, base::host_name()), log_.take_kept()));
  }

  // May take some seconds, if a disk does not answer: nobody waits for the event loop any more.
  void write_last_files(bool keeps_log) {
    const RunEnd end{run_id_, exit_code_, core_.verdict(), rounds_.take()};
    complain(write_report_file(report_file_, end));
    if (core_.tells_of_job()) complain(write_report_beside_logs(output_.report(), end));
    if (keeps_log) write_log();
  }

  void complain(const std::string& text) {
    if (!text.empty()) output_.print(text);
  }

  void keep_round_before(const rendezvous::StartRound& start) {
    if (start.round_before && (report_file_ || output_.report()))
      rounds_.add(start.round_before->round, round_line(*start.round_before, start.why.value_or("")));
  }

  // --- what happens ---

  void decide(const NodeCore::Event& event) {
    if (comes_after_words_of_workers(event)) links_.hear_out();
    for (const auto& line : log_events_of(event)) log_(line);
    perform(core_.step(event, facts()));
  }

  NodeCore::Facts facts() const {
    return {Clock::now(), meeting_.job_time(), meeting_.serves_endpoint(), meeting_.is_joined(),
            meeting_.job_time_error()};
  }

  // --- what the core decides ---

  // What an action causes comes later, as an event of its own; only BeginStore and SuspendProcess have their answers at
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
  void perform(const NodeCore::PrintText& action) {
    if (action.is_error || !config_.output.is_quiet) print_text(action.text, action.is_report);
  }
  void perform(const NodeCore::PrintError& action) { print_text(error_text(action.error), action.is_report); }
  void perform(const NodeCore::PrintLogFolder&) { output_.print_where(); }

  void perform(const NodeCore::Send& action) { meeting_.send(action.message); }

  void perform(const NodeCore::SendRoundEnded& action) {
    meeting_.send(with_details(action.message, config_, guardian_, output_, gpu_watch_.faults(meeting_.job_time())));
  }

  void perform(const NodeCore::ReadReasons& action) {
    reason_files_.read(reason_paths(action.local_ranks, output_), [this, action](const Reasons& reasons) {
      decide(NodeCore::ReasonsRead{action.number, with_tails(reasons, action.local_ranks, output_)});
    });
  }

  void perform(const NodeCore::SetFarewell& action) {
    guardian::Farewell farewell{node_key_, {}};
    if (action.is_wanted)
      for (const auto& there : meeting_.farewell_targets()) farewell.to.push_back({there.address, there.port});
    guardian_.set_farewell(farewell);
  }

  void perform(const NodeCore::TryLinks& action) {
    link_trial_.emplace(io_, action.to, config_.rendezvous.heartbeat_timeout,
                        [this](bool do_work) { decide(NodeCore::LinksTried{do_work}); });
  }

  void perform(const NodeCore::WriteRecord&) {
    const auto& round = core_.round();
    record_file_.write(
        {run_id_, {node_key_, round.round, round.group_rank, round.group_world_size, round.nonce}, ::getpid()});
  }

  void perform(const NodeCore::BeginStore& action) {
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
    reason_files_.pass_on(root_cause_of(action, output_), value_of("TORCHELASTIC_ERROR_FILE", inherited_));
  }

  void perform(const NodeCore::Finish& action) {
    exit_code_ = rendezvous::exit_code_of(action.outcome);
    store_.stop();
    link_trial_.reset();
    meeting_.finish([this, keeps_log = action.keeps_log] {
      write_last_files(keeps_log);
      decide(NodeCore::Delivered{});
      output_.when_drained([this] { io_.stop(); });
    });
  }

  void perform(const NodeCore::Quit&) { io_.stop(); }

  // The tree has stopped already. Now this process does, and its shell sees that.
  void perform(const NodeCore::SuspendProcess&) {
    suspend_this_process();
    decide(NodeCore::ContinueSignalled{});  // also where nobody could have continued us
    output_.resize();
  }

  // Everything else concerns the workers.
  template <class Action>
  void perform(const Action& action) {
    workers_.perform(action);
  }

  void print_text(const std::string& text, bool is_report) {
    if (!is_report || !report_pipe_.write(text)) output_.print(text);
  }

  // One line, whatever others have put into it. is_limited: they can cause it without end.
  void print(const std::string& line, bool is_limited = false) {
    if (is_limited) return limited_log_(line);
    log_.note(line);
    if (!config_.output.is_quiet) output_.print("ddprun: " + base::printable(line));
  }

  const LaunchConfig& config_;
  const std::vector<std::string>& inherited_;  // ddprun's own environment
  const ReportPipe& report_pipe_;
  const std::vector<Binding> bindings_;  // of each worker; empty: none is bound
  const RoundId term_ = rendezvous::begin_term();
  const std::string run_id_ = run_id_of(config_, term_);
  const std::string node_key_ = base::random_key();
  const std::uint64_t started_ = static_cast<std::uint64_t>(std::time(nullptr));  // Unix seconds
  NodeCore core_;
  ScratchDirectory scratch_{run_id_};
  const guardian::GuardianCgroup cgroup_;
  const std::shared_ptr<const ReportFile> report_file_;  // or null
  const sigset_t taken_in_;                              // the signals that signals_ tells of
  asio::io_context io_{1};
  const std::shared_ptr<const security::Security> security_;  // none without a token
  GuardianLink guardian_;  // forked before anything of the event loop is in use, and before any thread
  const GpuWatch gpu_watch_{io_};
  OwnSignals signals_;
  asio::steady_timer timer_;
  WorkerLinks links_;
  Output output_;
  LocalWorkers workers_;
  AgentLog log_{config_.log_level, run_id_, [this](const std::string& line) { output_.log(line); }};
  ReasonFiles reason_files_{io_};
  RoundList rounds_{io_, scratch_.path() + "/rounds"};
  RecordFile record_file_{io_, scratch_};
  base::WarningLog warnings_;
  base::BoundedLog limited_log_{io_, [this](const std::string& line) { print(line); }};
  store::Server store_;
  Meeting meeting_;
  std::optional<LinkTrial> link_trial_;
  int exit_code_ = rendezvous::exit_code_of(rendezvous::outcome::NotStarted{});
};

}  // namespace

int run_job(const LaunchConfig& config, const std::vector<std::string>& environment, const ReportPipe& report_pipe) {
  return Agent(config, environment, report_pipe).run();
}

}  // namespace ddp::launcher
