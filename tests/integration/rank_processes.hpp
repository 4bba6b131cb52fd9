// The ranks of a group, each a forked process of the test that runs one function, with a real store in a process of its
// own, on loopback. In the function EXPECT and ASSERT work as in a test; what fails there, fails the test here.
//
// Threads: the test's main thread only, and no other may run while ranks are started.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/multihost/hosts.hpp"

namespace ddp::testing {

constexpr std::chrono::seconds kPatience{100};  // longer than any machine needs; only a failing test waits for it
// The timeout of a group whose calls must all succeed or fail at once. It is shorter than kPatience, so a call that
// hangs says what it waited for.
constexpr std::chrono::milliseconds kNotForEver{60'000};

// Where ranks run that are on several hosts; the store is on host 0.
struct Places {
  test::Hosts& hosts;
  std::vector<int> host_of;  // by rank
  std::string store;         // as the ranks are to reach it; empty: the IPv4 address of host 0
};

class RankProcesses {
 public:
  using Body = std::function<void(int rank)>;  // in the environment that a launcher would give it

  // Starts `size` ranks, except those in `absent`.
  RankProcesses(int size, const Body& body, const std::vector<int>& absent = {});
  // Starts a rank on every host that `places` names, except those in `absent`.
  RankProcesses(const Places& places, const Body& body, const std::vector<int>& absent = {});
  ~RankProcesses();  // kills what is left
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void kill(int rank);   // SIGKILL
  void stop(int rank);   // SIGSTOP; returns once it has stopped
  void go_on(int rank);  // SIGCONT

  // Waits for the rank's end and expects that it succeeded; or, for the second, that it died of this signal.
  void expect_success(int rank);
  void expect_killed(int rank, int signal = SIGKILL);

  // Waits for the rank's end, and returns what waitpid() says of it.
  int wait_status(int rank);

 private:
  void start_store(const std::function<pid_t()>& fork, bool for_all_hosts);

  std::uint16_t port_ = 0;
  pid_t store_ = 0;
  std::vector<pid_t> ranks_;  // 0 for one that is absent, or waited for
};

// Starts all ranks and expects every one to succeed.
void run_ranks(int size, const RankProcesses::Body& body);
void run_ranks(const Places& places, const RankProcesses::Body& body);

// Waits until a condition holds, which another process brings about. Throws after kPatience.
void wait_until(const std::function<bool()>& condition);

// Whether the main thread of a process on this host sleeps, as in a call that waits for another rank.
inline bool main_thread_sleeps(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  const std::size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.compare(name_end, 3, ") S") == 0;
}

// How many processes this one watches: its descriptors of the kind pidfd.
std::size_t open_pidfds();

// How many connections of this process go to an IPv4 port, that of the store for example.
std::size_t connections_to(std::uint16_t port);

// A value that the test shares with its ranks. T is an atomic, or a struct of them; it starts zeroed.
template <class T>
class Shared {
 public:
  Shared() {
    void* const page = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::bad_alloc();
    value_ = new (page) T{};
  }
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// Where the ranks of a test wait for each other, beside their group: a collective ends on one rank before it ends on
// another, whose end of it a failure of the first would spoil.
class AllHere {
 public:
  void wait(int size) const {
    ++*count_;
    wait_until([&] { return count_->load() >= size; });
  }

 private:
  Shared<std::atomic<int>> count_;
};

}  // namespace ddp::testing
