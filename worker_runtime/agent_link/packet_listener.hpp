// A thread that receives the packets of a socket, until the other end closes it or this object is destroyed.
//
// Threads: start() from one at a time; Take is called on the thread of this object.
// Fork:    a forked child has no such thread.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "base/fork_guard.hpp"
#include "base/unique_fd.hpp"

namespace ddp::agent_link {

class PacketListener {
 public:
  // With each packet; with an empty one, as the last call, if the other end is closed.
  using Take = std::function<void(std::string_view packet)>;

  // `socket` and `fork_guard` are borrowed. Throws std::system_error.
  PacketListener(int socket, const base::ForkGuard& fork_guard, Take take);
  ~PacketListener();
  PacketListener(const PacketListener&) = delete;
  PacketListener& operator=(const PacketListener&) = delete;

  // What has come before is received then. Does nothing the second time. Throws Error if there is no thread to be had.
  void start();

 private:
  void listen() const;
  bool receive() const;

  int socket_;
  const base::ForkGuard& fork_guard_;
  Take take_;
  base::UniqueFd stop_;  // an eventfd, readable when the thread is to end
  std::thread thread_;
};

}  // namespace ddp::agent_link
