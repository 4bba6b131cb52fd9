// One job on several hosts under random faults: `faults_soak --seconds=600 --seed=3 --nnodes=2:3 --daemon`.
//
// Each host is a set of namespaces (tests/multihost) with one ddprun of one worker (faults_worker). Every 2 to 5 s
// comes a fault, drawn from the seed: a process is killed or stopped, a link is cut, connections are reset, a host is
// replaced. A ddprun that has ended is started again, as a cluster does. Prints each fault, and at the end each breach
// of a rule (faults_checks.hpp). Further rules: no ddprun ends that no fault has hit, training goes on after the last
// fault, and after the end of the job no process is left on any host.
// The same seed draws the same faults; what they meet depends on the machine.
// Exit code: 0 if no rule is broken, 1 if one is, 77 if this machine can't have hosts.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/multihost/hosts.hpp"
#include "tests/soak/faults_checks.hpp"
#include "tests/text.hpp"

namespace {

namespace fs = std::filesystem;
namespace soak = ddp::soak;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using ddp::test::contents_of;
using ddp::test::HostProcess;
using ddp::test::Hosts;
using soak::Nanoseconds;
using std::chrono::milliseconds;

constexpr milliseconds kHeartbeat{2'000}, kCollective{3'000};
constexpr auto kTick = 10ms;
constexpr Nanoseconds kSettles = 6s;   // after which a node that nothing has hit is a member again
constexpr Nanoseconds kMayStop = 15s;  // for a job that is told to stop
constexpr auto kQuiet = 12s;           // after the last fault: for a commit of a round that has seen none
constexpr auto kLastWait = 30s;        // for the end of the job, once all of it is stopped

struct Options {
  int seconds = 60;
  unsigned long seed = 1;
  int nodes_min = 1, nodes_max = 3;
  bool has_daemon = false;
  bool leaves = false;  // one ddprun gets SIGTERM: it leaves, or all of them stop if too few are left
  bool keeps_logs = false;
};

Options options_of(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string value = word.substr(std::min(word.find('=') + 1, word.size()));
    const bool is_number = !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
    if (word == "--daemon")
      out.has_daemon = true;
    else if (word == "--leave")
      out.leaves = true;
    else if (word == "--keep-logs")
      out.keeps_logs = true;
    else if (word.rfind("--seconds=", 0) == 0 && is_number)
      out.seconds = std::atoi(value.c_str());
    else if (word.rfind("--seed=", 0) == 0 && is_number)
      out.seed = std::strtoul(value.c_str(), nullptr, 10);
    else if (word.rfind("--nnodes=", 0) != 0 ||
             std::sscanf(value.c_str(), "%d:%d", &out.nodes_min, &out.nodes_max) != 2)
      throw std::invalid_argument(word);
  }
  if (out.nodes_min < 1 || out.nodes_max < std::max(out.nodes_min, 2) || out.nodes_max > 20 || out.seconds < 1)
    throw std::invalid_argument("--nnodes=" + std::to_string(out.nodes_min) + ":" + std::to_string(out.nodes_max));
  return out;
}

std::string seconds_text(Nanoseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(time / 1ms) / 1000);
  return text;
}

// --- what comes from the seed ---

enum class Kind {
  kill_worker,
  kill_agent,
  kill_guardian,
  kill_both,
  replace_host,  // all of its processes are killed
  crash_host,    // the same, and its link is cut until the replacement
  stop_worker,
  stop_agent,
  cut_host,
  mute_host,  // what it sends is lost
  cut_way,    // from one host to another
  cut_pair,
  reset,  // another host answers in its place, by resets
  restart_daemon,
  leave,
};

struct Drawn {
  Kind kind{};
  int host = 0, other = 0;  // `other` may be the daemon's host, `host` too if a link is cut
  milliseconds length{};    // of a stop or a cut
  milliseconds delay{};     // until what was killed is started again
  milliseconds pause{};     // until the next fault
};

