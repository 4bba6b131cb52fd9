// A job of as many ddprun as asked for, each with one worker, on this machine: real processes, and real connections
// over the loopback to the endpoint in the first of them. How long until all workers have started, until all have been
// told of the death of an agent or of a worker and have started again, until all have ended; what of it goes over the
// wire; what memory the agents take.
//
// The workers are agents_worker: each writes a line into a FIFO when it has started, and when it is told to stop, with
// the time. Bytes are those of the loopback of a network namespace of its own, where nothing else speaks: IP packets
// with their headers, each counted once.
//
//   agents_benchmark [--agents=1000] [--kills=3] [--idle=10]
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, the same in all processes
using Nanoseconds = long long;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::median;

constexpr std::chrono::seconds kPatience{120};  // for each thing that is waited for
constexpr const char* kPort = "29400";

Nanoseconds now() { return Clock::now().time_since_epoch().count(); }
double ms_between(Nanoseconds begin, Nanoseconds end) { return static_cast<double>(end - begin) / 1e6; }

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }
[[noreturn]] void fail_by_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// --- processes ---

fs::path own_program, folder;  // folder: of this run

std::string program(const char* name) { return own_program.parent_path() / name; }
std::string words_file() { return folder / "ddprun.log"; }

pid_t spawn(const Words& words) {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, words_file().c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  return pid;
}

// Both ddprun and its guardian start their children in their main thread.
std::vector<pid_t> children_of(pid_t pid) {
  const auto name = std::to_string(pid);
  std::ifstream file("/proc/" + name + "/task/" + name + "/children");
  std::vector<pid_t> out;
  for (pid_t child = 0; file >> child;) out.push_back(child);
  return out;
}

// Orphans become children of this process, a subreaper, so its tree is all that it ever started.
void end_all_processes() {
  do {
    std::vector<pid_t> tree = children_of(::getpid());
    for (std::size_t i = 0; i < tree.size(); ++i) {
      for (const pid_t child : children_of(tree[i])) tree.push_back(child);
      ::kill(tree[i], SIGKILL);
    }
  } while (::waitpid(-1, nullptr, 0) > 0);
}

// --- what this machine allows ---

double number_in(const std::string& path, int field = 0) {
  std::ifstream file(path);
  std::string word;
  for (int i = 0; i <= field; ++i) file >> word;
  return !file || word == "max" ? std::numeric_limits<double>::infinity() : std::atof(word.c_str());
}

// How many more processes and threads the control group and those above it may have.
double tasks_left_in_control_group() {
  double left = std::numeric_limits<double>::infinity();
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const bool is_first_version = line.find(":pids:") != std::string::npos;
    if (!is_first_version && line.rfind("0::", 0) != 0) continue;
    const fs::path root = is_first_version ? "/sys/fs/cgroup/pids" : "/sys/fs/cgroup";
    for (fs::path group = line.substr(line.rfind(':') + 1);; group = group.parent_path()) {
      const auto here = root.string() + group.string();
      if (fs::exists(here + "/pids.max"))
        left = std::min(left, number_in(here + "/pids.max") - number_in(here + "/pids.current"));
      if (!group.has_relative_path()) break;
    }
  }
  return left;
}

struct Limit {
  const char* what;
  double needed, left;
  const char* try_this;
};

std::vector<Limit> limits(int agents) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  rlimit files{}, processes{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NPROC, &processes);
  const double tasks = std::count_if(fs::directory_iterator("/proc"), fs::directory_iterator(),
                                     [](const auto& entry) { return std::atoi(entry.path().filename().c_str()) > 0; });
  const double own = ::geteuid() == 0 || processes.rlim_max == RLIM_INFINITY
                         ? kInfinity
                         : static_cast<double>(processes.rlim_max) - tasks;
  const double needed = 4.0 * agents;  // ddprun, a thread of it, its guardian, the worker
  return {{"open files in one process", agents + 100.0, static_cast<double>(files.rlim_max), "`ulimit -Hn`"},
          {"open files of all", 25.0 * agents, number_in("/proc/sys/fs/file-max") - number_in("/proc/sys/fs/file-nr"),
           "`sysctl fs.file-max`"},
          {"processes of this user", needed, own, "`ulimit -Hu`"},
          {"process ids", needed, number_in("/proc/sys/kernel/pid_max") - tasks, "`sysctl kernel.pid_max`"},
          {"threads of all", needed, number_in("/proc/sys/kernel/threads-max") - tasks, "`sysctl kernel.threads-max`"},
          {"processes in this control group", needed, tasks_left_in_control_group(), "pids.max of the control group"}};
}

