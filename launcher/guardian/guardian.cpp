#include "launcher/guardian/guardian.hpp"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/pidfd.hpp"
#include "base/unique_file.hpp"
#include "base/with_limit.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/guardian/cgroup.hpp"
#include "launcher/guardian/ending_of_another.hpp"
#include "launcher/guardian/farewell.hpp"
#include "launcher/guardian/node_record.hpp"
#include "launcher/guardian/process_tree.hpp"
#include "launcher/guardian/protocol.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher::guardian {
namespace {

constexpr int kKillLimitMs = 30'000;              // for SIGKILL to take effect after ddprun's death
constexpr int kEndLimitMs = 100;                  // for the end of ddprun, after that of its sockets
constexpr std::chrono::seconds kRemovalLimit{2};  // for the folder of temporary files

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const auto& text : strings) out.push_back(const_cast<char*>(text.c_str()));
  return out;
}

// A set of CPUs or NUMA nodes as the kernel takes it.
using Mask = std::vector<unsigned long>;
constexpr std::size_t kMaskWordBits = sizeof(unsigned long) * CHAR_BIT;

Mask mask_of(const std::vector<int>& indices) {
  Mask out;
  for (const int index : indices) {
    const auto i = static_cast<std::size_t>(index);
    if (out.size() <= i / kMaskWordBits) out.resize(i / kMaskWordBits + 1);
    out[i / kMaskWordBits] |= 1UL << i % kMaskWordBits;
  }
  return out;
}

// What the child needs between vfork and exec; everything is made before, because there only async-signal-safe calls
// run.
struct ChildSetup {
  const char* directory;  // nullptr: the guardian's
  const char* path;
  char* const* arguments;
  char* const* environment;
  int descriptors[3];  // stdin, stdout, stderr
  int agent_socket;    // keeps its number; -1 for none
  int terminal;        // which of them becomes the controlling terminal; -1 for none
  pid_t guardian;
  const sigset_t* signal_mask;
  const std::vector<int>* ignored_signals;
  const rlimit* descriptor_limit;
  const rlimit* core_limit;  // nullptr: as the guardian
  const Mask* cpus;          // empty: as the guardian
  const Mask* memory_nodes;
  int memory_policy;
};

// Returns errno where the cores can't be had. The memory policy is a wish: containers often forbid it, and kernels
// before 5.15 know only that for one node; without it memory is taken near the core that first touches it, which is
// mostly the same. Preferred, not bound: with a bound policy a full node would kill the worker while another node has
// memory left.
int apply_binding(const ChildSetup& setup) {
  if (!setup.memory_nodes->empty())
    ::syscall(SYS_set_mempolicy, setup.memory_policy, setup.memory_nodes->data(),
              setup.memory_nodes->size() * kMaskWordBits + 1);  // the kernel reads one bit less
  if (setup.cpus->empty()) return 0;
  const auto bytes = setup.cpus->size() * sizeof(unsigned long);
  return ::syscall(SYS_sched_setaffinity, 0, bytes, setup.cpus->data()) < 0 ? errno : 0;
}

// Runs in the child, on the guardian's memory. Returns errno where the binding or exec failed.
int become_worker(const ChildSetup& setup) {
  ::setsid();
  // A descriptor that sits in the way of 0..2 cannot occur: the guardian keeps those open on /dev/null.
  for (int fd = 0; fd < 3; ++fd)
    if (::dup2(setup.descriptors[fd], fd) < 0) return errno;
  if (setup.agent_socket >= 0) ::fcntl(setup.agent_socket, F_SETFD, 0);
  if (setup.terminal >= 0) ::ioctl(setup.terminal, TIOCSCTTY, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != setup.guardian) ::_exit(1);  // it died before the line above took effect
  if (const int error = apply_binding(setup); error != 0) return error;
  ::setrlimit(RLIMIT_NOFILE, setup.descriptor_limit);
  if (setup.core_limit != nullptr) ::setrlimit(RLIMIT_CORE, setup.core_limit);
  for (const int number : *setup.ignored_signals) ::signal(number, SIG_IGN);
  if (setup.directory != nullptr && ::chdir(setup.directory) != 0) return errno;
  ::sigprocmask(SIG_SETMASK, setup.signal_mask, nullptr);
  ::execve(setup.path, setup.arguments, setup.environment);
  return errno;
}

