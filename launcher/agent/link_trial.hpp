// Tries whether this host reaches other hosts of the job: connects to the port of an agent there, sends 1 KiB, and
// waits for the answer (GET /healthz).
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

class LinkTrial {
 public:
  // Calls `done` once and later, from the loop: within the limit, whether all have answered. At least one is to.
  LinkTrial(boost::asio::io_context& io, std::vector<rendezvous::Elsewhere> to, std::chrono::milliseconds limit,
            std::function<void(bool do_work)> done);
  ~LinkTrial();  // `done` is not called any more
  LinkTrial(const LinkTrial&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the coroutines
};

}  // namespace ddp::launcher
