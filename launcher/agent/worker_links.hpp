// The agent's ends of the sockets that its workers inherit: what those that link libddp say, and what they are told.
//
// A worker that says nonsense, or does not read, is not listened to any more, and is then stopped as one that knows
// nothing of libddp. The end of a socket means nothing: a child of the worker may hold it, or its program have closed
// it.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "launcher/node/node_words.hpp"
#include "rendezvous/worker_link/message.hpp"

namespace ddp::launcher {

class WorkerLinks {
 public:
  struct Handlers {
    std::function<void(int local_rank, const worker_link::FromWorker& message)> heard;
    std::function<void(int local_rank, LinkFault fault)> lost;  // it takes no seats any more
  };

  WorkerLinks(boost::asio::io_context& io, int workers, Handlers handlers);

  // A new socket for a worker that is about to be spawned, in place of that of the one before: the worker's end. Throws
  // std::system_error.
  base::UniqueFd open(int local_rank);

  // What all workers have said by now, be it before their end.
  void hear_out();

  void send(int local_rank, const worker_link::ToWorker& message);
  void send_to_all(const worker_link::ToWorker& message);

 private:
  void close(int local_rank);
  void listen(int local_rank);
  bool read(int local_rank);
  void lose(int local_rank, LinkFault fault);
  std::optional<boost::asio::posix::stream_descriptor>& link_of(int local_rank) {
    return links_.at(static_cast<std::size_t>(local_rank));
  }

  boost::asio::io_context& io_;
  Handlers handlers_;
  std::vector<std::optional<boost::asio::posix::stream_descriptor>> links_;  // empty where nobody is listened to
};

}  // namespace ddp::launcher
