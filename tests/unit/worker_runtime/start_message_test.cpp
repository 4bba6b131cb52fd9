#include "worker_runtime/core/failure/start_message.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace ddp::core {
namespace {

const StartingRank kOwn{.backend = "nccl", .rank = 2, .size = 4, .pid = 77};

TEST(StartMessage, NamesTheRanksThatDidNotJoin) {
  EXPECT_EQ(did_not_join_message(kOwn, {0, 3}, std::chrono::milliseconds(500)),
            "ranks 0 and 3 did not join the process group of 4 ranks within 500 ms\n"
            "where: starting a process group of the backend nccl, rank 2 of 4, pid 77\n"
            "try:   look at the output of the missing ranks; a longer InitOptions::timeout helps where they only start "
            "late");
}

TEST(StartMessage, NamesNoRankIfNoneIsKnownToBeMissing) {
  EXPECT_EQ(did_not_join_message(kOwn, {}, std::chrono::milliseconds(500)),
            "the process group of 4 ranks did not start within 500 ms\n"
            "where: starting a process group of the backend nccl, rank 2 of 4, pid 77\n"
            "try:   look at the output of every rank; a longer InitOptions::timeout helps where they only start late");
}

}  // namespace
}  // namespace ddp::core
