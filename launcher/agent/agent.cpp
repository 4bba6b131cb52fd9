#include "launcher/agent/agent.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/address.hpp"
#include "base/host_name.hpp"
#include "base/line_log.hpp"
#include "base/printable.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "ddp/round.hpp"
#include "launcher/agent/assignment.hpp"
#include "launcher/agent/guardian_link.hpp"
#include "launcher/agent/meeting.hpp"
#include "launcher/agent/notices.hpp"
#include "launcher/agent/own_process.hpp"
#include "launcher/agent/report_file.hpp"
#include "launcher/agent/worker_links.hpp"
#include "launcher/binding/worker_bindings.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/output/error_file.hpp"
#include "launcher/output/output.hpp"
#include "launcher/worker_group/round_progress.hpp"
#include "launcher/worker_group/stop_vote.hpp"
#include "launcher/worker_group/summary.hpp"
#include "launcher/worker_group/worker_group.hpp"
#include "rendezvous/membership/membership.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using rendezvous::FailureReport;
using rendezvous::FinishJob;
using rendezvous::FirstStep;
using rendezvous::Hello;
using rendezvous::OpenStore;
using rendezvous::RoundEnded;
using rendezvous::RoundFailed;
using rendezvous::RoundStarted;
using rendezvous::StartRound;
using rendezvous::StopAsked;
using rendezvous::StopReady;
using rendezvous::StopRound;
using rendezvous::StoreOpened;
using rendezvous::Welcome;

// Slurm signals every process of a step within that.
constexpr std::chrono::milliseconds kSignalWindow{200};

std::string run_id_of(const RoundId& term) { return to_string(term).substr(0, to_string(term).rfind('-')); }

std::shared_ptr<const security::Security> security_of(const LaunchConfig& config) {
  const auto& tokens = config.rendezvous.tokens;
  return tokens ? std::make_shared<security::Security>(*tokens) : nullptr;
}

class Agent {
 public:
  Agent(const LaunchConfig& config, const std::vector<std::string>& environment)
      : config_(config),
        inherited_(environment),
        bindings_(worker_bindings(config, environment)),
        group_({config.workers, config.grace, config.in_slurm_step ? kSignalWindow : std::chrono::milliseconds(0)}),
        progress_(config.workers),
        report_file_(config.report_file.empty() ? std::nullopt : std::make_optional<ReportFile>(config.report_file)),
        signals_(signals_to_take_in(config.stop_signals, config.forward_signals,
                                    config.in_slurm_step || !config.slurm_step.empty())),
        security_(security_of(config)),
        guardian_(prepare(), config.workers),
        signal_source_(io_, open_signalfd(signals_)),
        timer_(io_),
        links_(io_, config.workers,
               {[this](int local_rank, const worker_link::ToAgent& message) {
                  std::visit([&](const auto& content) { take(local_rank, content); }, message);
                },
                [this](int local_rank, const std::string& why) {
                  say("rank " + std::to_string(start_.rank_first + local_rank) + ": " + why + "; it gets no new seat");
                  step({WorkerSaidHello{local_rank, false, false}});
                }}),
        output_(io_, config.output, scratch_.path(), [this] { reader_is_gone(); }),
        warnings_(io_, [this](const std::string& line) { say(line); }),
        store_(io_, store_options()),
        meeting_(io_, config, security_, hello(), term_,
                 [this](base::UniqueFd socket, const sockaddr_storage& peer) { store_.adopt(std::move(socket), peer); },
                 warnings_,
                 {[this](const rendezvous::ToAgent& message) {
                    std::visit([this](const auto& content) { take(content); }, message);
                  },
                  [this](const rendezvous::LinkLost& why) { membership_is_lost(why); },
                  [this](const std::string& line) { say_of_job(line); },
                  [this](const std::string& why) { stop_orphans(why); },
                  {}}) {
    ::signal(SIGPIPE, SIG_IGN);
  }

  int run() {
    for (const auto& notice : config_.notices) say(notice);
    wait_for_signals();
    guardian_.listen(
        io_, {[this](const std::vector<WorkerGroupEvent>& events) {
                hear_out(events);
                step(events);
              },
              [this](int signal_number) {
                if (signal_number == SIGSTOP && suspending_) stop_myself();  // unless continued meanwhile
              },
              [this](int workers) { say(warning_text(warning_, warned_by_, workers, group_.can_stop_at_step())); }});
    meeting_.start();
    io_.run();
    write_report();
    return exit_code_;
  }