class Dice {
 public:
  explicit Dice(const Options& options) : options_(options), random_(options.seed) {
    for (int kind = 0; kind <= static_cast<int>(Kind::reset); ++kind) kinds_.push_back(static_cast<Kind>(kind));
    if (options.has_daemon) kinds_.push_back(Kind::restart_daemon);
    if (options.leaves) kinds_.push_back(Kind::leave);
  }

  // Always takes as many numbers from the generator.
  Drawn draw() {
    Drawn out;
    out.kind = kinds_[static_cast<std::size_t>(number(0, static_cast<int>(kinds_.size()) - 1))];
    const bool is_of_link = out.kind >= Kind::cut_host && out.kind <= Kind::reset;
    const int hosts = options_.nodes_max + (options_.has_daemon && is_of_link ? 1 : 0);
    out.host = number(0, hosts - 1);
    out.other = (out.host + number(1, hosts - 1)) % hosts;
    out.length = milliseconds(number(200, static_cast<int>(2 * kHeartbeat / 1ms)));
    out.delay = milliseconds(number(0, 3'000));
    out.pause = milliseconds(number(2'000, 5'000));
    if (is_of_link) out.length += out.length / 2;
    if (out.kind == Kind::reset) out.length /= 9;
    return out;
  }

 private:
  int number(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }

  const Options options_;
  std::mt19937_64 random_;  // its numbers are the same everywhere, unlike those of std::uniform_int_distribution
  std::vector<Kind> kinds_;
};

// --- the job ---

class Folder {
 public:
  explicit Folder(bool stays) : stays_(stays) {
    std::string name = (fs::temp_directory_path() / "faults_soak_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for the logs: " + name);
    path_ = name;
    for (const char* each : {"commits", "agents", "tmp"}) fs::create_directory(path_ / each);
  }
  ~Folder() {
    std::error_code ignored;
    if (!stays_) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  bool stays_;
  fs::path path_;
};

std::vector<pid_t> children_of(pid_t pid) {
  std::istringstream text(contents_of("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children"));
  std::vector<pid_t> out;
  for (pid_t child = 0; text >> child;) out.push_back(child);
  return out;
}

struct Node {
  std::optional<HostProcess> agent{};
  int starts = 0;
  bool may_end = false;     // a fault has hit it
  milliseconds delay{500};  // until it is started again
  std::size_t fault = 0;    // the one that lasts until then, counted from 1
  Nanoseconds started{};
};

class Job {
 public:
  Job(const Options& options, const Folder& folder)
      : options_(options),
        folder_(folder.path()),
        daemon_host_(options.nodes_max),
        hosts_({.count = options.nodes_max + (options.has_daemon ? 1 : 0)}),
        nodes_(static_cast<std::size_t>(options.nodes_max)) {}

  void train() {
    if (options_.has_daemon) start_daemon();
    for (int host = 0; host < options_.nodes_max; ++host) start_agent(host);
    Dice dice(options_);
    const auto ends = Clock::now() + std::chrono::seconds(options_.seconds);
    run_until(Clock::now() + 4s);
    while (Clock::now() < ends) {
      const Drawn drawn = dice.draw();
      apply(drawn);
      run_until(std::min(Clock::now() + drawn.pause, ends));
    }
    while (!actions_.empty() || is_any_away()) run_until(Clock::now() + kTick);
    run_until(Clock::now() + kQuiet);
    end_ = now();
    for (auto& fault : faults_) {
      if (fault.end != Nanoseconds::max()) continue;
      fault.end = fault.begin;
      breach("end", "ddprun has not ended since: " + fault.what);
    }
  }

  // Ends the job as a user does, and asks that nothing is left of it.
  void stop() {
    is_over_ = true;
    for (auto& node : nodes_) {
      node.may_end = true;
      if (node.agent) node.agent->kill(SIGTERM);
    }
    const auto limit = Clock::now() + kLastWait;
    while (is_any_agent_left() && Clock::now() < limit) run_until(Clock::now() + kTick);
    for (int host = 0; host < options_.nodes_max; ++host) {
      auto left = hosts_.run(host, {"sh", "-c",
                                    "for each in /proc/[0-9]*; do case ${each#/proc/} in 1|$$) ;; *) "
                                    "tr '\\0' ' ' <$each/cmdline; echo; esac; done"});
      left.wait();
      for (const auto& line : ddp::test::matches(left.out(), "[^\n]+"))
        breach("left", "on node" + std::to_string(host) + ": " + line[0]);
    }
    if (daemon_) daemon_->kill(SIGTERM);
    if (daemon_ && daemon_->wait() == -1) breach("left", "the daemon does not end");
  }

  const std::vector<soak::Fault>& faults() const { return faults_; }
  const std::vector<soak::Violation>& breaches() const { return breaches_; }
  Nanoseconds end() const { return end_; }
  Nanoseconds began() const { return began_; }

 private:
  static Nanoseconds now() { return Clock::now().time_since_epoch(); }

  void say(const std::string& what) const {
    std::printf("%10s  %s\n", seconds_text(now() - began_).c_str(), what.c_str());
    std::fflush(stdout);
  }

  void breach(const std::string& rule, const std::string& what) {
    breaches_.push_back({rule, now(), what});
    say("BROKEN " + rule + ": " + what);
  }

  Node& node(int host) { return nodes_.at(static_cast<std::size_t>(host)); }
  static std::string name(int host) { return Hosts::name(host); }

  // --- processes ---

  // Without a token two rounds that find each other both go on: neither can know which is the job.
  std::vector<std::string> environment(int host) const {
    const auto disk = folder_ / "tmp" / name(host);  // of its own, as a host has
    fs::create_directory(disk);
    return {"TMPDIR=" + disk.string(), "DDP_FLIGHT_RECORDER=/dev/null", "DDPRUN_TOKEN=faults_soak-0123456789abcdef"};
  }

  // Each ddprun has a host name of its own, as on a new machine: membership leaves a host out that has failed often.
  void start_agent(int host) {
    Node& its = node(host);
    const std::string name = Hosts::name(host) + "-" + std::to_string(its.starts++);
    const std::string endpoint = Hosts::ipv4(options_.has_daemon ? daemon_host_ : 0) + ":29500";
    const std::string bin = DDP_TEST_BIN_DIR;
    its.agent.emplace(hosts_.run(
        host,
        {"unshare",
         "--uts",
         "sh",
         "-c",
         "echo " + name + " >/proc/sys/kernel/hostname; exec \"$@\" >>" + (folder_ / "agents" / name).string() +
             " 2>&1",
         "sh",
         bin + "/ddprun",
         "--nnodes=" + std::to_string(options_.nodes_min) + ":" + std::to_string(options_.nodes_max),
         "--nproc-per-node=1",
         "--rdzv-backend=c10d",
         "--rdzv-endpoint=" + endpoint,
         "--rdzv-id=faults",
         "--rdzv-conf=last_call_timeout=1,join_timeout=120,heartbeat_timeout=" + std::to_string(kHeartbeat / 1s),
         "--max-restarts=1000000",
         "--shutdown-timeout=3",
         "--log-level=info",
         bin + "/faults_worker",
         (folder_ / "commits").string(),
         "30",
         std::to_string(kCollective / 1ms)},
        environment(host)));
    its.may_end = false;
    its.delay = 500ms;
    its.started = now();
    if (its.fault != 0) faults_[its.fault - 1].end = now();
    its.fault = 0;
  }

  void start_daemon() {
    daemon_.emplace(hosts_.run(daemon_host_,
                               {"sh", "-c", "exec \"$@\" >>" + (folder_ / "daemon").string() + " 2>&1", "sh",
                                std::string(DDP_TEST_BIN_DIR) + "/ddp-rendezvous", "--port=29500",
                                "--heartbeat-timeout=" + std::to_string(kHeartbeat / 1s)},
                               environment(daemon_host_)));
  }

  static bool has_ended(const HostProcess& process) {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(process.pid()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
  }

  // A ddprun that has ended is started again after its delay.
  void look_after_agents() {
    for (int host = 0; host < options_.nodes_max; ++host) {
      Node& its = node(host);
      if (!its.agent || !has_ended(*its.agent)) continue;
      const int code = its.agent->wait();
      its.agent.reset();
      if (!its.may_end) {
        const bool was_stopped = code == 128 + SIGTERM && now() < job_may_stop_until_;
        if (!was_stopped)
          breach("end",
                 "ddprun of " + name(host) + " ended with " + std::to_string(code) + ", and no fault had hit it");
        faults_.push_back({.what = "that end", .begin = now(), .end = now(), .hosts = {host}, .ends_worker = true});
      }
      if (!is_over_) after(its.delay, [this, host] { start_agent(host); });
    }
  }

  bool is_any_agent_left() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return each.agent.has_value(); });
  }
  bool is_any_away() const {
    return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& each) { return !each.agent.has_value(); });
  }

  // --- time ---

  void after(milliseconds delay, std::function<void()> action) {
    actions_.emplace(Clock::now() + delay, std::move(action));
  }

  void run_until(Clock::time_point time) {
    for (;;) {
      look_after_agents();
      while (!actions_.empty() && actions_.begin()->first <= Clock::now()) {
        const auto action = std::move(actions_.extract(actions_.begin()).mapped());
        action();
      }
      if (Clock::now() >= time) return;
      std::this_thread::sleep_for(kTick);  // nothing tells when any of the processes ends
    }
  }

  // --- faults ---

  // Of a fault that lasts for `length`.
  soak::Fault& note(const std::string& what, milliseconds length, std::set<int> on) {
    say(what);
    faults_.push_back({.what = what, .begin = now(), .end = now() + length, .hosts = std::move(on)});
    return faults_.back();
  }

  // To the daemon any node may seem to be lost, if its own host is cut off.
  std::set<int> hit_by_loss_of(int host) const {
    std::set<int> out{host};
    for (int each = 0; host == daemon_host_ && each < options_.nodes_max; ++each) out.insert(each);
    return out;
  }

  void apply(const Drawn& drawn) {
    const int host = drawn.host;
    const std::string on = " on " + name(host), lasts = " for " + seconds_text(drawn.length);
    const bool is_of_process = drawn.kind <= Kind::stop_agent || drawn.kind == Kind::leave;
    if (is_of_process && !node(host).agent) return say("nothing: no ddprun runs" + on);
    const pid_t agent = is_of_process ? node(host).agent->pid() : 0;
    switch (drawn.kind) {
      case Kind::kill_worker:
      case Kind::stop_worker: return disturb_worker(drawn);
      case Kind::kill_agent:
      case Kind::kill_guardian:
      case Kind::kill_both: return kill_parts(drawn);
      case Kind::replace_host:
      case Kind::crash_host: return replace(drawn);
      case Kind::stop_agent:
        note("SIGSTOP to ddprun" + on + lasts, drawn.length, {host}).ends_worker = true;  // others may take its place
        ::kill(agent, SIGSTOP);
        return after(drawn.length, [this, host, agent] {
          if (node(host).agent && node(host).agent->pid() == agent) ::kill(agent, SIGCONT);
        });
      case Kind::cut_host:
        note("cut of " + name(host) + lasts, drawn.length, hit_by_loss_of(host)).is_of_network = true;
        return cut(host, drawn.length);
      case Kind::mute_host:
        note("what " + name(host) + " sends is lost" + lasts, drawn.length, hit_by_loss_of(host)).is_of_network = true;
        for (int other = 0; other < hosts_.count(); ++other) {
          if (other != host) cut_way(host, other, drawn.length);
        }
        return;
      case Kind::cut_way:
      case Kind::cut_pair: {
        const bool is_pair = drawn.kind == Kind::cut_pair;
        note("cut " + std::string(is_pair ? "between " : "of the way from ") + name(host) +
                 (is_pair ? " and " : " to ") + name(drawn.other) + lasts,
             drawn.length, {host, drawn.other})
            .is_of_network = true;
        cut_way(host, drawn.other, drawn.length);
        if (is_pair) cut_way(drawn.other, host, drawn.length);
        return;
      }
      case Kind::reset:
        note("a firewall resets all connections of " + name(host) + lasts, drawn.length, hit_by_loss_of(host))
            .is_of_network = true;
        return reset(host, drawn.length);
      case Kind::restart_daemon:
        note("kill of the daemon, away for " + seconds_text(drawn.delay), drawn.delay, {});
        daemon_->kill(SIGKILL);
        daemon_->wait();
        return after(drawn.delay, [this] { start_daemon(); });
      case Kind::leave:
        if (count_in_touch(host) < options_.nodes_min) job_may_stop_until_ = now() + kMayStop;
        note("SIGTERM to ddprun" + on, drawn.delay, {host}).ends_worker = true;
        return expect_end(host, drawn.delay, SIGTERM);
    }
  }

  // Of the other nodes those that are members of the job for sure: for a while they have run, and no fault hit them.
  int count_in_touch(int leaver) const {
    const auto is_hit = [&](int host) {
      return std::any_of(faults_.begin(), faults_.end(), [&](const soak::Fault& fault) {
        return fault.hosts.count(host) != 0 && now() - kSettles < fault.end;
      });
    };
    int count = 0;
    for (int host = 0; host < options_.nodes_max; ++host) {
      const Node& its = nodes_[static_cast<std::size_t>(host)];
      count += host != leaver && its.agent && !its.may_end && now() - its.started >= kSettles && !is_hit(host);
    }
    return count;
  }

  void expect_end(int host, milliseconds delay, int signal_number) {
    Node& its = node(host);
    its.may_end = true;
    its.delay = delay;
    its.fault = faults_.size();
    faults_.back().end = Nanoseconds::max();  // until the replacement is started
    its.agent->kill(signal_number);
  }

  static pid_t guardian_of(pid_t agent) {
    const auto children = children_of(agent);
    return children.empty() ? -1 : children.front();
  }

  void disturb_worker(const Drawn& drawn) {
    const pid_t guardian = guardian_of(node(drawn.host).agent->pid());
    const auto workers = guardian > 0 ? children_of(guardian) : std::vector<pid_t>{};
    if (workers.empty()) return say("nothing: no worker runs on " + name(drawn.host));
    const pid_t worker = workers.front();
    const bool is_kill = drawn.kind == Kind::kill_worker;
    note(is_kill ? "kill of the worker on " + name(drawn.host)
                 : "SIGSTOP to the worker on " + name(drawn.host) + " for " + seconds_text(drawn.length),
         is_kill ? 0ms : drawn.length, {drawn.host})
        .ends_worker = true;  // one that is stopped may be killed for that
    ::kill(worker, is_kill ? SIGKILL : SIGSTOP);
    if (!is_kill) after(drawn.length, [this, host = drawn.host, worker] { continue_worker(host, worker); });
  }

  // Its pid may be another process's by now.
  void continue_worker(int host, pid_t worker) {
    if (!node(host).agent) return;
    const auto workers = children_of(guardian_of(node(host).agent->pid()));
    if (std::find(workers.begin(), workers.end(), worker) != workers.end()) ::kill(worker, SIGCONT);
  }

  void kill_parts(const Drawn& drawn) {
    const pid_t guardian = guardian_of(node(drawn.host).agent->pid());
    const bool has_guardian = drawn.kind != Kind::kill_agent;
    const std::string what = drawn.kind == Kind::kill_agent      ? "ddprun"
                             : drawn.kind == Kind::kill_guardian ? "the guardian"
                                                                 : "ddprun and its guardian";
    note("kill of " + what + " on " + name(drawn.host) + ", replaced after " + seconds_text(drawn.delay), drawn.delay,
         {drawn.host})
        .ends_worker = true;
    if (has_guardian && guardian > 0) ::kill(guardian, SIGKILL);
    expect_end(drawn.host, drawn.delay, drawn.kind == Kind::kill_guardian ? SIGCONT : SIGKILL);
  }

  void replace(const Drawn& drawn) {
    const bool is_crash = drawn.kind == Kind::crash_host;
    auto& fault = note((is_crash ? "crash of " : "kill of all processes on ") + name(drawn.host) + ", replaced after " +
                           seconds_text(drawn.delay),
                       drawn.delay, {drawn.host});
    fault.ends_worker = true;
    fault.is_of_network = is_crash;
    if (is_crash) cut(drawn.host, drawn.delay);
    expect_end(drawn.host, drawn.delay, SIGCONT);
    hosts_.run(drawn.host, {"kill", "-9", "-1"}).wait();
  }

  // Cuts may overlap.
  void cut(int host, milliseconds length) {
    if (cuts_[host]++ == 0) hosts_.cut(host);
    after(length, [this, host] {
      if (--cuts_[host] == 0) hosts_.heal(host);
    });
  }

  void cut_way(int from, int to, milliseconds length) {
    if (cut_ways_[{from, to}]++ == 0) hosts_.cut_way(from, to);
    after(length, [this, from, to] {
      if (--cut_ways_[{from, to}] == 0) hosts_.heal_way(from, to);
    });
  }

  void reset(int host, milliseconds length) {
    after(length, [this, host] {
      if (--resets_[host] == 0) hosts_.end_stand_in(host);
    });
    cut(host, length);  // is healed after that
    if (resets_[host]++ == 0) hosts_.stand_in_for(host);
  }

  const Options options_;
  const fs::path folder_;
  const int daemon_host_;
  Hosts hosts_;
  std::vector<Node> nodes_;
  std::optional<HostProcess> daemon_;
  std::multimap<Clock::time_point, std::function<void()>> actions_;
  std::map<int, int> cuts_, resets_;
  std::map<std::pair<int, int>, int> cut_ways_;
  std::vector<soak::Fault> faults_;
  Nanoseconds job_may_stop_until_{};  // too few nodes were left when one was told to leave
  std::vector<soak::Violation> breaches_;
  const Nanoseconds began_ = now();
  Nanoseconds end_{};
  bool is_over_ = false;
};