// --- the wire ---

// Into a network namespace with a loopback and nothing else. False where that is not allowed.
bool enter_own_network() {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool is_up = ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  if (!is_up) fail_by_errno("the loopback of a new network namespace");
  return true;
}

struct Traffic {
  double bytes = 0, packets = 0;
};

Traffic traffic() {
  std::ifstream file("/proc/self/net/dev");
  Traffic out;
  for (std::string word; file >> word;)
    if (word == "lo:") file >> out.bytes >> out.packets;
  return out;
}

// --- the job ---

struct Event {
  char what = 0;  // S: a worker has started, T: it was told to stop
  Nanoseconds time = 0;
  pid_t pid = -1;
  int rank = -1;
};

class Job {
 public:
  explicit Job(int kills) : kills_(kills), fifo_path_(folder / "fifo") {
    // Open for writing as well: else the end of the last worker would be an end of file.
    if (::mkfifo(fifo_path_.c_str(), 0600) != 0 || (fifo_ = ::open(fifo_path_.c_str(), O_RDWR | O_CLOEXEC)) < 0)
      fail_by_errno(fifo_path_);
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child_ended, nullptr);
    if ((signals_ = ::signalfd(-1, &child_ended, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) fail_by_errno("signalfd");
  }
  Job(const Job&) = delete;
  ~Job() {
    ::close(fifo_);
    ::close(signals_);
  }

  [[nodiscard]] const std::vector<pid_t>& agents() const { return agents_; }
  [[nodiscard]] const std::vector<Event>& workers() const { return workers_; }  // of the running round

  // The workers alone, without a launcher; the ms until all have started.
  double start_bare(int count) {
    const auto begin = now();
    std::vector<pid_t> pids;
    for (int i = 0; i < count; ++i) {
      ::setenv("RANK", std::to_string(i).c_str(), 1);
      pids.push_back(spawn({program("agents_worker"), fifo_path_}));
    }
    ::unsetenv("RANK");
    wait_for('S', count, begin, "bare workers to start");
    const double ms = ms_between(begin, last());
    for (const pid_t pid : pids) ::kill(pid, SIGTERM);
    for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
    wait_for('T', count, begin, "bare workers to end");
    return ms;
  }

  // The ms until the last ddprun was spawned, and until all workers have started.
  std::pair<double, double> start(int count) {
    const auto nodes = std::to_string(std::max(1, count - kills_)) + ":" + std::to_string(count);
    const auto begin = now();
    for (int i = 0; i < count; ++i)
      agents_.push_back(spawn(
          {program("ddprun"), "--nnodes=" + nodes, "--node-rank=" + std::to_string(i), "--nproc-per-node=1",
           "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-id=agents",
           std::string("--rdzv-endpoint=127.0.0.1:") + kPort, "--local-addr=127.0.0.1",
           std::string("--rdzv-conf=last_call_timeout=60,join_timeout=300,is_host=") + (i == 0 ? "true" : "false"),
           program("agents_worker"), fifo_path_}));
    const auto spawned = now();
    wait_for('S', count, begin, "all workers to start");
    workers_ = events_;
    return {ms_between(begin, spawned), ms_between(begin, last())};
  }

  struct Recovery {
    double told_ms, started_ms;
  };

  // From just before SIGKILL: until all other workers were told to stop, and until all of the next round have started.
  Recovery recover_from_death_of_agent(std::size_t index) {
    const pid_t pid = agents_.at(index);
    agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
    return recover_from_death_of(pid, agents_.size(), agents_.size());
  }
  Recovery recover_from_death_of_worker(std::size_t index) {
    return recover_from_death_of(workers_.at(index).pid, agents_.size() - 1, agents_.size());
  }

  // By SIGTERM to one ddprun; the ms until all workers were told, and until all ddprun have ended.
  Recovery stop_by(std::size_t index) {
    const auto begin = now();
    is_ending_ = true;
    ::kill(agents_.at(index), SIGTERM);
    wait_for('T', static_cast<int>(agents_.size()), begin, "all workers to be told to stop");
    const double told_ms = ms_between(begin, last());
    while (!agents_.empty()) wait_for_news(Clock::now() + kPatience, "all ddprun to end");
    return {told_ms, ms_between(begin, now())};
  }

  [[nodiscard]] const std::map<int, int>& exit_codes() const { return exit_codes_; }  // code -> how many agents

 private:
  Recovery recover_from_death_of(pid_t pid, std::size_t others, std::size_t next) {
    const auto begin = now();
    ::kill(pid, SIGKILL);
    wait_for('T', static_cast<int>(others), begin, "all others to be told to stop");
    const double told_ms = ms_between(begin, last());
    wait_for('S', static_cast<int>(next), begin, "the next round to start");
    workers_ = events_;
    return {told_ms, ms_between(begin, last())};
  }

  [[nodiscard]] Nanoseconds last() const {
    return std::max_element(events_.begin(), events_.end(),
                            [](const Event& a, const Event& b) { return a.time < b.time; })
        ->time;
  }

  // So many events of the kind, each of another rank, since a time; they are in events_ then, in the order of ranks.
  void wait_for(char what, int count, Nanoseconds since, const std::string& purpose) {
    const auto deadline = Clock::now() + kPatience;
    std::map<int, Event> found;
    for (std::size_t next = 0; static_cast<int>(found.size()) < count;) {
      for (; next < heard_.size(); ++next)
        if (heard_[next].what == what && heard_[next].time > since) found[heard_[next].rank] = heard_[next];
      if (static_cast<int>(found.size()) < count)
        wait_for_news(deadline,
                      purpose + ": " + std::to_string(found.size()) + " of " + std::to_string(count) + " were seen");
    }
    events_.clear();
    for (const auto& [rank, event] : found) events_.push_back(event);
  }

  void wait_for_news(Clock::time_point deadline, const std::string& purpose) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waits[] = {{fifo_, POLLIN, 0}, {signals_, POLLIN, 0}};
    if (left <= 0) fail("waited in vain for " + purpose);
    if (::poll(waits, 2, static_cast<int>(left)) <= 0) return;
    if (waits[0].revents != 0) read_events();
    if (waits[1].revents != 0) reap();
  }