[[gnu::noinline]] pid_t spawn_worker(const ChildSetup& setup, int& exec_error) {
  volatile int error = 0;
  const pid_t pid = ::vfork();  // the guardian sleeps until exec, and shares its memory until then
  if (pid == 0) {
    error = become_worker(setup);
    ::_exit(127);
  }
  exec_error = pid < 0 ? errno : error;
  return pid;
}

// "<descriptor>:<inode>" of a worker's end of the socket to its agent: no other worker has the same.
std::string mark_of(int socket) {
  struct stat status {};
  ::fstat(socket, &status);
  return std::to_string(socket) + ":" + std::to_string(status.st_ino);
}

Farewell farewell_of(const std::vector<std::string>& variables) {
  Farewell out;
  if (!variables.empty()) out.node_key = variables.front();
  for (std::size_t i = 1; i + 1 < variables.size(); i += 2)
    out.to.push_back({variables[i], static_cast<std::uint16_t>(std::stoi(variables[i + 1]))});
  return out;
}

// isatty() alone asks the disk of a file, if its file system is a process.
bool is_terminal(int fd) { return !base::is_file(fd) && ::isatty(fd) != 0; }

struct RunningWorker {
  int local_rank = 0;
  std::string mark;         // in its environment, and that of its descendants
  bool was_ending = false;  // when look_who_is_ending() looked
};