// --- its logs ---

// "node2-1_4711" and "node2-1" are of host 2.
int host_of(const fs::path& file) { return std::atoi(file.filename().c_str() + std::string_view("node").size()); }

soak::WorkerLog worker_log(const fs::path& path) {
  soak::WorkerLog out{.host = host_of(path), .begins = {}, .commits = {}};
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    soak::RoundNumbers round{};
    long long time = 0;
    words >> kind >> round[0] >> round[1] >> round[2];
    if (kind == "begin") {
      soak::Begin begin{.round = round};
      words >> begin.rank >> begin.size >> time >> begin.adopted[0] >> begin.adopted[1] >> begin.adopted[2] >>
          begin.step;
      begin.time = Nanoseconds(time);
      out.begins.push_back(begin);
    } else {
      soak::Commit commit{.round = round};
      words >> commit.step >> time;
      commit.time = Nanoseconds(time);
      out.commits.push_back(commit);
    }
  }
  return out;
}

// "2026-11-26T13:23:07.899Z", as the steady clock has it.
Nanoseconds steady_time(const std::string& text) {
  std::tm utc{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  const auto since_epoch =
      std::chrono::seconds(::timegm(&utc)) + milliseconds(rest == nullptr ? 0 : std::atoi(rest + 1));
  return Clock::now().time_since_epoch() + (since_epoch - std::chrono::system_clock::now().time_since_epoch());
}

// The value of a field of a line of the log, without its quotes.
std::string field(const std::string& line, const std::string& name) {
  const auto found = ddp::test::matches(line, " " + name + "=(\"([^\"\\\\]|\\\\.)*\"|[^ ]*)");
  if (found.empty()) return {};
  const std::string& value = found[0][1];
  return value.size() >= 2 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
}

// A round that a membership began; which term it is of is told by the nodes only.
struct Serving {
  int host = 0;
  std::uint64_t number = 0;
  Nanoseconds time{};
};

void read_agent_log(const fs::path& path, soak::History& run, std::vector<Serving>& servings) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    soak::RoundNumbers round{};
    const std::string id = field(line, "round_id");
    if (line.find(" phase=running ") != std::string::npos)
      servings.push_back({host_of(path), std::strtoul(field(line, "round").c_str(), nullptr, 10), steady_time(line)});
    else if (line.find(" start_round ") != std::string::npos &&
             std::sscanf(id.c_str(), "%lu-%lx-%lu", &round[0], &round[1], &round[2]) == 3)
      run.reasons.push_back({.round = round,
                             .host = host_of(path),
                             .rank = std::atoi(field(line, "rank_first").c_str()),
                             .time = steady_time(line),
                             .why = field(line, "why")});
  }
}