  void read_events() {
    char buffer[65536];
    const auto length = ::read(fifo_, buffer, sizeof buffer);
    if (length > 0) text_.append(buffer, static_cast<std::size_t>(length));
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      Event event;
      std::sscanf(text_.c_str() + begin, "%c %lld %d %d", &event.what, &event.time, &event.pid, &event.rank);
      heard_.push_back(event);
    }
    text_.erase(0, begin);
  }

  void reap() {
    signalfd_siginfo ignored;
    while (::read(signals_, &ignored, sizeof ignored) > 0) {
    }
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto agent = std::find(agents_.begin(), agents_.end(), pid);
      if (agent == agents_.end()) continue;  // one that was killed, or an orphan
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      if (!is_ending_) fail("a ddprun ended with " + std::to_string(code) + " while the job ran");
      ++exit_codes_[code];
      agents_.erase(agent);
    }
  }

  const int kills_;
  const std::string fifo_path_;
  int fifo_ = -1, signals_ = -1;
  std::string text_;            // read and not yet taken apart
  std::vector<Event> heard_;    // all so far
  std::vector<Event> events_;   // last waited for
  std::vector<Event> workers_;  // of the running round
  std::vector<pid_t> agents_;   // that were not killed
  bool is_ending_ = false;
  std::map<int, int> exit_codes_;
};

