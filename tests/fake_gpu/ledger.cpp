#include "tests/fake_gpu/ledger.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace ddp::fake_gpu {

namespace {

struct Ledger {
  std::mutex mutex;
  bool started = false;
  pid_t owner = 0;
  std::vector<PlannedFault> planned;
  std::map<std::string, unsigned long, std::less<>> calls;
  std::map<std::string, unsigned long, std::less<>> live;
};

// Never destroyed: streams may still be at work when the process exits.
Ledger& ledger() {
  static Ledger& one = *new Ledger;
  return one;
}

std::vector<PlannedFault> faults_of_environment() {
  const char* const text = std::getenv("FAKE_GPU_FAULTS");
  try {
    return parse_faults(text == nullptr ? "" : text);
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

// With the lock held.
void start(Ledger& at) {
  if (at.started) return;
  at.started = true;
  at.owner = ::getpid();
  at.planned = faults_of_environment();
}

unsigned long look_up(const std::map<std::string, unsigned long, std::less<>>& counts, std::string_view name) {
  const auto found = counts.find(name);
  return found == counts.end() ? 0 : found->second;
}

}  // namespace

Fault enter(const char* call) {
  Ledger& at = ledger();
  Fault fault;
  {
    const std::lock_guard lock(at.mutex);
    start(at);
    fault = fault_for(at.planned, call, ++at.calls[call]);
  }
  if (fault.kind == Fault::Kind::die) kill_this_process();
  return fault;
}

void suffer(const Fault& fault) {
  if (fault.kind == Fault::Kind::hang) hang_for_ever();
  if (fault.kind == Fault::Kind::delay) std::this_thread::sleep_for(std::chrono::milliseconds(fault.number));
}

void count(const char* what) {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  ++at.calls[what];
}

void made(const char* kind) {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  ++at.live[kind];
}

void gone(const char* kind) {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  --at.live[kind];
}

unsigned long calls(const char* name) {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  return look_up(at.calls, name);
}

unsigned long live(const char* kind) {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  return look_up(at.live, kind);
}

bool in_forked_child() {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  return at.started && at.owner != ::getpid();
}

void kill_this_process() {
  ::kill(::getpid(), SIGKILL);
  hang_for_ever();
}

void hang_for_ever() {
  for (;;) ::pause();
}

void restart_ledger() {
  Ledger& at = ledger();
  const std::lock_guard lock(at.mutex);
  at.started = false;
  at.calls.clear();
  at.live.clear();
}

}  // namespace ddp::fake_gpu