class Guardian {
 public:
  Guardian(const GuardianOptions& options, pid_t ddprun, base::UniqueFd socket, base::UniqueFd agent)
      : options_(options), ddprun_(ddprun), socket_(std::move(socket)), agent_(std::move(agent)) {
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    signals_.reset(::signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw std::system_error(errno, std::generic_category(), "signalfd of the guardian");
  }

  const Farewell& farewell() const { return farewell_; }

  // 0: none, or it is not known. Its sockets close a moment before it can be asked.
  int signal_that_killed_ddprun() const {
    pollfd wait{agent_.get(), POLLIN, 0};
    if (!agent_ || ::poll(&wait, 1, kEndLimitMs) != 1) return 0;
    const int status = wait_status_of(agent_.get(), ddprun_).value_or(0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

  // Returns when ddprun is gone.
  void serve() {
    while (true) {
      pollfd waits[] = {{agent_.get(), POLLIN, 0},
                        {socket_.get(), static_cast<short>(POLLIN | (outbox_.empty() ? 0 : POLLOUT)), 0},
                        {signals_.get(), POLLIN, 0}};
      if (::poll(waits, std::size(waits), -1) < 0 && errno != EINTR) return;
      if (waits[0].revents != 0) return;
      signalfd_siginfo ignored;
      while (::read(signals_.get(), &ignored, sizeof ignored) > 0) {
      }
      bool closed = false;
      while (auto request = receive_request(socket_.get(), closed)) {
        carry_out(*request);
        for (auto& descriptor : request->descriptors) base::close_without_waiting(std::move(descriptor));
        send_outbox();  // at once, so that descriptors do not pile up here
      }
      if (closed) return;
      reap();
      if (orphans_asked_ > 0 && !kill_orphans())
        for (; orphans_asked_ > 0; --orphans_asked_) report({ReportKind::orphans_gone, 0, 0, 0});
      send_outbox();
    }
  }

 private:
  void carry_out(Received<Request>& request) {
    const auto& content = request.content;
    switch (content.kind) {
      case RequestKind::spawn: spawn(content, request.descriptors); break;
      case RequestKind::signal_tree:
        reap();  // who has ended by now did not end of it, and is told of before
        signal_tree(content.signal_number, content.variables);
        report({ReportKind::signalled, 0, 0, content.signal_number});
        break;
      case RequestKind::forward_signal:
        report({ReportKind::forwarded, 0, 0, forward_signal(content.signal_number)});
        break;
      case RequestKind::signal_worker:
        look_who_is_ending();
        signal_worker(content.local_rank, content.signal_number);
        break;
      case RequestKind::kill_worker:
        look_who_is_ending();
        signal_worker(content.local_rank, SIGKILL);
        break;
      case RequestKind::kill_orphans:  // serve() does it, as often as it takes
        ++orphans_asked_;
        spared_.clear();
        for (const auto& [pid, worker] : workers_) spared_.insert(worker.mark);
        break;
      case RequestKind::kill_tree:
        look_who_is_ending();
        killing_ = changed_ = true;
        kill_descendants();
        break;
      case RequestKind::set_farewell: farewell_ = farewell_of(content.variables); break;
    }
  }

  void spawn(const Request& request, const std::vector<base::UniqueFd>& descriptors) {
    changed_ = true;
    has_looked_ = false;
    if (workers_.empty()) killed_before_ = out_of_memory_kills_.count();
    if (descriptors.size() != 4) return report({ReportKind::not_spawned, request.local_rank, 0, EMFILE});
    if (!std::all_of(request.variables.begin(), request.variables.end(), is_workers_variable))
      return report({ReportKind::not_spawned, request.local_rank, 0, EPERM});
    auto environment = pointers_to(options_.environment);
    for (auto* variable : pointers_to(request.variables)) environment.push_back(variable);
    const auto mark = mark_of(descriptors[3].get());
    const auto socket_variable = std::string(worker_link::kSocketVariable) + "=" + mark;
    environment.push_back(const_cast<char*>(socket_variable.c_str()));
    environment.push_back(nullptr);
    const auto texts = worker_arguments(options_.command.arguments, request.local_rank);
    auto arguments = pointers_to(texts);
    arguments.push_back(nullptr);
    const int terminal = is_terminal(descriptors[1].get()) ? 1 : is_terminal(descriptors[2].get()) ? 2 : -1;
    const auto rank = static_cast<std::size_t>(request.local_rank);
    const auto binding = options_.bindings.empty() ? Binding{} : options_.bindings.at(rank);
    const auto cpus = mask_of(binding.cpus), memory_nodes = mask_of(binding.memory_nodes);
    int error = 0;
    const auto& directory = options_.worker_directory;
    const pid_t pid = spawn_worker({directory.empty() ? nullptr : directory.c_str(),
                                    options_.command.path.c_str(),
                                    arguments.data(),
                                    environment.data(),
                                    {descriptors[0].get(), descriptors[1].get(), descriptors[2].get()},
                                    descriptors[3].get(),
                                    terminal,
                                    ::getpid(),
                                    &options_.worker_signal_mask,
                                    &options_.ignored_signals,
                                    &options_.worker_descriptor_limit,
                                    options_.worker_core_limit ? &*options_.worker_core_limit : nullptr,
                                    &cpus,
                                    &memory_nodes,
                                    binding.memory_nodes.size() == 1 ? MPOL_PREFERRED : MPOL_PREFERRED_MANY},
                                   error);
    has_children_ = true;
    if (error != 0) {
      if (pid > 0) ::waitpid(pid, nullptr, 0);
      return report({ReportKind::not_spawned, request.local_rank, 0, error});
    }
    workers_[pid] = {request.local_rank, mark};
    base::UniqueFd pidfd = base::open_pidfd(pid);
    const int pidfd_count = pidfd ? 1 : 0;
    report({ReportKind::spawned, request.local_rank, pid, pidfd_count}, std::move(pidfd));
  }

  // Returns to how many.
  int forward_signal(int signal_number) const {
    int count = 0;
    for (const auto& [pid, worker] : workers_)
      if (handles_signal(pid, signal_number) && ::kill(pid, signal_number) == 0) ++count;
    return count;
  }

  // Stops and continues reach every process. A signal that ends processes reaches each once: those that are there now,
  // and later (in reap) those that were just being forked.
  void signal_tree(int signal_number, const std::vector<std::string>& spared_local_ranks) {
    if (!has_children_) return;
    if (signal_number == SIGSTOP || signal_number == SIGCONT) {
      std::set<pid_t> signalled;
      while (signal_others(signal_number, signalled)) {  // until nobody forked while the list was read
      }
      return;
    }
    look_who_is_ending();
    if (ending_signal_ != signal_number) signalled_.clear();
    ending_signal_ = signal_number;
    unsignalled_.clear();
    for (const auto& [pid, worker] : workers_) {
      const auto local_rank = std::to_string(worker.local_rank);
      if (std::find(spared_local_ranks.begin(), spared_local_ranks.end(), local_rank) != spared_local_ranks.end())
        unsignalled_.insert(pid);
    }
    signal_others(signal_number, signalled_, unsignalled_);
    // Only what is stopped: SIGCONT takes away a SIGSTOP on its way, which who attaches by ptrace waits for (a leak
    // check at the end of a process), and programs may have a handler for it.
    for (const pid_t pid : signalled_)
      if (is_stopped(pid)) ::kill(pid, SIGCONT);
  }

  // Signals descendants that are not in `signalled`, and adds them. `spared` children and what descends from them are
  // left alone. Whether there were any.
  static bool signal_others(int signal_number, std::set<pid_t>& signalled, const std::set<pid_t>& spared = {}) {
    bool any = false;
    const auto all = descendants_of(::getpid());
    auto left_alone = spared;
    for (const pid_t pid : spared)
      for (const auto& process : descendants_of(pid, all)) left_alone.insert(process.pid);
    for (const auto& process : all)
      if (left_alone.count(process.pid) == 0 && signalled.insert(process.pid).second) {
        ::kill(process.pid, signal_number);
        any = true;
      }
    return any;
  }

  // To the worker and what descends from it now. SIGKILL to its process group, too: nothing there can outrun it.
  void signal_worker(int local_rank, int signal_number) {
    for (const auto& [pid, worker] : workers_) {
      if (worker.local_rank != local_rank) continue;
      auto processes = descendants_of(pid);
      processes.push_back({pid, ::getpid()});
      if (signal_number == SIGKILL) ::kill(-pid, SIGKILL);
      for (const auto& process : processes) {
        ::kill(process.pid, signal_number);
        if (signal_number != SIGKILL && is_stopped(process.pid)) ::kill(process.pid, SIGCONT);
      }
    }
  }

  // Sockets close before a process has ended, so its peers may fail first. Once until a worker is spawned: at the first
  // failure, or before the first signal.
  void look_who_is_ending() {
    if (std::exchange(has_looked_, true)) return;
    std::vector<pid_t> pids;
    for (const auto& [pid, worker] : workers_) pids.push_back(pid);
    for (const pid_t pid : who_is_ending(pids, look_time_now)) workers_.at(pid).was_ending = true;
  }

  void kill_descendants() {
    for (const auto& [pid, worker] : workers_) ::kill(-pid, SIGKILL);
    for (const auto& process : descendants_of(::getpid())) ::kill(process.pid, SIGKILL);
  }

  // What a worker's descendants become when their parents end: our children. Whose they are says the mark in their
  // environment. Whether there were any of workers that had ended when it was asked for: those of one that is only told
  // to stop have the grace, also where the worker itself is gone by now.
  bool kill_orphans() {
    const auto processes = descendants_of(::getpid());
    bool any = false;
    for (const auto& process : processes) {
      if (process.parent != ::getpid() || workers_.count(process.pid) != 0 || is_spared(process.pid)) continue;
      any = true;
      for (const auto& descendant : descendants_of(process.pid, processes)) ::kill(descendant.pid, SIGKILL);
      ::kill(process.pid, SIGKILL);
    }
    return any;
  }

  bool is_spared(pid_t orphan) const {
    const auto mark = first_value_of(orphan, worker_link::kSocketVariable);
    return !mark.empty() && spared_.count(mark) != 0;
  }

  void reap() {
    int status = 0;
    pid_t pid = 0;
    bool something_ended = false;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      changed_ = something_ended = true;
      if (const auto worker = workers_.find(pid); worker != workers_.end()) {
        const bool is_first = status != 0 && !has_looked_;
        report({ReportKind::ended, worker->second.local_rank, pid, status, worker->second.was_ending || is_first,
                was_out_of_memory(status)});
        workers_.erase(worker);
        if (status != 0) look_who_is_ending();
      }
    }
    if (pid < 0 && changed_) {  // no children
      changed_ = killing_ = has_children_ = false;
      ending_signal_ = 0;
      signalled_.clear();
      unsignalled_.clear();
      report({ReportKind::tree_empty, 0, 0, 0});
    } else if (killing_ && something_ended) {
      kill_descendants();  // what ended may have left children, which are ours now
    } else if (ending_signal_ != 0 && something_ended) {
      signal_others(ending_signal_, signalled_, unsignalled_);
    }
  }

  // Whether the kernel has killed a process for want of memory since the first worker of the round was started, which
  // no death before this one has explained. The kernel counts before it sends the signal. Empty: not known.
  std::optional<bool> was_out_of_memory(int status) {
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL || !killed_before_) return {};
    const auto count = out_of_memory_kills_.count();
    if (!count) return {};
    const bool is_one_more = *count > *killed_before_;
    if (is_one_more) ++*killed_before_;
    return is_one_more;
  }

  void report(const Report& what, base::UniqueFd descriptor = {}) { outbox_.emplace_back(what, std::move(descriptor)); }

  // Never blocks: whatever ddprun does, its end is noticed.
  void send_outbox() {
    while (!outbox_.empty()) {
      std::vector<Report> batch;
      std::vector<int> descriptors;
      for (const auto& [what, descriptor] : outbox_) {
        if (batch.size() == kReportsPerPacketMax || descriptors.size() == kDescriptorsPerPacketMax) break;
        batch.push_back(what);
        if (descriptor) descriptors.push_back(descriptor.get());
      }
      if (!send_reports(socket_.get(), batch, descriptors)) return;  // full: poll tells when there is room
      outbox_.erase(outbox_.begin(), outbox_.begin() + static_cast<std::ptrdiff_t>(batch.size()));
    }
  }

  const GuardianOptions& options_;
  const pid_t ddprun_;
  Farewell farewell_;
  base::UniqueFd socket_, agent_, signals_;
  std::map<pid_t, RunningWorker> workers_;                // running ones
  std::deque<std::pair<Report, base::UniqueFd>> outbox_;  // at most a few reports per worker
  int ending_signal_ = 0;                                 // the last one sent to the tree; 0 for none
  std::set<pid_t> signalled_;                             // who got it
  std::set<pid_t> unsignalled_;                           // workers that did not, nor their descendants
  bool has_looked_ = false;                               // who was ending
  bool killing_ = false;                                  // until the tree is empty
  bool changed_ = false;                                  // since the last tree_empty
  int orphans_asked_ = 0;                                 // kill_orphans that are to be answered
  std::set<std::string> spared_;                          // marks of workers that ran when it was asked for
  const OutOfMemoryKills out_of_memory_kills_{};
  std::optional<long> killed_before_{};  // for want of memory: before the round, or told of since
  bool has_children_ = false;            // as far as waitpid told; saves a look through /proc
};

// Standard descriptors belong to the user's shell and pipes; a guardian that outlives ddprun must not hold them open.
void let_go_of_standard_descriptors() {
  const base::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = 0; fd < 3; ++fd) ::dup2(null.get(), fd);
}

