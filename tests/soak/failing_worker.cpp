// A rank of which one fails in a way that is named, while the others are in a collective with it:
//
//   failing_worker <how> <rank> [<MiB>]
//
// kill, segv, abort  die of that signal
// exit               ends with exit code 3
// throw              throws out of its group; main catches it and returns 1, as it does on the other ranks
// return             leaves its group in order, and main returns 3
// abort_group        gives up on its group, and throws
// slow_throw         as throw, but the process goes on for 0.3 s after it has left its group
// oom                takes memory until the kernel kills it
// hang               does not come to a collective, whose timeout is 2 s
// guardian, agent    kills that process of its node
// disk_full          throws for a full disk
// late_kill          as slow_throw, and meanwhile rank 0 is killed
// segv_200, segv_2000, abort_200, abort_2000
//                    that signal has a handler, as crash reporters have: it closes all files, takes so many ms, and
//                    lets the process die of the signal
//
// It holds so many MiB first: they make its end take long.
#include <ddp/process_group.hpp>

#include <fcntl.h>
#include <sys/mman.h>
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
  int rank = 0;
  std::size_t mebibytes = 0;
};

void hold_memory(std::size_t mebibytes) {
  const std::size_t bytes = mebibytes << 20;
  if (bytes == 0) return;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory");
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);  // small pages take longer to be freed
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

// "segv_200"
void crash_slowly(const std::string& how) {
  g_teardown_ms = std::stoi(how.substr(how.find('_') + 1));
  struct sigaction action {};
  action.sa_handler = report_crash;
  sigfillset(&action.sa_mask);
  const int signal_number = how[0] == 's' ? SIGSEGV : SIGABRT;
  ::sigaction(signal_number, &action, nullptr);
  ::raise(signal_number);
}

pid_t parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; file >> word;)
    if (word == "PPid:" && file >> word) return std::stoi(word);
  return -1;
}

void fail(ddp::ProcessGroup& world, const std::string& how) {
  while (how == "oom") hold_memory(16);
  if (how == "guardian") ::kill(::getppid(), SIGKILL);
  if (how == "agent") ::kill(parent_of(::getppid()), SIGKILL);
  while (how == "hang" || how == "guardian" || how == "agent") ::pause();
  if (how == "disk_full") {
    std::ofstream file("/dev/full");
    file.exceptions(std::ios::failbit | std::ios::badbit);
    file << "checkpoint" << std::flush;
  }
  if (how.find("_200") != std::string::npos) crash_slowly(how);
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "segv") ::raise(SIGSEGV);
  if (how == "abort") std::abort();
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
  if (is_it) hold_memory(plan.mebibytes);
  std::vector<float> values(1000, 1.0F);
  for (int step = 0; step < 5; ++step) world.all_reduce(values);
  if (is_it && plan.how == "return") return 3;
  if (is_it && (plan.how == "slow_throw" || plan.how == "late_kill")) slow.time = 300ms;
  if (is_it) fail(world, plan.how);
  if (plan.how == "late_kill" && world.rank() == 0) die_after_the_first(world, values);
  while (true) world.all_reduce(values);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  try {
    return run({arguments[1], std::atoi(arguments[2]), count > 3 ? std::stoul(arguments[3]) : 0});
  } catch (const std::exception&) {
    return 1;
  }
}
