#include "launcher/agent/agent.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "ddp/round.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/guardian/guardian.hpp"
#include "launcher/guardian/process_tree.hpp"
#include "launcher/guardian/protocol.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/error_file.hpp"
#include "launcher/output/worker_streams.hpp"
#include "launcher/worker_group/summary.hpp"
#include "launcher/worker_group/worker_group.hpp"
#include "rendezvous/io/pidfd.hpp"
#include "rendezvous/port/port.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr int kKillLimitMs = 30'000;
constexpr const char* kMasterAddress = "127.0.0.1";  // one node: nobody else has business with the store

// Signals that the agent takes in, less those that were ignored at the start (nohup): they stay ignored, for the workers
// too. A blocked signal reaches a signalfd even where it is ignored, so those must not be in the set.
sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN || number == SIGCHLD) sigaddset(&set, number);
  }
  return set;
}

std::string name_of(const std::string& variable) { return variable.substr(0, variable.find('=')); }

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

// Each worker costs ddprun two streams, a pidfd and the connections of its store clients. Returns the limit before, which
// the workers get back.
rlimit raise_descriptor_limit() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

int checked(int fd, const char* what) {
  if (fd < 0) throw std::system_error(errno, std::generic_category(), what);
  return fd;
}

// A folder of this run for files that workers leave for the agent; gone with the run.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const char* parent = std::getenv("TMPDIR");
    path_ = std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/ddprun_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr)
      throw UsageError("the folder " + path_ + " can't be made: " + std::strerror(errno), "environment variable TMPDIR",
                       "`TMPDIR=/tmp`, or any folder that you can write to");
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Worker {
  pid_t pid = 0;
  io::UniqueFd pidfd;
  std::shared_ptr<WorkerStreams> streams;
};

