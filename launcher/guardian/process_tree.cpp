#include "launcher/guardian/process_tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/unique_fd.hpp"

namespace ddp::launcher {
namespace {

constexpr int kWalksMax = 8;                           // through a tree in which processes begin and end all the time
constexpr std::size_t kEnvironmentBytesMax = 4 << 20;  // more than Linux gives a process by default
constexpr int kEnvironmentLooksMax = 1'000;  // 1 ms apart; an exec takes less, but for a file system that hangs

// The beginning of /proc/<pid>/<name>, as much as anything here looks at; empty where there is no such process.
std::string read_proc(pid_t pid, const char* name) {
  char path[64], text[4096];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  const base::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  const auto length = file ? ::read(file.get(), text, sizeof text) : -1;
  return length <= 0 ? "" : std::string(text, static_cast<std::size_t>(length));
}

// One line of /proc/<pid>/stat: pid (name) state parent ..., the number of threads as the 18th after the name, which
// may hold anything, so the last ')' counts. A main thread that has ended is a zombie, too, while others of its process
// run on.
bool read_stat(pid_t pid, Process& process, bool& has_ended) {
  const auto text = read_proc(pid, "stat");
  const char* after_name = std::strrchr(text.c_str(), ')');
  char state = 0;
  int parent = 0, threads = 0;
  if (after_name == nullptr ||
      std::sscanf(after_name + 1, " %c %d %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state,
                  &parent, &threads) != 3)
    return false;
  process = {pid, parent};
  has_ended = state == 'Z' && threads <= 1;
  return true;
}

// Where the code and the stack of a process begin, which another program changes. Empty while exec loads one: the
// addresses are not known yet, and /proc/<pid>/environ is empty. Not empty where there is no such process.
std::string program_of(pid_t pid) {
  const auto stat = read_proc(pid, "stat");
  const auto after_name = stat.rfind(')');
  if (after_name == std::string::npos) return "none";
  std::istringstream fields(stat.substr(after_name + 1));
  std::string state, code, stack, field;
  fields >> state;
  for (int number = 4; fields >> field && number <= 28; ++number) {
    if (number == 26) code = field;
    if (number == 28) stack = field;
  }
  return state != "Z" && code == "0" ? "" : code + " " + stack;
}

// /proc/<pid>/environ. Waits for an exec that has begun, up to a limit; a process may have no environment, too.
std::string environment_of(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/environ", pid);
  std::string all;
  for (int look = 0; look < kEnvironmentLooksMax; ++look) {
    const auto program = program_of(pid);
    const base::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    all.resize(kEnvironmentBytesMax);
    std::size_t length = 0;
    while (file && length < all.size()) {
      const auto count = ::read(file.get(), &all[length], all.size() - length);
      if (count <= 0) break;
      length += static_cast<std::size_t>(count);
    }
    all.resize(length);
    if (!all.empty() || (!program.empty() && program_of(pid) == program)) break;
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return all;
}

// The names in a folder of /proc that are numbers.
std::vector<pid_t> numbers_in(const char* path) {
  std::vector<pid_t> out;
  DIR* folder = ::opendir(path);
  if (folder == nullptr) return out;
  while (const dirent* entry = ::readdir(folder))
    if (const pid_t number = std::atoi(entry->d_name); number > 0) out.push_back(number);
  ::closedir(folder);
  return out;
}

template <class Pids>
std::vector<Process> alive_among(const Pids& pids) {
  std::vector<Process> out;
  for (const pid_t pid : pids) {
    Process process;
    bool has_ended = false;
    if (read_stat(pid, process, has_ended) && !has_ended) out.push_back(process);
  }
  return out;
}

// Whether a mask of /proc/<pid>/status, such as SigCgt, has the signal.
bool has_signal(const std::string& status, const std::string& mask, int signal_number) {
  const auto line = status.find("\n" + mask + ":");
  return line != std::string::npos &&
         (std::strtoull(status.c_str() + line + mask.size() + 2, nullptr, 16) >> (signal_number - 1) & 1) != 0;
}

// The threads of a process, as negative numbers, and behind each its children: those that it forked, and those it
// inherited.
void append_children(pid_t pid, std::vector<pid_t>& out) {
  char path[64], text[4096];
  std::snprintf(path, sizeof path, "/proc/%d/task", pid);
  for (const pid_t thread : numbers_in(path)) {
    out.push_back(-thread);
    std::snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, thread);
    const base::UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
    pid_t child = 0;
    ssize_t length = 0;
    while (file && (length = ::read(file.get(), text, sizeof text)) > 0)
      for (const char letter : std::string_view(text, static_cast<std::size_t>(length))) {
        if (letter >= '0' && letter <= '9') {
          child = child * 10 + (letter - '0');
        } else if (child > 0) {  // a space follows each
          out.push_back(std::exchange(child, 0));
        }
      }
  }
}

// All lists of one walk through the tree. Adds to `found` whom they have that it has not.
std::vector<pid_t> list_tree(pid_t root, const std::set<pid_t>& spared, std::set<pid_t>& found) {
  std::vector<pid_t> lists, processes{root};
  std::unordered_set<pid_t> known{root};  // a process may get another parent meanwhile and be listed twice
  for (std::size_t next = 0, at = 0; next < processes.size(); ++next) {
    append_children(processes[next], lists);
    for (; at < lists.size(); ++at)
      if (lists[at] > 0 && spared.count(lists[at]) == 0 && known.insert(lists[at]).second)
        processes.push_back(lists[at]);
  }
  found.insert(processes.begin() + 1, processes.end());
  return lists;
}

// Without CONFIG_PROC_CHILDREN it does not.
bool kernel_lists_children() {
  static const bool answer = ::access("/proc/thread-self/children", R_OK) == 0;
  return answer;
}

// The kernel lets go of its lock after each child that it lists. If that one is gone then, it goes on by counting from
// the beginning, and leaves out as many as were taken from the list before. And who loses its parent, or the thread
// that forked it, gets another one, whose list may have been read by then. Both cases need someone who was listed and
// is gone, or bring someone to where the next walk finds it; so when two walks are equal, the first has missed nobody.
std::vector<Process> descendants_of(pid_t root, const std::set<pid_t>& spared) {
  if (!kernel_lists_children()) {
    auto all = all_processes();
    all.erase(std::remove_if(all.begin(), all.end(), [&](const Process& p) { return spared.count(p.pid) != 0; }),
              all.end());
    return descendants_of(root, all);
  }
  std::set<pid_t> found;
  std::vector<pid_t> before, lists = list_tree(root, spared, found);
  for (int walk = 1; walk < kWalksMax && lists != before; ++walk)
    before = std::exchange(lists, list_tree(root, spared, found));
  return alive_among(found);
}

}  // namespace

std::vector<Process> all_processes() { return alive_among(numbers_in("/proc")); }

std::vector<Process> descendants_of(pid_t root, const std::vector<Process>& all) {
  std::vector<Process> out;
  std::unordered_set<pid_t> known{root};
  for (bool grown = true; grown;) {  // as many passes as the tree is deep
    grown = false;
    for (const auto& process : all)
      if (known.count(process.parent) != 0 && known.insert(process.pid).second) {
        out.push_back(process);
        grown = true;
      }
  }
  return out;
}

std::vector<Process> descendants_of(pid_t root) { return descendants_of(root, std::set<pid_t>{}); }

bool handles_signal(pid_t pid, int signal_number) {
  return has_signal(read_proc(pid, "status"), "SigCgt", signal_number);
}

bool is_stopped(pid_t pid) {
  const auto status = read_proc(pid, "status");
  return status.find("\nState:\tT") != std::string::npos ||
         has_signal(status, "ShdPnd", SIGSTOP);  // sent by kill, and about to stop it; not by ptrace
}

// A main thread may end alone, while others of its process run on.
bool is_ending(pid_t pid) {
  if (!is_thread_ending(read_proc(pid, "stat"))) return false;
  const auto threads = numbers_in(("/proc/" + std::to_string(pid) + "/task").c_str());
  return std::all_of(threads.begin(), threads.end(), [&](pid_t thread) {
    const auto stat = read_proc(pid, ("task/" + std::to_string(thread) + "/stat").c_str());
    return stat.empty() || is_thread_ending(stat);
  });
}

std::set<pid_t> who_is_ending(const std::vector<pid_t>& processes, const std::function<LookTime()>& time_now) {
  using namespace std::chrono_literals;
  const auto begin = time_now();
  std::set<pid_t> out;
  for (const pid_t pid : processes) {
    if (is_ending(pid)) out.insert(pid);
    const auto now = time_now();
    if (now.cpu - begin.cpu >= 1ms || now.wall - begin.wall >= 20ms) break;
  }
  return out;
}

LookTime look_time_now() {
  timespec cpu{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  return {std::chrono::seconds(cpu.tv_sec) + std::chrono::nanoseconds(cpu.tv_nsec),
          std::chrono::steady_clock::now().time_since_epoch()};
}

// Whichever thread ends the process, SIGKILL is pending for all others.
bool is_thread_ending(std::string_view stat) {
  constexpr unsigned long kExiting = 0x4, kDumpsCore = 0x200, kDiesOfSignal = 0x400;  // PF_* of linux/sched.h
  const std::string fields(stat.substr(std::min(stat.rfind(')'), stat.size())));
  char state = 0;
  unsigned long flags = 0, pending = 0;
  if (std::sscanf(fields.c_str(),
                  ") %c %*s %*s %*s %*s %*s %lu %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                  "%*s %*s %*s %*s %lu",
                  &state, &flags, &pending) != 3)
    return false;
  return state == 'Z' || state == 'X' || (flags & (kExiting | kDumpsCore | kDiesOfSignal)) != 0 ||
         (pending >> (SIGKILL - 1) & 1) != 0;
}

std::string first_value_of(pid_t pid, std::string_view variable) {
  const auto all = environment_of(pid);
  const auto wanted = std::string(variable) + "=";
  for (std::size_t at = 0; at < all.size(); at += std::strlen(all.c_str() + at) + 1)
    if (all.compare(at, wanted.size(), wanted) == 0) return all.c_str() + at + wanted.size();
  return {};
}

std::set<pid_t> children_of_this_process() {
  std::set<pid_t> out;
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return out;  // ECHILD
  for (const auto& process : descendants_of(::getpid()))
    if (process.parent == ::getpid()) out.insert(process.pid);
  return out;
}

bool kill_children_once(const std::set<pid_t>& spared) {
  pid_t reaped = 0;
  while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0) {
  }
  if (reaped < 0) return true;
  const auto left = descendants_of(::getpid(), spared);
  for (const auto& process : left) ::kill(process.pid, SIGKILL);
  return left.empty() && !spared.empty();  // else only waitpid's word counts
}

bool kill_all_children(const std::set<pid_t>& spared, int limit_ms) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(limit_ms);
  sigset_t child_ended, before;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child_ended, &before);
  bool empty = false;
  while (!(empty = kill_children_once(spared))) {
    const auto time_left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (time_left <= 0) break;
    const timespec limit{static_cast<time_t>(time_left / 1'000'000'000), static_cast<long>(time_left % 1'000'000'000)};
    ::sigtimedwait(&child_ended, nullptr, &limit);  // a child's end wakes it, one that came before this line too
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return empty;
}

}  // namespace ddp::launcher
