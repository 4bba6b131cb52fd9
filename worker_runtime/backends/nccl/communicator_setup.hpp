// Sets up a communicator that does not block, so that a deadline or a cut can end the wait for the other ranks.
//
// Before 2.27 NCCL keeps the work of such a call in the thread that called, so that thread has to abort it.
//
// Threads: the one that made it.
#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "worker_runtime/backends/nccl/communicator.hpp"

namespace ddp::nccl_backend {

class CommunicatorSetup {
 public:
  // On the current device. Throws Error where NCCL refuses the arguments.
  CommunicatorSetup(const NcclLibrary& nccl, const Communicator::Rank& rank, const CommunicatorConfig& config);
  // Aborts the communicator unless it was given back.
  ~CommunicatorSetup();
  CommunicatorSetup(const CommunicatorSetup&) = delete;
  CommunicatorSetup& operator=(const CommunicatorSetup&) = delete;

  // Waits until nothing is in progress any more. Throws AbortedError if the deadline is cut.
  Outcome settle(base::Deadline& deadline);

  // Collective: a communicator of the same ranks in the same order. Null unless done.
  std::pair<Outcome, abi::Comm> split(int rank, abi::Config config, base::Deadline& deadline);

  // Gives the communicator back, in a thread of its own: NCCL's last call may wait for the other ranks of this host.
  std::shared_future<void> give_back();

 private:
  const NcclLibrary& nccl_;
  int device_;
  abi::Comm comm_ = nullptr;
  std::shared_ptr<abi::Comm> made_ = std::make_shared<abi::Comm>(nullptr);  // NCCL may write there late
};

}  // namespace ddp::nccl_backend