 private:
  // Before the event loop and any thread: what concerns this process alone, and what its guardian is to know.
  guardian::GuardianOptions prepare() {
    guardian::GuardianOptions options{config_.command,  {}, {}, raise_descriptor_limit(), bindings_, scratch_.path(),
                                      ignored_signals()};
    if (security_) options.worker_core_limit = security::hide_memory();  // so the guardian's is too
    options.security = security_;
    for (const auto& variable : inherited_)
      if (!is_withheld(name_of(variable)) &&
          !(config_.virtual_local_rank && name_of(variable) == "CUDA_VISIBLE_DEVICES"))
        options.environment.push_back(variable);
    ::signal(SIGCHLD, SIG_DFL);  // whoever ignores it is not told how children end
    ::sigprocmask(SIG_BLOCK, &signals_, &options.worker_signal_mask);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    return options;
  }

  std::vector<int> ignored_signals() const {
    std::vector<int> out;
    for (const int number : config_.forward_signals)
      if (config_.in_slurm_step && is_ignored_by_workers(number)) out.push_back(number);
    return out;
  }

  store::ServerOptions store_options() {
    store::ServerOptions options;
    options.allow = config_.store_allow;
    options.total_bytes_max = static_cast<std::size_t>(config_.rendezvous.store_memory_mib) << 20;
    options.memory_option = "--rdzv-conf=store_memory";
    options.warn = std::ref(warnings_);
    return options;
  }

  Hello hello() const {
    Hello hello;
    hello.run_id = run_id_;
    hello.node_key = node_key_;
    hello.host_name = base::host_name();
    hello.node_rank = config_.rendezvous.node_rank;
    hello.nodes_min = config_.rendezvous.nodes_min;
    hello.nodes_max = config_.rendezvous.nodes_max;
    hello.workers = config_.workers;
    hello.role = config_.role;
    hello.local_address = config_.rendezvous.local_address;
    hello.highest_round = std::min(output_.highest_round(run_id_), rendezvous::kRoundWithLogsMax);
    hello.restarts_max = config_.restarts_max;
    hello.restart_window = config_.restart_window;
    hello.join_timeout = config_.rendezvous.join_timeout;
    hello.last_call_timeout = config_.rendezvous.last_call_timeout;
    hello.grace = config_.grace;
    hello.is_served_by_agent = config_.rendezvous.port_count > 1;
    hello.slurm_run = config_.rendezvous.slurm_run;
    hello.wants_report = report_file_.has_value();
    if (hello.nodes_max > 1) hello.addresses = rendezvous::own_addresses();
    hello.addresses.resize(std::min(hello.addresses.size(), rendezvous::kAddressesMax));
    return hello;
  }

  bool is_alone() const { return config_.rendezvous.nodes_max == 1; }

  // --- signals ---

  void reader_is_gone() {
    stop_announced_ = true;
    stop(SIGPIPE);
  }

