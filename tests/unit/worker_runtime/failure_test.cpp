#include "worker_runtime/core/failure/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

namespace ddp::core {
namespace {

using ::testing::ElementsAre;

TEST(Failure, IsTheSameAfterEncodingAndDecoding) {
  const Failure failure{.cause = Cause::timed_out,
                        .rank = 2,
                        .what = "a socket was closed",
                        .number = 7,
                        .operation = "all_reduce of 100 float32 (sum)",
                        .bytes = 400,
                        .peers = {0, 1},
                        .limit = std::chrono::milliseconds(100)};
  const auto read = decode_failure(encode(failure), 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(failure));
  EXPECT_EQ(read->cause, Cause::timed_out);
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->number, 7u);
  EXPECT_EQ(read->operation, failure.operation);
  EXPECT_EQ(read->bytes, 400u);
  EXPECT_THAT(read->peers, ElementsAre(0, 1));
  EXPECT_EQ(read->limit, std::chrono::milliseconds(100));
  EXPECT_EQ(read->what, "a socket was closed");
}

TEST(Failure, MalformedTextIsNone) {
  for (const char* text : {"", "x", "99 0 1 1 1 \n\n", "0 3 1 1 1 \n\n", "0 -1 1 1 1 \n\n", "0 0 x 1 1 \n\n",
                           "0 0 1 1 1 7\n\n", "0 0 1 1 1 1,x\n\n", "0 0 1"}) {
    SCOPED_TRACE(text);
    EXPECT_FALSE(decode_failure(text, 3));
  }
}

}  // namespace
}  // namespace ddp::core
