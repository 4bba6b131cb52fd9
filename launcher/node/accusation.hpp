// What the error of a worker says of other ranks, where the worker does not link libddp: of what PyTorch writes.
//
// Pure.
#pragma once

#include <string>
#include <vector>

namespace ddp::launcher {

struct Accusation {
  std::vector<int> ranks{};    // that it names as those that failed, or whose connection ended
  bool missed_a_peer = false;  // a connection to another rank ended, or that rank did not come: which one is not said
};

// Only words of PyTorch's own libraries count. A program may well write "connection reset" of a file server.
Accusation accusation_of(const std::string& message);

}  // namespace ddp::launcher
