#include "worker_runtime/core/operation/operation.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

#include "worker_runtime/core/failure/fingerprint.hpp"
#include "worker_runtime/core/operation/operation_life.hpp"

namespace ddp::core {
namespace {

using namespace std::chrono_literals;
using Stage = OperationLife::Stage;

Collective all_reduce_of(std::size_t count) {
  const MemoryRange range{nullptr, count, DataType::float32};
  return {.kind = CollectiveKind::all_reduce, .input = range, .output = range};
}

Collective send_to(int peer) {
  return {.kind = CollectiveKind::send, .input = {nullptr, 10, DataType::float32}, .root = peer};
}

Operation made_of(const std::vector<Collective>& calls) {
  const base::Deadline::TimePoint now{1h};
  return Operation(calls, {.collective_sequence = 7, .point_to_point_sequence = 3}, {now, now + 250ms});
}

TEST(OperationLife, IsSubmittedThenStartedThenDone) {
  OperationLife life;
  EXPECT_EQ(life.stage(), Stage::submitted);
  EXPECT_FALSE(life.complete());  // not before it has started
  EXPECT_TRUE(life.start());
  EXPECT_FALSE(life.start());
  EXPECT_EQ(life.stage(), Stage::started);
  EXPECT_FALSE(life.has_ended());
  EXPECT_TRUE(life.complete());
  EXPECT_EQ(life.stage(), Stage::done);
}

TEST(OperationLife, FirstEndCounts) {
  const std::array ends{&OperationLife::complete, &OperationLife::fail, &OperationLife::refuse};
  for (const auto first : ends) {
    OperationLife life;
    life.start();
    ASSERT_TRUE((life.*first)());
    const Stage stage = life.stage();
    EXPECT_TRUE(life.has_ended());
    EXPECT_TRUE(life.has_started());
    EXPECT_FALSE(life.start());
    for (const auto later : ends) EXPECT_FALSE((life.*later)());
    EXPECT_EQ(life.stage(), stage);
  }
}

TEST(OperationLife, IsNotRefusedOnceOtherRanksHaveSeenIt) {
  OperationLife life;
  life.start();
  life.join();
  EXPECT_FALSE(life.refuse());
  EXPECT_EQ(life.stage(), Stage::started);
  EXPECT_TRUE(life.fail());
}

TEST(OperationLife, MayFailBeforeItHasStarted) {
  OperationLife life;
  EXPECT_TRUE(life.fail());
  EXPECT_FALSE(life.has_started());
  EXPECT_EQ(life.stage(), Stage::failed);
}

TEST(Operation, TellsWhatFailed) {
  const Failure failure = made_of({all_reduce_of(100)}).failure(Cause::timed_out, 2);
  EXPECT_EQ(failure.cause, Cause::timed_out);
  EXPECT_EQ(failure.rank, 2);
  EXPECT_EQ(failure.number, 7U);
  EXPECT_EQ(failure.operation, "all_reduce of 100 float32 (sum)");
  EXPECT_EQ(failure.bytes, 400U);
  EXPECT_EQ(failure.limit, 250ms);
  EXPECT_FALSE(failure.is_pair());
}

TEST(Operation, OfSendsAndReceivesAloneHasPeersAndNoNumber) {
  const Operation pairs = made_of({send_to(3), send_to(1), send_to(3)});
  EXPECT_TRUE(pairs.is_point_to_point());
  const Failure failure = pairs.failure(Cause::transport, 0);
  EXPECT_EQ(failure.number, 0U);
  EXPECT_EQ(failure.peers, (std::vector<int>{3, 1}));
  EXPECT_EQ(failure.operation, "3 coalesced calls, the first " + made_of({send_to(3)}).describe());
  EXPECT_EQ(failure.bytes, 120U);

  const Operation mixed = made_of({send_to(3), all_reduce_of(1)});
  EXPECT_FALSE(mixed.is_point_to_point());
  EXPECT_EQ(mixed.number(), 7U);
  EXPECT_TRUE(mixed.failure(Cause::transport, 0).peers.empty());
}

}  // namespace
}  // namespace ddp::core
