// Signals to this ddprun, as events of the node.
//
// Threads: the event loop's only.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <vector>

#include "launcher/node/node_core.hpp"

namespace ddp::launcher {

class OwnSignals {
 public:
  struct Handlers {
    std::function<void(const NodeCore::Event& event)> event;
    std::function<void()> child_ended;       // SIGCHLD
    std::function<void()> terminal_resized;  // SIGWINCH
  };

  // `taken_in` is blocked already; `forwarded` are those that are passed on to the workers. Throws std::system_error.
  OwnSignals(boost::asio::io_context& io, const sigset_t& taken_in, const std::vector<int>& forwarded,
             Handlers handlers);
  OwnSignals(const OwnSignals&) = delete;

  void listen();

 private:
  void take(const signalfd_siginfo& info);

  const std::vector<int> forwarded_;
  const Handlers handlers_;
  boost::asio::posix::stream_descriptor source_;
};

}  // namespace ddp::launcher
