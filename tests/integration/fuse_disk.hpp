// A file system of the test's own (FUSE), in memory, whose server can stop answering: then whatever needs it waits in
// the kernel, as on a network file system whose server is gone. Unlike StallingDisk it holds back every call of every
// process, close() and stat() included.
//
// A process that has a file of it open ends only when close() returns, however it is killed.
//
// Threads: the members are the test's; a thread of its own is the server.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/unique_fd.hpp"

namespace ddp::test {

class FuseDisk {
 public:
  struct Options {
    bool close_waits = true;  // false: a stalled server does not hold back close(), as many servers do not ask for it
  };

  // Mounts it at `folder`, in a mount namespace of this process's and its children's, which ends with them. Throws
  // std::runtime_error: this machine or this user can't.
  FuseDisk(std::filesystem::path folder, Options options);
  ~FuseDisk();
  FuseDisk(const FuseDisk&) = delete;

  // This process must not use the disk until heal(). A stall ends by itself after a minute, because the kernel does not
  // end a process that waits in close() for its own server.
  void stall();
  void heal();  // throws std::runtime_error if it had ended by itself

  // Waits until a call waits for the stalled disk; false at the deadline.
  bool holds_a_call() const;

 private:
  struct Node {
    std::uint32_t mode = 0;
    std::string content{};
    std::map<std::string, std::uint64_t> children{};
  };
  struct Request;

  bool end_stall();
  void serve();
  void answer(const Request& request);
  void begin(const Request& request);
  void find(const Request& request);
  void make(const Request& request);
  void change(const Request& request);
  void move(const Request& request, std::uint64_t folder, std::string_view names);
  void remove(const Request& request);
  void write(const Request& request);
  void read(const Request& request);
  void list(const Request& request);

  void reply(const Request& request, int error, std::string_view bytes = {}) const;
  template <class T>
  void reply_with(const Request& request, const T& what) const {
    reply(request, 0, {reinterpret_cast<const char*>(&what), sizeof what});
  }

  const std::filesystem::path folder_;
  const Options options_;
  base::UniqueFd device_;
  base::UniqueFd changed_;               // an event: the server is to look again
  std::map<std::uint64_t, Node> nodes_;  // the server's; a file that is removed stays, as it may be open
  std::uint64_t newest_ = 1;             // number of a node; the root has 1
  std::mutex mutex_;                     // held while a request is answered
  bool is_stalled_ = false, is_ending_ = false;
  std::chrono::steady_clock::time_point stall_ends_{};
  std::thread server_;
};

}  // namespace ddp::test