// `ps` shows the arguments that a process was started with, from its own memory; the guardian's are a copy of ddprun's.
// Source: proc(5), arg_start and arg_end of /proc/<pid>/stat.
void show_as(std::string_view title) {
  std::ifstream file("/proc/self/stat");
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  std::istringstream fields(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));
  std::string skipped;
  for (int number = 3; number < 48; ++number) fields >> skipped;
  std::uintptr_t start = 0, end = 0;
  if (!(fields >> start >> end) || start == 0 || end <= start) return;
  auto* const text = reinterpret_cast<char*>(start);
  std::memset(text, 0, end - start);
  title.copy(text, end - start - 1);
}

// Returns whether the farewell was heard, or nobody is left to prove the end of: processes may still run.
bool serve_until_ddprun_ends(const GuardianOptions& options, pid_t ddprun, base::UniqueFd socket,
                             base::UniqueFd agent) {
  ::setsid();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, "ddprun-guardian");
  show_as("ddprun-guardian");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  let_go_of_standard_descriptors();
  Guardian guardian(options, ddprun, std::move(socket), std::move(agent));
  guardian.serve();
  auto farewell = guardian.farewell();
  farewell.signal_number = guardian.signal_that_killed_ddprun();
  const auto* const tls = options.security ? &options.security->tls : nullptr;
  return !kill_all_children({}, kKillLimitMs) || say_farewell(farewell, tls) || farewell.to.empty();
}