  void wait_for_signals() {
    signal_source_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      signalfd_siginfo info;
      while (::read(signal_source_.native_handle(), &info, sizeof info) == sizeof info) take(info);
      wait_for_signals();
    });
  }

  void take(const signalfd_siginfo& info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) return check_guardian();
    if (number == SIGWINCH) return output_.resize();
    if (number == SIGTSTP && !is_alone())
      return say("ctrl-z suspends no job of several nodes: the others would take this one for dead");
    if (number == SIGTSTP || number == SIGCONT) {
      suspending_ = number == SIGTSTP;
      if (!finished_) guardian_.signal_tree(suspending_ ? SIGSTOP : SIGCONT);
      return;
    }
    const auto& forwarded = config_.forward_signals;
    if (std::find(forwarded.begin(), forwarded.end(), number) != forwarded.end()) {
      warning_ = number;
      warned_by_ = sender_of(info);
      guardian_.forward(number);
      step({WarningSignal{number}});
      return meeting_.send(StopAsked{number, true});
    }
    if (finished_) return io_.stop();  // only output that nobody reads was left
    if (!stop_announced_) {
      stop_announced_ = true;
      is_step_hoped_for_ = group_.stops_at_step(number);
      say(signal_name(number) + sender_of(info) + ": " +
          stop_text(config_.workers, group_.is_idle(), is_step_hoped_for_, config_.grace));
    }
    stop(number);
  }

  void stop(int signal_number) {
    // Nobody else would tell us that it is over.
    const bool is_outside = !meeting_.serves_endpoint() && (!in_job_ || !meeting_.is_joined());
    stop_signal_ = signal_number;
    // Without workers here this node waits for the others' verdict. Who serves the endpoint stays to tell them how it
    // ended; the third signal is for a node that never answers. A node alone has its verdict coming.
    if (group_.is_idle()) ++stops_while_waiting_;
    const bool is_last = !is_alone() && stops_while_waiting_ > (meeting_.serves_endpoint() ? 2 : 1);
    step({StopSignal{signal_number}});
    meeting_.send(StopAsked{signal_number});
    if (group_.is_idle() && (is_outside || is_last)) end_with(128 + signal_number);
  }

  // The guardian is not to end before us. Then its workers died with it, and what they left is ours to end.
  void check_guardian() {
    const auto pid = guardian_.pid();
    const auto ending = guardian_.reap();
    if (!ending || finished_) return;
    output_.end_round();
    say_error({"ddprun's guardian process " + describe(*ending) + "; " + count_of_workers() +
                   (config_.workers == 1 ? " was" : " were") + " ended with it",
               "host " + base::host_name() + ", pid " + std::to_string(pid),
               "find who sent it the signal: memory limits and `kill` reach every process of a job"});
    finish(std::max(1, exit_code_of(*ending)));
  }

  // --- what membership says ---

  // From here on this node's guardian can tell the others of its end.
  void take(const Welcome& message) {
    if (message.is_spare)
      say_of_job("the job has the " + rendezvous::counted(config_.rendezvous.nodes_max, "node") +
                 " that it takes: this one is a spare, and waits until it is needed");
    const auto there = meeting_.whereabouts();
    guardian_.set_farewell(there ? guardian::Farewell{node_key_, there->address, there->port} : guardian::Farewell{});
  }

  // These two are its session's alone.
  void take(const rendezvous::Elsewhere&) {}
  void take(const rendezvous::Refused&) {}
  void take(const rendezvous::RoundEstablished&) {}

  void take(const rendezvous::PrepareStop& message) {
    if (message.round != start_.round.number) return;
    vote_.ask(message.is_warning);
    vote();
  }

  void take(const rendezvous::StopAt& message) {
    if (message.round != start_.round.number || group_.is_idle()) return;
    if (std::exchange(stop_call_, message.call) != message.call && group_.can_stop_at_step())
      say_of_job(step_text(config_.workers, message.call));
    links_.send_to_all(worker_link::StopAt{message.round, message.call});
    if (message.signal_number != 0) step({StopAtStep{}});
  }

  void take(const OpenStore& message) {
    in_job_ = true;
    if (std::exchange(opening_, message.round) != message.round) store_users_.clear();
    for (const auto& text : message.allow) {
      const auto address = base::parse_address(text);
      if (address) store_users_.insert(*address);
      // The user alone can open the store to more than the job's nodes (--store-allow).
      if (!address || store_users_.size() > rendezvous::kRoundAddressesMax)
        return membership_is_lost({"the endpoint wants the store to be open to more than the addresses of nodes",
                                   "opening the store of the job, which this node is to serve",
                                   "find out what serves the endpoint: no ddprun or ddp-rendezvous wants that"});
    }
    if (!message.is_last) return;
    try {
      store_.begin_round(std::exchange(store_users_, {}));
      meeting_.drop_pending();
      meeting_.send(StoreOpened{message.round.number, meeting_.store_port()});
    } catch (const Error& error) {
      membership_is_lost({error.what(), "opening the store of the job, which this node is to serve",
                          "`--port-range=A-B` with free ports"});
    }
  }

  void take(const StartRound& message) {
    in_job_ = true;
    const bool had_a_round = start_.round.term != 0, cost_a_restart = message.restart_count > start_.restart_count;
    start_ = message;
    stop_why_.clear();
    stop_call_.reset();
    vote_.begin_round();
    progress_.begin_round();
    if (!message.why.empty() && had_a_round)
      say_of_job(message.why + ": " +
                 how_it_goes_on(config_.workers, static_cast<int>(group_.waiting().size()), is_alone()) +
                 (cost_a_restart ? restart_text(message, config_.restart_window) : ""));
    if (!is_alone())
      say_of_job("round " + std::to_string(message.round.number) + ": node " + std::to_string(message.group_rank) +
                 " of " + std::to_string(message.group_world_size) + ", " +
                 ranks_text(message.rank_first, config_.workers) + " of " + std::to_string(message.world_size) +
                 ", store at " + master_address() + ":" + std::to_string(message.master_port));
    step({BeginRound{}});
  }

  void take(const StopRound& message) {
    if (message.round != start_.round.number) return;
    if (!message.why.empty()) stop_why_ = message.why;
    if (!message.why.empty() && !group_.is_idle() && !stop_announced_ && !is_alone())
      say_of_job(message.why + ": " + count_of_workers() + " of this node " + (config_.workers == 1 ? "is" : "are") +
                 " stopped");
    StopWorkers stop{message.signal_number, message.kill, message.reseat, {}};
    for (const int rank : message.hung_ranks) {
      const int local_rank = rank - start_.rank_first;
      if (local_rank >= 0 && local_rank < config_.workers) stop.hung.push_back(local_rank);
    }
    step({stop});
  }

  void take(const FinishJob& message) {
    const auto summary = job_summary(message);
    const bool is_known = !message.cause && stop_announced_ && message.try_this.empty();
    const bool is_error = message.cause || !message.try_this.empty();
    if (!summary.empty() && (!is_known || message.exit_code == rendezvous::kStoppedAtStep))
      output_.say((is_error ? "" : "ddprun: ") + summary);
    if (message.cause) tell_caller(*message.cause);
    report_ = message.report;
    if (report_ && report_->rounds_count > 1 && start_.round.term != 0 && start_.group_rank == 0)
      output_.say("ddprun: " + describe(*report_));
    guardian_.set_farewell({});  // nobody waits for it
    end_with(message.exit_code);
  }

  // When nothing else is left to do: however slow the disk, nobody waits for it.
  void write_report() const {
    // A node that heard no verdict has little to say, and another one's report may be in this file.
    if (!report_file_ || (!report_ && !report_file_->is_empty())) return;
    try {
      report_file_->write(report_json(run_id_, exit_code_, report_));
    } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << "\nwhere: --report\ntry:   free some space there, or another file\n";
    }
  }

  // Workers that are left, be it that they wait for a seat, get the same stop as ever, and what they print is still
  // shown.
  void end_with(int exit_code) {
    if (group_.waiting().empty() && group_.is_idle()) return finish(exit_code);
    verdict_ = exit_code;
    step({EndJob{}});
  }

  // A launcher that started this one reads the reason where it reads that of any worker.
  void tell_caller(const FailureReport& cause) const {
    const bool is_ours = cause.round == start_.round.number && cause.local_rank < config_.workers &&
                         cause.rank == start_.rank_first + cause.local_rank;
    const auto path = value_of("TORCHELASTIC_ERROR_FILE", inherited_);
    if (!path || path->empty()) return;
    pass_error_on({is_ours ? output_.error_file(cause.local_rank) : "",
                   cause.ending.kind == Ending::Kind::killed ? -cause.ending.value : exit_code_of(cause.ending),
                   describe_failure(cause)},
                  *path);
  }

  // The others may have gone on without this node, which looks for them.
  void stop_orphans(const std::string& why) {
    if (finished_ || group_.is_idle()) return;
    say(why + ": " + count_of_workers() + " of this node " + (config_.workers == 1 ? "is" : "are") + " stopped");
    step({StopWorkers{SIGTERM}});
  }

  // Nobody tells us any more what the job does: its workers here are stopped.
  void membership_is_lost(const rendezvous::LinkLost& why) {
    if (finished_ || lost_ || verdict_) return;
    lost_ = true;
    guardian_.set_farewell({});
    if (stop_signal_ != 0 && group_.is_idle()) return end_with(128 + stop_signal_);  // nobody is left to tell more
    say_error(why);
    if (group_.is_idle()) return end_with(rendezvous::kRendezvousFailed);
    step({StopWorkers{SIGTERM}});
  }

  // --- what workers say ---

  // What workers that have ended said before goes before their end.
  void hear_out(const std::vector<WorkerGroupEvent>& events) {
    for (const auto& event : events)
      if (const auto* ended = std::get_if<WorkerEnded>(&event)) links_.hear_out(ended->local_rank);
  }

  void take(int local_rank, const worker_link::Hello& message) {
    const bool is_known = message.version == worker_link::kVersion;
    step({WorkerSaidHello{local_rank, message.takes_seats && is_known, message.takes_stops && is_known}});
  }

  void take(int local_rank, const worker_link::Left& message) {
    if (message.round != start_.round.number) return;
    step({WorkerLeft{local_rank, base::printable(message.why), message.hung_ranks}});
  }

  void take(int local_rank, const worker_link::Progress& message) {
    if (message.round != start_.round.number) return;
    if (progress_.take(local_rank, message)) meeting_.send(FirstStep{message.round});
  }

  void take(int local_rank, const worker_link::StopReady& message) {
    if (message.round != start_.round.number) return;
    vote_.answer(local_rank, message.call);
    vote();
  }

  void take(int local_rank, const worker_link::Stopping& message) {
    if (message.round == start_.round.number) step({WorkerStopping{local_rank}});
  }

  void vote() {
    const auto next = vote_.next(group_.voters());
    for (const int local_rank : next.ask) links_.send(local_rank, worker_link::PrepareStop{start_.round.number});
    if (next.answer) meeting_.send(StopReady{start_.round.number, next.answer->call});
  }

  // --- what the worker group decides ---

  void step(const std::vector<WorkerGroupEvent>& events) { perform(group_.step(events, Clock::now())); }

  void perform(const WorkerGroup::Actions& actions) {
    if (finished_) return;
    for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
    vote();
    const auto deadline = group_.next_deadline();
    timer_.cancel();
    if (!deadline || finished_) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](error_code error) {
      if (!error) perform(group_.tick(Clock::now()));
    });
  }

  void perform(const SpawnWorkers& action) {
    show_bindings();
    auto left = action.local_ranks;
    try {
      open_output(others_than(action.local_ranks));
      for (; !left.empty(); left.erase(left.begin())) spawn(left.front());
    } catch (const std::exception& error) {
      if (is_alone() && !has_spawned_) throw;
      fail_to_spawn(error, left);
    }
  }

  void spawn(int local_rank) {
    const auto socket = links_.open(local_rank);
    const auto side = output_.worker_side(local_rank);
    guardian_.spawn(local_rank, variables_of(local_rank), {side[0], side[1], side[2], socket.get()});
    output_.worker_is_spawned(local_rank);
    has_spawned_ = true;
  }

  void perform(const SeatWorkers& action) {
    try {
      if (static_cast<int>(action.local_ranks.size()) == config_.workers) {
        show_bindings();
        open_output(action.local_ranks);
      }
    } catch (const std::exception& error) {
      return fail_to_seat(error, action.local_ranks);
    }
    for (const int local_rank : action.local_ranks) {
      worker_link::Seat seat;
      for (const auto& variable : variables_of(local_rank))
        seat.variables[name_of(variable)] = variable.substr(variable.find('=') + 1);
      links_.send(local_rank, seat);
    }
  }

  void open_output(const std::vector<int>& kept) {
    const bool foreground = ::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
    output_.begin_round(
        {run_id_, start_.round.number, start_.rank_first, config_.workers, start_.world_size, config_.role, foreground},
        kept);
  }

  std::vector<std::string> variables_of(int local_rank) const {
    return worker_variables(
        assignment_of(start_, config_, run_id_, master_address()),
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
    if (!config_.binding.display || std::exchange(shown_rank_first_, start_.rank_first) == start_.rank_first) return;
    for (std::size_t i = 0; i < bindings_.size(); ++i)
      say("rank " + std::to_string(start_.rank_first + static_cast<int>(i)) + ": " + describe(bindings_[i]));
  }

  std::optional<int> core_share(int local_rank) const {
    return bindings_.empty() ? std::nullopt : bindings_[static_cast<std::size_t>(local_rank)].core_share;
  }

  static std::string text_of(const std::exception& error) {
    const auto* usage = dynamic_cast<const UsageError*>(&error);
    return error.what() + (usage == nullptr ? "" : " (" + usage->where() + ")");
  }

  // The others are told why, and end as this node does.
  void fail_to_spawn(const std::exception& error, const std::vector<int>& local_ranks) {
    why_not_spawned_ = text_of(error);
    std::vector<WorkerGroupEvent> events;
    for (const int local_rank : local_ranks)
      events.emplace_back(WorkerEnded{local_rank, {Ending::Kind::not_started, EIO, false}});
    events.emplace_back(TreeEmpty{});
    asio::post(io_, [this, events] { step(events); });  // not within the step that asked for them
  }

  // They wait on, and the round ends as if they had left it at once.
  void fail_to_seat(const std::exception& error, const std::vector<int>& local_ranks) {
    std::vector<WorkerGroupEvent> events;
    for (const int local_rank : local_ranks) events.emplace_back(WorkerLeft{local_rank, text_of(error), {}});
    asio::post(io_, [this, events] { step(events); });
  }

  void perform(const TellRoundOver& action) {
    for (const int local_rank : action.local_ranks)
      links_.send(local_rank, worker_link::RoundOver{start_.round.number, stop_why_});
  }

  void perform(const SignalTree& action) {
    const auto count = static_cast<int>(group_.voters().size());
    if (std::exchange(is_step_hoped_for_, false) && count > 0)
      say(no_step_text(count, action.signal_number, stop_why_));
    links_.send_to_all(worker_link::Stop{stop_why_});
    guardian_.signal_tree(action.signal_number);
  }

  void perform(const SignalWorker& action) {
    links_.send(action.local_rank, worker_link::Stop{stop_why_});
    guardian_.signal_worker(action.local_rank, action.signal_number);
  }

  void perform(const KillWorker& action) { guardian_.kill_worker(action.local_rank); }
  void perform(const KillOrphans&) { guardian_.kill_orphans(); }
  void perform(const KillTree&) { guardian_.kill_tree(); }

  void perform(const TellStarted&) { meeting_.send(RoundStarted{start_.round.number}); }

  void perform(const TellFailure& action) {
    FailureReport report;
    report.rank = start_.rank_first + action.failure.local_rank;
    report.ending = action.failure.ending;
    report.after = action.failure.after;
    stop_why_ = describe_failure(report) + " on host " + base::host_name();
    if (!action.failure.message.empty()) stop_why_ += " (" + action.failure.message + ")";
    meeting_.send(RoundFailed{start_.round.number, stop_why_, action.hung_ranks, job_time_at(action.failure.at)});
  }

  void perform(const TellEnded& action) {
    output_.end_round(group_.waiting());
    if (action.tree_survived) {
      guardian_.give_up();
      say_error({"some processes of the job could not be killed: they hang in the kernel", "host " + base::host_name(),
                 "`ps -eo pid,stat,wchan,args | grep ' D'` shows them; they end when the kernel lets them"});
    }
    if (verdict_) return finish(*verdict_);
    if (lost_) return end_with(rendezvous::kRendezvousFailed);
    // Nobody waits for more; but that all have kept their state is worth telling, once the connection is there again.
    if (stop_signal_ != 0 && !meeting_.is_joined() && action.stopped_at_step == 0) return end_with(128 + stop_signal_);
    RoundEnded ended{start_.round.number, {}, action.stopped, action.tree_survived, action.stopped_at_step,
                     progress_.kept()};
    if (action.signalled) {
      ended.signal_number = action.signalled->signal_number;
      ended.signalled_at = job_time_at(action.signalled->at);
    }
    for (const auto& failure : action.failures) {
      if (ended.failures.size() == rendezvous::kFailuresMax) break;
      ended.failures.push_back(report_of(failure, ended.failures.empty()));
    }
    meeting_.send(ended);
  }

  // --- helpers ---

  FailureReport report_of(const Failure& failure, bool with_stderr) const {
    FailureReport report;
    report.rank = start_.rank_first + failure.local_rank;
    report.local_rank = failure.local_rank;
    report.host = base::host_name();
    report.pid = guardian_.pid_of(failure.local_rank);
    report.program = config_.program;
    report.ending = failure.ending;
    report.round = start_.round.number;
    report.after = failure.after;
    report.job_time = job_time_at(failure.at);
    report.message =
        why_not_spawned_.empty() ? read_error_file(output_.error_file(failure.local_rank)) : why_not_spawned_;
    if (!failure.message.empty()) report.message = failure.message;
    report.stderr_file = output_.stderr_file(failure.local_rank);
    if (with_stderr) report.stderr_tail = output_.stderr_tail(failure.local_rank);
    return report;
  }

  std::chrono::milliseconds job_time_at(TimePoint time) const {
    return meeting_.job_time() - std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - time);
  }

  // How this node's workers reach the store: as membership says, else as this node reached the endpoint.
  std::string master_address() const {
    if (!start_.master_address.empty()) return start_.master_address;
    const auto host = meeting_.endpoint_host();
    return host.empty() ? "127.0.0.1" : host;
  }

  void finish(int exit_code) {
    if (std::exchange(finished_, true)) return;
    exit_code_ = exit_code;
    timer_.cancel();
    store_.stop();
    meeting_.finish([this] { output_.when_drained([this] { io_.stop(); }); });
  }

  // As a terminal's ctrl-z: the tree has stopped already, now this process does, and its shell sees it.
  void stop_myself() {
    sigset_t suspend;
    sigemptyset(&suspend);
    sigaddset(&suspend, SIGTSTP);
    ::kill(::getpid(), SIGTSTP);
    ::sigprocmask(SIG_UNBLOCK, &suspend, nullptr);  // stops here, until SIGCONT
    ::sigprocmask(SIG_BLOCK, &suspend, nullptr);
    if (!finished_) guardian_.signal_tree(SIGCONT);  // also where nobody could have continued us
    output_.resize();
  }

  std::string count_of_workers() const { return all_workers(config_.workers); }

  // One line, whatever others have put into it.
  void say(const std::string& line) { output_.say("ddprun: " + base::printable(line)); }

  // What membership tells. One on another node may tell it without end.
  void say_of_job(const std::string& line) {
    if (meeting_.serves_endpoint())
      say(line);
    else
      log_of_job_(line);
  }

  void say_error(const rendezvous::LinkLost& error) {
    output_.say("error: " + base::printable(error.what) + "\nwhere: " + base::printable(error.where) +
                "\ntry:   " + base::printable(error.try_this));
  }

  const LaunchConfig& config_;
  const std::vector<std::string>& inherited_;  // ddprun's own environment
  const std::vector<Binding> bindings_;        // of each worker; empty: none is bound
  const RoundId term_ = rendezvous::begin_term();
  const std::string run_id_ = config_.rendezvous.run_id.empty() ? run_id_of(term_) : config_.rendezvous.run_id;
  const std::string node_key_ = base::random_key();
  WorkerGroup group_;
  StopVote vote_;
  RoundProgress progress_;
  ScratchDirectory scratch_;
  const std::optional<ReportFile> report_file_;
  sigset_t signals_;
  asio::io_context io_{1};
  const std::shared_ptr<const security::Security> security_;  // none without a token
  GuardianLink guardian_;  // forked before anything of the event loop is in use, and before any thread
  asio::posix::stream_descriptor signal_source_;
  asio::steady_timer timer_;
  WorkerLinks links_;
  Output output_;
  base::WarningLog warnings_;
  base::BoundedLog log_of_job_{io_,
                               [this](const std::string& line) { say(line); }};  // what an endpoint elsewhere can cause
  store::Server store_;
  Meeting meeting_;
  RoundId opening_;                      // the round whose store is asked for
  std::set<base::Address> store_users_;  // as far as they have been told
  StartRound start_;                     // the current round, or the last one
  int exit_code_ = 1;
  std::optional<rendezvous::RunReport> report_;
  int shown_rank_first_ = -1;               // by --display-binding
  std::string why_not_spawned_;             // any worker of the round
  std::string stop_why_;                    // why the round is being stopped, as far as it is known here
  std::optional<std::uint64_t> stop_call_;  // of should_stop(), at which the round's workers are to stop
  std::optional<int> verdict_;              // once the job has ended, while workers that are left are stopped
  int stops_while_waiting_ = 0;
  int stop_signal_ = 0;  // that this ddprun was told to stop by
  int warning_ = 0;      // that came last, and from whom
  std::string warned_by_;
  bool in_job_ = false;             // membership counts this node in
  bool has_spawned_ = false;        // a worker, in whatever round
  bool is_step_hoped_for_ = false;  // the user was told that the workers are asked for one
  bool finished_ = false, stop_announced_ = false, suspending_ = false, lost_ = false;
};

}  // namespace

int run_job(const LaunchConfig& config, const std::vector<std::string>& environment) {
  return Agent(config, environment).run();
}

}  // namespace ddp::launcher
