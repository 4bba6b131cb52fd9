// A rank of which one fails in a way that is named, while the others are in a collective with it:
//
//   failing_worker <how> <rank>
//
// kill, segv, bus, ill, fpe, abort  dies of that signal
// oom                takes memory until the kernel kills it
// kill_200, ...      all of these with a teardown of so many ms: the connections end, the process does so later
// exit               ends with exit code 3
// throw              throws out of its group; main catches it and returns 1, as it does on the other ranks
// return             leaves its group in order, and main returns 3
// abort_group        gives up on its group, and throws
// slow_throw         as throw, but the process goes on for 0.3 s after it has left its group
// hang               does not come to a collective, whose timeout is 2 s
// guardian, agent    kills that process of its node
// disk_full          throws for a full disk
// late_kill          as slow_throw, and meanwhile the next rank is killed
//
// The signals other than SIGKILL have their teardown in a handler, as those of crash reporters: it closes all files,
// waits, and lets the process die of the signal. After SIGKILL a process that traces it is told of its end first, and
// lets its parent know later, as a driver that is slow to free a GPU does.
#include <ddp/process_group.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;

struct Plan {
  std::string how;
  int teardown_ms = 0;
  int rank = 0;
};

Plan plan_of(const std::string& how, int rank) {
  const auto digits = how.find_first_of("0123456789");
  if (digits == std::string::npos) return {how, 0, rank};
  return {how.substr(0, digits - 1), std::stoi(how.substr(digits)), rank};
}

void take_memory() {
  constexpr std::size_t bytes = std::size_t{16} << 20;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory");
  for (std::size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
}

// Unwinding that takes long.
struct Slow {
  std::chrono::milliseconds time{0};
  ~Slow() { std::this_thread::sleep_for(time); }
};

int g_teardown_ms = 0;

void report_crash(int signal_number) {
  ::close_range(3, ~0U, 0);  // the others see its connections end
  ::usleep(static_cast<useconds_t>(g_teardown_ms) * 1000);
  ::signal(signal_number, SIG_DFL);
  ::kill(::getpid(), signal_number);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal_number);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

void crash_slowly(int signal_number, int teardown_ms) {
  g_teardown_ms = teardown_ms;
  struct sigaction action {};
  action.sa_handler = report_crash;
  sigfillset(&action.sa_mask);
  ::sigaction(signal_number, &action, nullptr);
  ::raise(signal_number);
}

// Only the tracer sees a dead process at first: it stays a zombie, and its parent is told when the tracer has ended.
// Source: ptrace(2), "Death under ptrace".
void hold_back_its_end(int teardown_ms) {
  int ready[2];
  if (::pipe(ready) != 0) throw std::runtime_error("no pipe");
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const pid_t traced = ::getpid();
  if (::fork() == 0) {
    ::dup2(ready[1], 3);
    ::close_range(4, ~0U, 0);  // the others see the connections end
    ::signal(SIGTERM, SIG_IGN);
    if (::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) != 0) ::_exit(1);
    if (::write(3, "", 1) != 1) ::_exit(1);
    siginfo_t end;
    ::waitid(P_PID, static_cast<id_t>(traced), &end, WEXITED | WNOWAIT | __WALL);
    ::usleep(static_cast<useconds_t>(teardown_ms) * 1000);
    ::_exit(0);
  }
  ::close(ready[1]);
  char is_traced = 0;
  if (::read(ready[0], &is_traced, 1) != 1) ::_exit(4);  // no cause that is expected
  ::close(ready[0]);
}

// 0: the failure is no crash.
int crash_signal(const std::string& how) {
  if (how == "segv") return SIGSEGV;
  if (how == "bus") return SIGBUS;
  if (how == "ill") return SIGILL;
  if (how == "fpe") return SIGFPE;
  if (how == "abort") return SIGABRT;
  return 0;
}

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;)
    if (word == "PPid:" && file >> word) return std::stoi(word);
  return -1;
}

void fail(ddp::ProcessGroup& world, const Plan& plan) {
  const auto& how = plan.how;
  if (plan.teardown_ms > 0 && (how == "kill" || how == "oom")) hold_back_its_end(plan.teardown_ms);
  const int crash = crash_signal(how);
  if (plan.teardown_ms > 0 && crash != 0) crash_slowly(crash, plan.teardown_ms);
  while (how == "oom") take_memory();
  if (how == "guardian") ::kill(::getppid(), SIGKILL);
  if (how == "agent") ::kill(parent_of(::getppid()), SIGKILL);
  while (how == "hang" || how == "guardian" || how == "agent") ::pause();
  if (how == "disk_full") {
    std::ofstream file("/dev/full");
    file.exceptions(std::ios::failbit | std::ios::badbit);
    file << "checkpoint" << std::flush;
  }
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (crash != 0) ::raise(crash);
  if (how == "exit") ::_exit(3);
  if (how == "abort_group") world.abort("the loss is not a number");
  throw std::runtime_error("the batch is empty");
}

// The process is killed while it ends for another one.
void die_after_the_first(ddp::ProcessGroup& world, std::vector<float>& values) {
  try {
    while (true) world.all_reduce(values);
  } catch (const std::exception&) {
    std::this_thread::sleep_for(50ms);
    ::kill(::getpid(), SIGKILL);
  }
}

// What main returns.
int run(const Plan& plan) {
  Slow slow;
  ddp::InitOptions options;
  if (plan.how == "hang") options.timeout = 2s;
  ddp::ProcessGroup world = ddp::init_process_group(options);
  const bool is_it = world.rank() == plan.rank;
  std::vector<float> values(1000, 1.0F);
  for (int step = 0; step < 5; ++step) world.all_reduce(values);
  if (is_it && plan.how == "return") return 3;
  if (is_it && (plan.how == "slow_throw" || plan.how == "late_kill")) slow.time = 300ms;
  if (is_it) fail(world, plan);
  const bool is_next = world.rank() == (plan.rank + 1) % world.size();
  if (plan.how == "late_kill" && is_next) die_after_the_first(world, values);
  while (true) world.all_reduce(values);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  try {
    return run(plan_of(arguments[1], std::atoi(arguments[2])));
  } catch (const std::exception&) {
    return 1;
  }
}
