// A disk that stops answering: while it stalls, calls on files of one folder wait in the kernel. It holds them back by
// seccomp's user notification, for the program that the test starts and all that this starts; no rights are needed.
//
// Calls: open, mkdir, read, pread and write. A close is not held back.
//
// Threads: the members are the test's; a thread of its own answers the kernel.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::test {

class StallingDisk {
 public:
  // Of one program. It answers at first.
  explicit StallingDisk(std::filesystem::path folder);
  ~StallingDisk();
  StallingDisk(const StallingDisk&) = delete;

  // Whether this kernel can do it.
  static bool is_possible();

  // For Job::Options::before_exec: this process and its children see the disk as it is here. Only async-signal-safe
  // calls.
  void enter() const;

  void stall();
  void heal();

  // Waits until a call on this file, or on one in this folder, is held back; false at the deadline.
  bool holds(const std::filesystem::path& path);

 private:
  struct Call {
    unsigned long long id;
    std::string path;
  };

  void answer_all();
  void answer(int listener);
  void let_go(unsigned long long id) const;

  const std::string folder_;
  base::UniqueFd here_, there_;  // a pair of sockets: the listener comes from the program
  base::UniqueFd end_;           // an event
  base::UniqueFd listener_;      // the thread's
  std::mutex mutex_;
  std::condition_variable changed_;  // of held_
  std::vector<Call> held_;
  bool is_stalled_ = false;
  std::thread thread_;
};

}  // namespace ddp::test