class Agent {
 public:
  Agent(const LaunchConfig& config, const std::vector<std::string>& environment)
      : config_(config),
        inherited_(environment),
        group_({config.workers, config.restarts_max, config.grace}),
        signals_(handled_signals()),
        guardian_(start(environment)),
        console_(io_, {config.output.prefix_lines, [this] { reader_is_gone(); }}),
        store_(io_, store_options()),
        port_(io_, port_options(), {.store = [this](io::UniqueFd socket, const sockaddr_storage& peer) {
          store_.adopt(std::move(socket), peer);
        }}),
        signal_source_(io_, checked(::signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK), "signalfd")),
        guardian_source_(io_, checked(::fcntl(guardian_.socket.get(), F_DUPFD_CLOEXEC, 3), "the guardian's socket")),
        timer_(io_),
        workers_(static_cast<std::size_t>(config.workers)) {}

  int run() {
    for (const auto& notice : config_.notices) say(notice);
    wait_for_signals();
    wait_for_guardian();
    perform(group_.start(Clock::now()));
    io_.run();
    return exit_code_;
  }

  // Whatever happened: nothing of the job outlives this object. The guardian ends when its tree is empty.
  ~Agent() {
    if (guardian_.pid == 0) return;  // it has ended, and check_guardian() has done the rest
    ::kill(guardian_.pid, SIGCONT);
    ::shutdown(guardian_.socket.get(), SHUT_RDWR);
    const io::UniqueFd ended = io::open_pidfd(guardian_.pid);
    pollfd wait{ended.get(), POLLIN, 0};
    if (::poll(&wait, 1, tree_survived_ ? 0 : kKillLimitMs) != 1) {
      ::kill(guardian_.pid, SIGKILL);
      kill_all_children(foreign_children_, tree_survived_ ? 0 : kKillLimitMs);
    }
    ::waitpid(guardian_.pid, nullptr, WNOHANG);
  }
  Agent(const Agent&) = delete;

 private:
  // Before the event loop and any thread: the fork of the guardian, then what concerns this process alone.
  guardian::GuardianHandle start(const std::vector<std::string>& environment) {
    guardian::GuardianOptions options{config_.command, {}, {}, raise_descriptor_limit(), scratch_.path()};
    for (const auto& variable : environment)
      if (!is_withheld(name_of(variable)) &&
          !(config_.virtual_local_rank && name_of(variable) == "CUDA_VISIBLE_DEVICES"))
        options.environment.push_back(variable);
    ::signal(SIGCHLD, SIG_DFL);  // whoever ignores it is not told how children end
    ::sigprocmask(SIG_BLOCK, &signals_, &options.worker_signal_mask);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    auto handle = guardian::start_guardian(options);
    ::signal(SIGPIPE, SIG_IGN);
    return handle;
  }

  store::ServerOptions store_options() {
    store::ServerOptions options;
    options.allow = config_.store_allow;
    options.warn = [this](const std::string& message) { say(message); };
    return options;
  }

  port::PortOptions port_options() {
    port::PortOptions options;
    options.addresses = {kMasterAddress};
    options.warn = [this](const std::string& message) { say(message); };
    return options;
  }

  // --- events ---

  void reader_is_gone() {
    stop_announced_ = true;
    step({StopSignal{SIGPIPE}});
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
    if (number == SIGWINCH) return resize();
    if (number == SIGTSTP || number == SIGCONT) {
      suspending_ = number == SIGTSTP;
      return request({guardian::RequestKind::signal_tree, 0, suspending_ ? SIGSTOP : SIGCONT, {}});
    }
    if (finished_) return io_.stop();  // only output that nobody reads was left
    if (!stop_announced_) {
      stop_announced_ = true;
      const auto sender = info.ssi_code == SI_USER ? " from pid " + std::to_string(info.ssi_pid) + " (uid " +
                                                         std::to_string(info.ssi_uid) + ")"
                                                   : std::string();
      say(signal_name(number) + sender + ": stopping " + count_of_workers() + ", with SIGKILL after " +
          describe_duration(config_.grace) + " or at a second signal");
    }
    step({StopSignal{number}});
  }

  void wait_for_guardian() {
    guardian_source_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      bool closed = false;
      std::vector<WorkerGroupEvent> events;
      while (auto reports = guardian::receive_reports(guardian_source_.native_handle(), closed)) {
        auto pidfd = reports->descriptors.begin();
        for (const auto& report : reports->content) {
          const bool has_pidfd = report.kind == guardian::ReportKind::spawned && report.value == 1 &&
                                 pidfd != reports->descriptors.end();
          take(report, has_pidfd ? std::move(*pidfd++) : io::UniqueFd(), events);
        }
      }
      if (!events.empty()) step(events);
      if (closed) return check_guardian();
      wait_for_guardian();
    });
  }

  void take(const guardian::Report& report, io::UniqueFd pidfd, std::vector<WorkerGroupEvent>& events) {
    auto& worker = workers_.at(static_cast<std::size_t>(report.local_rank));
    switch (report.kind) {
      case guardian::ReportKind::spawned:
        worker.pid = report.pid;
        worker.pidfd = std::move(pidfd);
        break;
      case guardian::ReportKind::not_spawned:
        events.push_back(WorkerEnded{report.local_rank, {Ending::Kind::not_started, report.value, false}});
        break;
      case guardian::ReportKind::ended:
        worker.pidfd.reset();
        events.push_back(WorkerEnded{report.local_rank, ending_of(report.value)});
        break;
      case guardian::ReportKind::tree_empty: events.push_back(TreeEmpty{}); break;
      case guardian::ReportKind::signalled:
        if (report.value == SIGSTOP && suspending_) stop_myself();  // unless somebody has continued us meanwhile
        break;
    }
  }

  // The guardian is not to end before us. Then its workers died with it, and what they left is ours to end.
  void check_guardian() {
    int status = 0;
    if (guardian_.pid == 0 || ::waitpid(guardian_.pid, &status, WNOHANG) != guardian_.pid) return;
    const auto pid = std::exchange(guardian_.pid, 0);
    tree_survived_ = !kill_all_children(foreign_children_, kKillLimitMs);
    if (finished_) return;
    drain_streams();
    const auto ending = ending_of(status);
    say("error: ddprun's guardian process " + describe(ending) + "; " + count_of_workers() +
        " were ended with it\nwhere: host " + host_name() + ", pid " + std::to_string(pid) +
        "\ntry:   find who sent it the signal: memory limits and `kill` reach every process of a job");
    finish(std::max(1, exit_code_of(ending)));
  }

  void step(const std::vector<WorkerGroupEvent>& events) { perform(group_.step(events, Clock::now())); }

  void wait_for_deadline() {
    const auto deadline = group_.next_deadline();
    timer_.cancel();
    if (!deadline || finished_) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](error_code error) {
      if (!error) perform(group_.tick(Clock::now()));
    });
  }

  // --- actions ---

  void perform(const WorkerGroup::Actions& actions) {
    for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
    wait_for_deadline();
  }

  void perform(const StartRound& action) {
    round_.number = static_cast<std::uint32_t>(action.round);
    store_.begin_round();
    port_.drop_pending();
    Assignment assignment;
    assignment.round = round_;
    assignment.workers = assignment.world_size = assignment.role_world_size = config_.workers;
    assignment.role = config_.role;
    assignment.restart_count = action.round;
    assignment.restarts_max = config_.restarts_max;
    assignment.run_id = run_id();
    assignment.master_address = kMasterAddress;
    assignment.master_port = port_.number();
    assignment.stop_signals = config_.stop_signals;
    assignment.virtual_local_rank = config_.virtual_local_rank;
    const bool foreground = ::isatty(STDIN_FILENO) && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
    const auto size = console_.terminal_size();
    for (int rank = 0; rank < config_.workers; ++rank) {
      auto& worker = workers_[static_cast<std::size_t>(rank)];
      WorkerStreams::Options options;
      options.terminal[0] = rank == 0 && foreground;
      options.terminal[1] = console_.is_terminal(1);
      options.terminal[2] = console_.is_terminal(2);
      options.size = size;
      options.read = [this, rank](int stream, std::string_view bytes) { console_.feed({rank, stream}, bytes); };
      worker = {0, {}, std::make_shared<WorkerStreams>(io_, std::move(options))};
      request({guardian::RequestKind::spawn, rank, 0,
               worker_variables(assignment, {rank, error_file(action.round, rank), {}}, inherited_)},
              worker.streams->worker_side());
      worker.streams->close_worker_side();
      worker.streams->start_reading();
    }
  }

  void perform(const SignalTree& action) { request({guardian::RequestKind::signal_tree, 0, action.signal_number, {}}); }

  void perform(const KillOrphans&) { request({guardian::RequestKind::kill_orphans, 0, 0, {}}); }

  void perform(const KillTree&) {
    request({guardian::RequestKind::kill_tree, 0, 0, {}});
    for (const auto& worker : workers_)  // even if the guardian itself hangs
      if (worker.pidfd) ::syscall(SYS_pidfd_send_signal, worker.pidfd.get(), SIGKILL, nullptr, 0);
  }

  void perform(const AnnounceRestart& action) {
    drain_streams();
    const auto message = worker_message(action.failure);
    say(describe_failure(action.failure) + (message.empty() ? "" : " (" + message + ")") + ": " + count_of_workers() +
        " start again, restart " + std::to_string(action.failure.round + 1) + " of " +
        std::to_string(config_.restarts_max));
  }

  void perform(const Finish& action) {
    const auto& outcome = action.outcome;
    drain_streams();
    if (outcome.tree_survived) {
      tree_survived_ = true;
      say("error: some processes of the job could not be killed: they hang in the kernel\nwhere: host " + host_name() +
          "\ntry:   `ps -eo pid,stat,wchan,args | grep ' D'` shows them; they end when the kernel lets them");
    }
    if (outcome.failure) {
      const auto& worker = workers_.at(static_cast<std::size_t>(outcome.failure->local_rank));
      console_.say(failure_summary(*outcome.failure,
                                   {host_name(), worker.pid, config_.workers, config_.restarts_max, config_.program,
                                    worker_message(*outcome.failure), worker.streams->stderr_tail()}));
    }
    finish(outcome.exit_code);
  }

  // --- helpers ---

  void finish(int exit_code) {
    finished_ = true;
    exit_code_ = exit_code;
    timer_.cancel();
    port_.stop();
    store_.stop();
    console_.when_drained([this] { io_.stop(); });
  }

  void request(const guardian::Request& what, std::span<const int> descriptors = {}) {
    if (finished_) return;
    if (guardian_.pid == 0 || guardian::send_request(guardian_.socket.get(), what, descriptors)) return;
    ::kill(guardian_.pid, SIGKILL);  // it is gone or hangs; its end, and that of its workers, is reported as any other
  }

  // As a terminal's ctrl-z: the tree has stopped already, now this process does, and its shell sees it.
  void stop_myself() {
    sigset_t suspend;
    sigemptyset(&suspend);
    sigaddset(&suspend, SIGTSTP);
    ::kill(::getpid(), SIGTSTP);
    ::sigprocmask(SIG_UNBLOCK, &suspend, nullptr);  // stops here, until SIGCONT
    ::sigprocmask(SIG_BLOCK, &suspend, nullptr);
    request({guardian::RequestKind::signal_tree, 0, SIGCONT, {}});  // also where nobody could have continued us
    resize();
  }

  void resize() {
    console_.resized();
    if (const auto size = console_.terminal_size())
      for (const auto& worker : workers_)
        if (worker.streams) worker.streams->resize(*size);
  }

  void drain_streams() {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
      if (workers_[rank].streams) workers_[rank].streams->drain();
      for (int stream : {1, 2}) console_.end({static_cast<int>(rank), stream});
    }
  }

  std::string worker_message(const Failure& failure) const {
    return read_error_file(error_file(failure.round, failure.local_rank));
  }

  std::string error_file(int round, int local_rank) const {
    return scratch_.path() + "/round_" + std::to_string(round) + "_rank_" + std::to_string(local_rank) + "_error.json";
  }

  std::string run_id() const { return to_string(round_).substr(0, to_string(round_).rfind('-')); }

  std::string count_of_workers() const {
    return config_.workers == 1   ? "the worker"
           : config_.workers == 2 ? "both workers"
                                  : "all " + std::to_string(config_.workers) + " workers";
  }

  void say(const std::string& message) {
    const bool error = message.rfind("error:", 0) == 0;
    console_.say(error ? message : "ddprun: " + message);
  }

  const LaunchConfig& config_;
  const std::vector<std::string>& inherited_;  // ddprun's own environment
  WorkerGroup group_;
  ScratchDirectory scratch_;
  std::set<pid_t> foreign_children_ = children_of_this_process();  // of who was this process before; not ours to end
  sigset_t signals_;
  guardian::GuardianHandle guardian_;  // forked before everything below exists
  asio::io_context io_{1};
  Console console_;
  store::Server store_;
  port::Port port_;
  asio::posix::stream_descriptor signal_source_, guardian_source_;
  asio::steady_timer timer_;
  std::vector<Worker> workers_;
  RoundId round_ = rendezvous::begin_term();
  int exit_code_ = 1;
  bool finished_ = false, stop_announced_ = false, suspending_ = false, tree_survived_ = false;
};

}  // namespace

int run_job(const LaunchConfig& config, const std::vector<std::string>& environment) {
  return Agent(config, environment).run();
}

}  // namespace ddp::launcher
