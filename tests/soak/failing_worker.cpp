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
//
// It holds so many MiB first: they make its end take long.
#include <ddp/process_group.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
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

void fail(ddp::ProcessGroup& world, const std::string& how) {
  if (how == "kill") ::kill(::getpid(), SIGKILL);
  if (how == "segv") ::raise(SIGSEGV);
  if (how == "abort") std::abort();
  if (how == "exit") ::_exit(3);
  if (how == "abort_group") world.abort("the loss is not a number");
  throw std::runtime_error("the batch is empty");
}

// What main returns.
int run(const Plan& plan) {
  Slow slow;
  ddp::ProcessGroup world = ddp::init_process_group();
  const bool is_it = world.rank() == plan.rank;
  if (is_it) hold_memory(plan.mebibytes);
  std::vector<float> values(1000, 1.0F);
  for (int step = 0; step < 5; ++step) world.all_reduce(values);
  if (is_it && plan.how == "return") return 3;
  if (is_it && plan.how == "slow_throw") slow.time = 300ms;
  if (is_it) fail(world, plan.how);
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
