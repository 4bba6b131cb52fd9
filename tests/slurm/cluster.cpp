#include "tests/slurm/cluster.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "tests/integration/job.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLimit{60};  // of what must happen; only a failing test waits so long
constexpr const char* kPrograms = "/usr/sbin:/usr/bin:/sbin:/bin";
constexpr int kControllerPort = 6817;
constexpr int kFirstNodePort = 17001;
constexpr int kNodesMax = 8;

bool is_installed(const std::string& program) {
  std::istringstream path(kPrograms);
  for (std::string folder; std::getline(path, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

Hosts one_host() {
  for (const char* program : {"slurmctld", "slurmd", "srun", "sbatch"}) {
    if (!is_installed(program)) {
      throw NoCluster(std::string(program) + " is not installed (package slurm-wlm; ./test.sh --interop installs it)");
    }
  }
  try {
    return Hosts({.count = 1});
  } catch (const NoHosts& reason) {
    throw NoCluster(reason.what());
  }
}

std::uint64_t pid_namespace_of(pid_t pid) {
  struct stat about {};
  return ::stat(("/proc/" + std::to_string(pid) + "/ns/pid").c_str(), &about) == 0 ? about.st_ino : 0;
}

// In the network that the process is in.
bool is_listening(pid_t pid, int port) {
  std::istringstream table(contents_of("/proc/" + std::to_string(pid) + "/net/tcp"));
  std::string line;
  for (std::getline(table, line); std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    const auto colon = local.find(':');
    constexpr const char* kListens = "0A";
    if (state == kListens && std::strtol(local.c_str() + colon + 1, nullptr, 16) == port) return true;
  }
  return false;
}

fs::path program_of(pid_t pid) {
  std::error_code ignored;
  return fs::read_symlink("/proc/" + std::to_string(pid) + "/exe", ignored);  // empty for one that has ended
}

// Programs are links to others of longer names, such as slurmd-wlm.
bool is_program(const fs::path& path, const std::string& name) {
  const std::string file = path.filename();
  return file == name || file == name + "-wlm";
}

// The value of the word "name=value".
std::string value_of(const std::string& words, const std::string& name) {
  const std::string text = " " + words;
  const auto at = text.find(" " + name + "=");
  if (at == std::string::npos) return "";
  const auto begin = at + name.size() + 2;
  return text.substr(begin, text.find_first_of(" \n", begin) - begin);
}

std::string without_end_of_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Cluster::Cluster(Options options) : host_(one_host()) {
  if (options.nodes < 1 || options.nodes > kNodesMax) throw std::runtime_error("1 to 8 nodes");
  write_configuration(options);
  if (options.names_resolve) {
    std::string lines;
    for (int index = 0; index < options.nodes; ++index) lines += Hosts::ipv4(0) + " " + node(index) + "\n";
    ask({"sh", "-c", "printf %s \"$0\" >>/etc/hosts", lines});
  }
  controller_.push_back(start_daemon("slurmctld -D -c"));
  const pid_t controller = controller_[0].pid();
  if (!becomes_true([&] { return is_listening(controller, kControllerPort); }, kLimit)) {
    throw std::runtime_error("slurmctld does not listen:\n" + contents_of(folder() / "slurmctld.log"));
  }
  pid_namespace_ = pid_namespace_of(controller);
  for (int node = 0; node < options.nodes; ++node) start_node(node);
  const auto is_idle = [&] { return without_end_of_line(ask({"sinfo", "--noheader", "--format=%t"})) == "idle"; };
  if (!becomes_true(is_idle, kLimit)) {
    throw std::runtime_error("the nodes are not idle:\n" + ask({"sinfo"}) + contents_of(folder() / "slurmctld.log"));
  }
}

Cluster::~Cluster() = default;

void Cluster::write_configuration(const Options& options) const {
  const std::string here = folder().string();
  fs::create_directory(folder() / "state");
  std::ofstream file(folder() / "slurm.conf");
  file << "ClusterName=test\n"
          "SlurmctldHost="
       << Hosts::name(0)
       << "(127.0.0.1)\n"
          "SlurmctldPort="
       << kControllerPort
       << "\n"
          "AuthType=auth/none\n"
          "AuthInfo=cred_expire=5\n"  // seconds a requeued job waits for
          "CredType=cred/none\n"
          "SlurmUser=root\n"
          "SlurmdUser=root\n"
          "MailProg=/bin/true\n"
          "ProctrackType=proctrack/linuxproc\n"
          "TaskPlugin=task/none\n"
          "SwitchType=switch/none\n"
          "MpiDefault=none\n"
          "SelectType=select/cons_tres\n"
          "SelectTypeParameters=CR_Core\n"
          "SchedulerType=sched/builtin\n"
          "SchedulerParameters=batch_sched_delay=0,sched_interval=1\n"
          "ReturnToService=2\n"
          "SlurmdParameters=config_overrides\n"  // CPUs that the machine does not have
          "JobCompType=jobcomp/filetxt\n"
          "JobCompLoc="
       << here
       << "/ends\n"
          "StateSaveLocation="
       << here
       << "/state\n"
          "SlurmdSpoolDir="
       << here
       << "/spool.%n\n"
          "SlurmctldPidFile="
       << here
       << "/slurmctld.pid\n"
          "SlurmdPidFile="
       << here
       << "/slurmd.%n.pid\n"
          "SlurmctldLogFile="
       << here
       << "/slurmctld.log\n"
          "SlurmdLogFile="
       << here
       << "/slurmd.%n.log\n"
          "SlurmdTimeout="
       << options.silence_max.count()
       << "\n"
          "KillWait="
       << options.kill_wait.count() << "\n";
  for (int index = 0; index < options.nodes; ++index) {
    fs::create_directory(folder() / ("spool." + node(index)));
    file << "NodeName=" << node(index) << " NodeHostname=" << Hosts::name(0)
         << " NodeAddr=127.0.0.1 Port=" << kFirstNodePort + index << " CPUs=" << options.cpus << "\n";
  }
  std::string nodes = node(0);
  for (int index = 1; index < options.nodes; ++index) nodes += "," + node(index);
  const std::string shared = " Nodes=" + nodes + " MaxTime=INFINITE State=UP OverSubscribe=" +
                             (options.jobs == 1 ? "NO" : "FORCE:" + std::to_string(options.jobs));
  file << "PartitionName=all Default=YES" << shared << "\n";
  if (options.has_urgent) {
    file << "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=urgent PriorityTier=10"
         << shared << "\n";
  }
  if (!file.flush()) throw std::runtime_error("can't write " + here + "/slurm.conf");
}

// What it prints goes to its log file too, and nobody would read it from a pipe.
HostProcess Cluster::start_daemon(const std::string& command) {
  return run({"sh", "-c", "exec " + command + " >/dev/null 2>&1"});
}

void Cluster::start_node(int index) { nodes_.push_back(start_daemon("slurmd -D -N " + node(index))); }

HostProcess Cluster::run(const std::vector<std::string>& argv, std::vector<std::string> environment) {
  environment.push_back("SLURM_CONF=" + (folder() / "slurm.conf").string());
  const char* path = std::getenv("PATH");
  const std::string own = fs::path(built("ddprun")).parent_path();
  environment.push_back("PATH=" + own + ":" + (path != nullptr ? path : "") + ":" + kPrograms);
  std::vector<std::string> words{"env", "--chdir=" + folder().string()};
  words.insert(words.end(), argv.begin(), argv.end());
  return host_.run(0, words, environment);
}

std::string Cluster::ask(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  HostProcess process = run(argv, environment);
  const int code = process.wait();
  if (code == 0) return process.out();
  std::string command;
  for (const auto& word : argv) command += word + " ";
  throw std::runtime_error(command + "ended with " + std::to_string(code) + ": " + process.err());
}

std::string Cluster::submit(const std::vector<std::string>& words, const std::vector<std::string>& environment) {
  std::vector<std::string> argv{"sbatch", "--parsable", "--open-mode=append", "--output=job_%j"};
  argv.insert(argv.end(), words.begin(), words.end());
  return without_end_of_line(ask(argv, environment));
}

std::string Cluster::output(const std::string& job) const { return contents_of(folder() / ("job_" + job)); }

bool Cluster::prints(const std::string& job, const std::string& text, int count) const {
  return becomes_true([&] { return occurrences(output(job), text) >= count; }, kLimit);
}

std::string Cluster::field(const std::string& job, const std::string& name) {
  HostProcess process = run({"scontrol", "--oneliner", "show", "job", job});
  return process.wait() == 0 ? value_of(process.out(), name) : "";
}

std::vector<Cluster::End> Cluster::ends(const std::string& job) const {
  std::vector<End> found;
  std::istringstream lines(contents_of(folder() / "ends"));
  for (std::string line; std::getline(lines, line);) {
    if (lines.eof()) break;  // half written
    if (value_of(line, "JobId") == job) found.push_back({value_of(line, "JobState"), value_of(line, "ExitCode")});
  }
  return found;
}

std::optional<Cluster::End> Cluster::wait(const std::string& job, int runs, std::chrono::milliseconds limit) const {
  std::vector<End> all;
  const auto has_ended = [&] {
    all = ends(job);
    return static_cast<int>(all.size()) >= runs;
  };
  if (!becomes_true(has_ended, limit)) return std::nullopt;
  return all.back();
}

bool Cluster::Process::has(const std::string& variable) const {
  const std::string end(1, '\0');
  return environment.find(end + variable + end) != std::string::npos;
}

std::vector<pid_t> Cluster::all_pids() const {
  std::vector<pid_t> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const auto pid = static_cast<pid_t>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    if (pid > 0 && pid_namespace_of(pid) == pid_namespace_) found.push_back(pid);
  }
  return found;
}

std::vector<Cluster::Process> Cluster::processes() const {
  const fs::path own = program_of(::getpid());  // the namespace's first process has it too
  std::vector<Process> found;
  for (const pid_t pid : all_pids()) {
    const fs::path program = program_of(pid);
    const bool is_daemon = is_program(program, "slurmctld") || is_program(program, "slurmd");
    if (program.empty() || program == own || is_daemon) continue;
    const std::string folder = "/proc/" + std::to_string(pid);
    std::string command_line = contents_of(folder + "/cmdline");
    std::replace(command_line.begin(), command_line.end(), '\0', ' ');
    found.push_back({pid, std::move(command_line), std::string(1, '\0') + contents_of(folder + "/environ")});
  }
  return found;
}

std::string Cluster::survivors(std::chrono::milliseconds limit) const {
  std::vector<Process> left;
  const auto are_gone = [&] {
    left = processes();
    return left.empty();
  };
  becomes_true(are_gone, limit);
  std::string text;
  for (const auto& process : left) text += std::to_string(process.pid) + " " + process.command_line + "\n";
  return text;
}

// A task has its node's name in its environment; a slurmstepd has the node's log file open.
std::vector<pid_t> Cluster::processes_of(int index) const {
  const fs::path log = folder() / ("slurmd." + node(index) + ".log");
  const auto writes_log = [&](pid_t pid) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
      if (fs::read_symlink(entry.path(), ignored) == log) return true;
    }
    return false;
  };
  std::vector<pid_t> found;
  for (const auto& process : processes()) {
    if (process.has("SLURMD_NODENAME=" + node(index)) || writes_log(process.pid)) found.push_back(process.pid);
  }
  found.push_back(nodes_.at(static_cast<std::size_t>(index)).pid());
  return found;
}

// The older first: so ddprun does not see its workers' end. They can't be stopped before: where a parent's end orphans
// a process group that is stopped, the kernel sends it SIGHUP, by which ddprun would end the job.
void Cluster::crash(int index) {
  auto victims = processes_of(index);
  std::sort(victims.begin(), victims.end());
  for (const pid_t pid : victims) ::kill(pid, SIGKILL);
}

}  // namespace ddp::test