soak::History read_logs(const fs::path& folder, const Job& job) {
  soak::History run;
  run.faults = job.faults();
  run.end = job.end();
  for (const auto& entry : fs::directory_iterator(folder / "commits")) run.workers.push_back(worker_log(entry.path()));
  std::vector<Serving> servings;
  for (const auto& entry : fs::directory_iterator(folder / "agents")) read_agent_log(entry.path(), run, servings);
  std::sort(run.reasons.begin(), run.reasons.end(), [](const auto& a, const auto& b) { return a.time < b.time; });
  for (const auto& reason : run.reasons) {
    for (const auto& serving : servings) {
      if (serving.number == reason.round[2] && std::chrono::abs(serving.time - reason.time) < 1s)
        run.servers[reason.round] = serving.host;
    }
  }
  return run;
}

void print_summary(const soak::History& run) {
  std::set<soak::RoundNumbers> rounds;
  std::int64_t steps = 0;
  for (const auto& worker : run.workers) {
    for (const auto& commit : worker.commits) {
      rounds.insert(commit.round);
      steps = std::max(steps, commit.step);
    }
  }
  const auto reasons =
      std::count_if(run.reasons.begin(), run.reasons.end(), [](const auto& each) { return !each.why.empty(); });
  std::printf("%zu faults, %zu rounds with commits, told why %lld times, %zu workers, %lld steps\n", run.faults.size(),
              rounds.size(), static_cast<long long>(reasons), run.workers.size(), static_cast<long long>(steps));
}

