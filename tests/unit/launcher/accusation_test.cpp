#include "launcher/node/accusation.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddp::launcher {
namespace {

// The first lines of error files that torch 2.15.0 wrote, but for the one of NCCL.
const std::string kClosed =
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer "
    "[127.0.0.1]:4012. This is typically caused by a remote worker crashing.";
const std::string kTimedOut =
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
    "20000ms for recv operation to complete";
const std::string kRemote =
    "DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error";

TEST(Accusation, NamesTheRanksThatTheErrorNames) {
  const struct {
    const char* message;
    std::vector<int> ranks;
  } cases[] = {
      {"RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms", {1}},
      {"RuntimeError: [Rank 0]: Ranks 1, 2, 12 failed to pass monitoredBarrier in 3000 ms", {1, 2, 12}},
      {"RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv "
       "from rank 0. Please check rank 0 logs for faulty rank.",
       {0}},
      {"DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
       "store by key '0', but store->get('0') got error: Connection reset by peer",
       {0}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_EQ(accusation_of(c.message).ranks, c.ranks);
    EXPECT_FALSE(accusation_of(c.message).missed_a_peer);
  }
}

TEST(Accusation, SaysThatAPeerIsMissingIfItIsNotNamed) {
  for (const auto& message : {kClosed, kTimedOut, kRemote}) {
    SCOPED_TRACE(message);
    EXPECT_TRUE(accusation_of(message).missed_a_peer);
    EXPECT_TRUE(accusation_of(message).ranks.empty());
  }
}

TEST(Accusation, PassesOverOtherErrors) {
  for (const std::string message : {"", "ValueError: the batch is empty", "RuntimeError: Rank 1 failed",
                                    "ConnectionResetError: [Errno 104] Connection reset by peer",
                                    "RuntimeError: [Rank 0]: Rank x failed to pass monitoredBarrier",
                                    "RuntimeError: [Rank 0]: Rank 99999999999 failed to pass monitoredBarrier"}) {
    SCOPED_TRACE(message);
    EXPECT_FALSE(accusation_of(message).missed_a_peer);
    EXPECT_TRUE(accusation_of(message).ranks.empty());
  }
}

}  // namespace
}  // namespace ddp::launcher
