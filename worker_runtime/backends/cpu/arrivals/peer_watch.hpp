// Notices the end of the other ranks' processes, by their pidfds or what stands for these (own_end() in
// core/sockets/local_socket.hpp): not by the end of a socket, which a forked child of a dead rank would keep open.
//
// Threads: one of its own, asleep until a process ends; `ended` is called there. duplicate() from any.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::cpu_backend {

class PeerWatch {
 public:
  // pidfds[r] is that of rank r; this rank's own is empty. Throws std::system_error.
  PeerWatch(std::vector<base::UniqueFd> pidfds, std::function<void(int rank)> ended);
  ~PeerWatch();  // after it no call of `ended` runs or comes
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // The pidfd of a rank once more; empty for this rank. Throws std::system_error.
  base::UniqueFd duplicate(int rank) const;

 private:
  void watch();

  void add(int fd, std::uint32_t index);

  std::vector<base::UniqueFd> pidfds_;  // as they were given, also of the dead
  std::function<void(int rank)> ended_;
  base::UniqueFd stop_;   // an eventfd, readable when the thread is to end
  base::UniqueFd epoll_;  // unlike poll() it minds no limit of open files that falls later, when nobody could be told
  std::thread thread_;
};

}  // namespace ddp::cpu_backend