// The limit: a file system may not answer. keeps_record: the next ddprun here has to read what this node was, because
// nobody has heard its farewell.
void remove_what_ddprun_left(const GuardianOptions& options, bool keeps_record) noexcept {
  try {
    if (!options.cgroup.empty()) leave_cgroup(options.cgroup);
    if (options.scratch_directory.empty()) return;
    base::run_with_limit(kRemovalLimit, [folder = options.scratch_directory, keeps_record] {
      std::error_code ignored;
      if (keeps_record)
        keep_record_only(folder);
      else
        std::filesystem::remove_all(folder, ignored);
      return std::string();
    });
  } catch (const std::exception&) {  // no memory
  }
}

// Never returns or throws into the copy of ddprun that called it. At an error it ends its workers, then itself with an
// exit code that the agent sees.
[[noreturn]] void run_guardian(const GuardianOptions& options, pid_t ddprun, base::UniqueFd socket,
                               base::UniqueFd agent) noexcept {
  int exit_code = EXIT_SUCCESS;
  bool keeps_record = false;
  try {
    keeps_record = !serve_until_ddprun_ends(options, ddprun, std::move(socket), std::move(agent));
  } catch (...) {
    static_cast<void>(kill_all_children({}, kKillLimitMs));
    exit_code = EXIT_FAILURE;
  }
  // Else ddprun, which waits for the end of its guardian, removes both. One that dies closes its files before its
  // children have another parent.
  if (::getppid() != ddprun || is_ending(ddprun)) remove_what_ddprun_left(options, keeps_record);
  ::_exit(exit_code);
}