int soak_once(const Options& options) {
  const Folder folder(options.keeps_logs);
  std::printf("faults_soak --seconds=%d --seed=%lu --nnodes=%d:%d%s%s", options.seconds, options.seed,
              options.nodes_min, options.nodes_max, options.has_daemon ? " --daemon" : "",
              options.leaves ? " --leave" : "");
  std::printf("%s\n", options.keeps_logs ? ("; logs in " + folder.path().string()).c_str() : "");
  Job job(options, folder);
  job.train();
  job.stop();
  const soak::History run = read_logs(folder.path(), job);
  const auto violations = soak::violations_of(run);
  for (const auto& each : violations)
    std::printf("%10s  BROKEN %s: %s\n", seconds_text(each.time - job.began()).c_str(), each.rule.c_str(),
                each.what.c_str());
  print_summary(run);
  return violations.empty() && job.breaches().empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) try {
  return soak_once(options_of(argc, argv));
} catch (const std::invalid_argument& error) {
  std::cerr << "error: '" << error.what() << "' is no option of this program\nwhere: faults_soak\n"
            << "try:   faults_soak [--seconds=N] [--seed=N] [--nnodes=MIN:MAX] [--daemon] [--leave] [--keep-logs]\n";
  return 2;
} catch (const ddp::test::NoHosts& reason) {
  std::cout << "Skipped\n" << reason.what() << "\n";  // as GoogleTest says it; test.sh shows the reason
  return 77;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