// --- the table ---

struct Memory {
  double pss_kb = 0, anonymous_kb = 0;
};

void add_memory(pid_t pid, Memory& sum) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  double kb = 0;
  for (std::string word; file >> word;) {
    if (word == "Pss:" && file >> kb) sum.pss_kb += kb;
    if (word == "Anonymous:" && file >> kb) sum.anonymous_kb += kb;
  }
}

double cpu_ms_of(pid_t pid) {
  double out = 0;
  std::ifstream("/proc/" + std::to_string(pid) + "/schedstat") >> out;  // in ns
  return out / 1e6;
}

void print_row(const char* what, std::vector<double> values, const char* unit) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  std::printf("%-66s %10.1f", what, median(values));
  values.size() > 1 ? std::printf(" %10.1f %10.1f %s\n", *least, *most, unit)
                    : std::printf(" %10s %10s %s\n", "", "", unit);
}

struct Arguments {
  int agents = 1000, kills = 3, idle_seconds = 10;
};

int time_job(const Arguments& arguments, bool counts_bytes) {
  const int count = arguments.agents;
  Job job(arguments.kills);
  std::printf("%d ddprun of one worker each\n%-66s %10s %10s %10s\n", count, "", "median", "least", "most");
  print_row("the workers alone, without a launcher -> all have started", {job.start_bare(count)}, "ms");

  auto before = traffic();
  const auto print_traffic = [&](const char* what, double times, const char* unit) {
    const auto after = traffic();
    const double bytes = after.bytes - before.bytes, packets = after.packets - before.packets;
    before = after;
    if (!counts_bytes) return;
    print_row(what, {bytes / times}, unit);
    print_row("  packets", {packets / times}, "");
  };
  const auto [spawned_ms, started_ms] = job.start(count);
  print_row("first ddprun's start -> the last one spawned", {spawned_ms}, "ms");
  print_row("first ddprun's start -> all workers have started", {started_ms}, "ms");
  print_row("  CPU of the ddprun with the endpoint", {cpu_ms_of(job.agents()[0])}, "ms");
  print_traffic("  bytes on the wire for each ddprun, headers included", count, "B");
  std::this_thread::sleep_for(std::chrono::seconds(1));  // what follows the start
  print_traffic("  bytes of the second after it for each ddprun", count, "B");
  const auto idle_begin = now();
  std::this_thread::sleep_for(std::chrono::seconds(arguments.idle_seconds));
  print_traffic("idle: bytes a second for each ddprun", count * ms_between(idle_begin, now()) / 1e3, "B/s");

  Memory ddpruns, guardians;
  for (const pid_t agent : job.agents()) {
    add_memory(agent, ddpruns);
    for (const pid_t guardian : children_of(agent)) add_memory(guardian, guardians);
  }
  print_row("memory of a ddprun (PSS)", {ddpruns.pss_kb / count}, "kB");
  print_row("  of that not shared with its file", {ddpruns.anonymous_kb / count}, "kB");
  print_row("memory of a guardian (PSS)", {guardians.pss_kb / count}, "kB");
  print_row("memory of all ddprun and guardians (PSS)", {(ddpruns.pss_kb + guardians.pss_kb) / 1024}, "MB");

  std::vector<double> agent_told, agent_started, worker_told, worker_started;
  before = traffic();
  for (int i = 0; i < arguments.kills; ++i) {
    const auto victim = 1 + static_cast<std::size_t>(i * 7919) % (job.agents().size() - 1);  // not the endpoint's
    const auto recovery = job.recover_from_death_of_agent(victim);
    agent_told.push_back(recovery.told_ms);
    agent_started.push_back(recovery.started_ms);
  }
  const double agent_rounds = static_cast<double>(arguments.kills) * count;
  print_row("SIGKILL of a ddprun -> all others told to stop", agent_told, "ms");
  print_row("  -> all workers of the others have started again", agent_started, "ms");
  print_traffic("  bytes on the wire for each ddprun", agent_rounds, "B");
  for (int i = 0; i < arguments.kills; ++i) {
    const auto recovery = job.recover_from_death_of_worker(static_cast<std::size_t>(i * 7919) % job.workers().size());
    worker_told.push_back(recovery.told_ms);
    worker_started.push_back(recovery.started_ms);
  }
  print_row("SIGKILL of a worker -> all others told to stop", worker_told, "ms");
  print_row("  -> all workers have started again", worker_started, "ms");
  print_traffic("  bytes on the wire for each ddprun", agent_rounds, "B");

  const auto end = job.stop_by(job.agents().size() / 2);
  print_row("SIGTERM to one ddprun -> all workers told to stop", {end.told_ms}, "ms");
  print_row("  -> all ddprun have ended", {end.started_ms}, "ms");
  for (const auto& [code, agents] : job.exit_codes()) std::printf("%d ddprun ended with %d\n", agents, code);
  const auto left = children_of(::getpid());
  std::printf(left.empty() ? "no process is left\n" : "%zu processes are left\n", left.size());
  return left.empty() && job.exit_codes().size() == 1 && job.exit_codes().begin()->first == 128 + SIGTERM ? 0 : 1;
}