// fork() whose child is in that cgroup; empty: in that of this process. A process that moves waits 5 ms for the other
// CPUs, but one that is born there (clone3, Linux 5.7) does not. glibc hears nothing of it: requires that there is one
// thread, and that nothing is to be done at a fork.
pid_t fork_into(const std::string& cgroup) {
  const base::UniqueFd folder(cgroup.empty() ? -1 : ::open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
#ifndef __SANITIZE_THREAD__  // it must hear of forks
  if (folder) {
    clone_args arguments{};
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = SIGCHLD;
    arguments.cgroup = static_cast<std::uint64_t>(folder.get());
    const auto pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
    if (pid >= 0) return static_cast<pid_t>(pid);
  }
#endif
  const pid_t pid = ::fork();
  if (pid == 0 && folder) enter_cgroup(cgroup);
  return pid;
}

}  // namespace

GuardianHandle start_guardian(const GuardianOptions& options) {
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::system_error(errno, std::generic_category(), "socketpair for the guardian");
  base::UniqueFd ours(pair[0]), its(pair[1]);
  // Before the fork, so it names this process and no other. Where the kernel gives none (Linux before 5.3, a sandbox),
  // the end of the socket tells, as no other process has it.
  base::UniqueFd agent = base::open_pidfd(::getpid());
  ::fcntl(its.get(), F_SETFL, O_NONBLOCK);
  const pid_t ddprun = ::getpid();
  const pid_t pid = fork_into(options.cgroup);
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork of the guardian");
  if (pid == 0) {
    ours.reset();
    if (options.report_pipe >= 0) ::close(options.report_pipe);
    run_guardian(options, ddprun, std::move(its), std::move(agent));
  }
  return {pid, std::move(ours)};
}

}  // namespace ddp::launcher::guardian