Arguments parse(int argc, char** argv) {
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equals = word.find('=');
    const auto name = word.substr(0, equals);
    const int number = equals == std::string::npos ? 0 : std::atoi(word.c_str() + equals + 1);
    if (name == "--agents" && number >= 4 && number <= 60'000)
      out.agents = number;
    else if (name == "--kills" && number >= 1 && number <= 50)
      out.kills = number;
    else if (name == "--idle" && number >= 1)
      out.idle_seconds = number;
    else
      throw std::invalid_argument("'" + word +
                                  "' is none of --agents=N (4 to 60000), --kills=N (1 to 50), --idle=SECONDS");
  }
  if (out.kills > out.agents / 2) throw std::invalid_argument("--kills=N must leave half of the agents");
  return out;
}

int report(const std::string& what, const std::string& where, const std::string& try_this, int code) {
  std::fprintf(stderr, "error: %s\nwhere: %s\ntry:   %s\n", what.c_str(), where.c_str(), try_this.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Arguments arguments;
  try {
    arguments = parse(argc, argv);
  } catch (const std::invalid_argument& error) {
    return report(error.what(), "the command line", "agents_benchmark --agents=1000", 2);
  }
  for (const auto& limit : limits(arguments.agents))
    if (limit.needed > limit.left) {
      char text[256];
      std::snprintf(text, sizeof text, "%d agents need %.0f %s, and %.0f can be had", arguments.agents, limit.needed,
                    limit.what, std::max(limit.left, 0.0));
      return report(text, "the limits of this machine",
                    std::string("raise ") + limit.try_this + ", or take fewer by --agents=N", 2);
    }
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  own_program = fs::read_symlink("/proc/self/exe");
  std::string pattern = fs::temp_directory_path() / "agents_benchmark.XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr || ::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    std::perror("agents_benchmark");
    return 1;
  }
  folder = pattern;
  ::setenv("HOME", folder.c_str(), 1);  // a token there would bring TLS
  ::unsetenv("DDPRUN_TOKEN");
  try {
    const bool counts_bytes = enter_own_network();
    if (!counts_bytes) std::printf("no network namespace (root can have one), so no bytes are counted\n");
    const int code = time_job(arguments, counts_bytes);
    end_all_processes();
    fs::remove_all(folder);
    return code;
  } catch (const std::exception& error) {
    end_all_processes();
    return report(error.what(), "after the last line above", "what all ddprun said is in " + words_file(), 1);
  }
}
