#include "worker_runtime/core/failure/failure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "tests/integration/thrown_by.hpp"

namespace ddp::core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::thrown_by;
using Progress = std::vector<std::optional<RankProgress>>;

constexpr const char* kCall = "all_reduce of 100 float32 (sum)";

FailedGroup group_of(int rank) {
  process_group::Membership who;
  who.rank = rank;
  who.size = 3;
  return {who,
          {0, 1, 2},
          4711,
          "cuda:" + std::to_string(rank),
          "NCCL 2.28.9 at /lib/libnccl.so.2",
          "NCCL_DEBUG=INFO tells more"};
}

Failure failed(Cause cause, int rank) {
  return {.cause = cause,
          .rank = rank,
          .what = "a socket was closed",
          .number = 7,
          .operation = kCall,
          .bytes = 400,
          .peers = {},
          .limit = std::chrono::milliseconds(100)};
}

RankProgress waiting_in_7() { return {.called = 7, .started = 7, .completed = 6, .oldest = 7, .operation = kCall}; }
RankProgress done_with(std::uint64_t number) {
  return {.called = number, .started = number, .completed = number, .oldest = 0, .operation = kCall};
}

TEST(NcclVerdict, ATimeoutNamesWhoDidNotComeAndHowFarAllAre) {
  const auto verdict = judge(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), done_with(5)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message,
              AllOf(HasSubstr(std::string("rank 2 did not come to ") + kCall + ", call 7, 400 bytes, within 100 ms"),
                    HasSubstr("where: rank 0 of 3, pid 4711"), HasSubstr("cuda:0, NCCL 2.28.9"),
                    HasSubstr("ranks: rank 2 called 5 and completed it; rank 0 called 7, started 7, completed 6")));
}

TEST(NcclVerdict, OfASubGroupSaysWhichRanksOfTheJobItIs) {
  FailedGroup group = group_of(1);
  group.who.name = "group_0/2";
  EXPECT_THAT(judge(group, failed(Cause::timed_out, 0), {}).message,
              HasSubstr("where: rank 1 of 3 in group_0/2, pid 4711"));
  group.job_ranks = {2, 3, 5};
  EXPECT_THAT(judge(group, failed(Cause::timed_out, 0), {}).message,
              HasSubstr("where: rank 1 of 3 in group_0/2, which is ranks 2, 3 and 5 of the job, pid 4711"));
}

TEST(NcclVerdict, ATimeoutIsTheSameOnARankThatHeardOfIt) {
  const auto verdict = judge(group_of(1), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), std::nullopt});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message, HasSubstr("rank 2 does not answer"));
}

TEST(NcclVerdict, WhoWasWaitedForHearsWhoGaveUp) {
  const auto verdict = judge(group_of(2), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), done_with(5)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(verdict.ranks, ElementsAre(0));
  EXPECT_THAT(verdict.message, HasSubstr("rank 0 gave up on the group: it waited 100 ms for this rank in all_reduce"));
}

TEST(NcclVerdict, ATimeoutInWhichAllHaveComeNamesNobody) {
  const auto verdict =
      judge(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), waiting_in_7()});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, IsEmpty());
  EXPECT_THAT(verdict.message, HasSubstr("did not complete, within 100 ms, though every rank has called it"));
}

TEST(NcclVerdict, DifferentCallsOfOneNumberAreAMismatch) {
  RankProgress other = waiting_in_7();
  other.operation = "barrier";
  for (const int rank : {0, 1, 2}) {
    const auto verdict = judge(group_of(rank), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), other});
    EXPECT_EQ(verdict.kind, Verdict::Kind::mismatch);
    EXPECT_THAT(verdict.message, HasSubstr(std::string("rank 0 called ") + kCall + ", rank 2 called barrier (call 7)"));
  }
}

TEST(NcclVerdict, ASendThatNobodyMetNamesItsPeer) {
  Failure failure = failed(Cause::timed_out, 0);
  failure.operation = "send of 5 float32 to rank 2";
  failure.number = 0;
  failure.peers = {2};
  const auto verdict = judge(group_of(0), failure, {done_with(7), done_with(7), done_with(7)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message, HasSubstr("rank 2 did not come to send of 5 float32 to rank 2, 400 bytes"));
}

TEST(NcclVerdict, AnErrorOfNcclNamesWhoDoesNotAnswer) {
  const auto verdict = judge(group_of(0), failed(Cause::transport, 0), {waiting_in_7(), waiting_in_7(), std::nullopt});
  EXPECT_EQ(verdict.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message, HasSubstr("rank 2 is gone: this rank found in all_reduce of 100 float32 (sum), call 7, "
                                         "400 bytes: a socket was closed"));
}

TEST(NcclVerdict, AnErrorThatAllOutliveNamesWhoFoundIt) {
  const Progress all{waiting_in_7(), waiting_in_7(), waiting_in_7()};
  EXPECT_THAT(judge(group_of(1), failed(Cause::transport, 0), all).ranks, ElementsAre(0));
  EXPECT_THAT(judge(group_of(0), failed(Cause::transport, 0), all).ranks, IsEmpty());
  EXPECT_EQ(judge(group_of(0), failed(Cause::device, 0), all).kind, Verdict::Kind::error);
  EXPECT_EQ(judge(group_of(1), failed(Cause::device, 0), all).kind, Verdict::Kind::rank_failure);
}

TEST(NcclVerdict, WithoutTheStoreARankSaysWhatItKnows) {
  const auto verdict = judge(group_of(0), failed(Cause::timed_out, 0), {});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.message, AllOf(HasSubstr("within 100 ms"), Not(HasSubstr("every rank has called it"))));
}

TEST(NcclVerdict, AnAbortIsToldToTheOthersAsARanksDeed) {
  const Failure abort{.cause = Cause::aborted, .rank = 1, .what = "the user pressed a key"};
  EXPECT_EQ(judge(group_of(1), abort, {}).kind, Verdict::Kind::aborted);
  EXPECT_EQ(judge(group_of(1), abort, {}).message, "it was aborted: the user pressed a key");
  const auto elsewhere = judge(group_of(0), abort, {});
  EXPECT_EQ(elsewhere.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(elsewhere.ranks, ElementsAre(1));
  EXPECT_THAT(elsewhere.message, HasSubstr("rank 1 aborted the group: the user pressed a key"));
}

TEST(NcclVerdict, IsThrownAsItsKind) {
  EXPECT_THAT(thrown_by<TimeoutError>([] {
                throw_verdict({Verdict::Kind::timeout, "t", {2}});
              })->ranks(),
              ElementsAre(2));
  EXPECT_THAT(thrown_by<RankFailure>([] {
                throw_verdict({Verdict::Kind::rank_failure, "r", {1}});
              })->ranks(),
              ElementsAre(1));
  thrown_by<MismatchError>([] { throw_verdict({Verdict::Kind::mismatch, "m", {}}); });
  EXPECT_STREQ(thrown_by<AbortedError>([] {
                 throw_verdict({Verdict::Kind::aborted, "it was aborted: x", {}});
               })->what(),
               "the process group is of no further use: it was aborted: x");
  thrown_by<RoundOver>([] { throw_verdict({Verdict::Kind::round_over, "over", {}}); });
  EXPECT_STREQ(thrown_by<AbortedError>([] {
                 throw_unusable({Verdict::Kind::timeout, "t", {2}});
               })->what(),
               "the process group is of no further use: t");
}

TEST(NcclFailure, ComesOutAsItWentIn) {
  Failure failure = failed(Cause::timed_out, 2);
  failure.peers = {0, 1};
  const auto read = decode_failure(encode(failure), 3);
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), encode(failure));
  EXPECT_EQ(read->cause, Cause::timed_out);
  EXPECT_EQ(read->rank, 2);
  EXPECT_EQ(read->number, 7u);
  EXPECT_EQ(read->operation, kCall);
  EXPECT_EQ(read->bytes, 400u);
  EXPECT_THAT(read->peers, ElementsAre(0, 1));
  EXPECT_EQ(read->limit, std::chrono::milliseconds(100));
  EXPECT_EQ(read->what, "a socket was closed");
}

TEST(NcclFailure, WhatIsMalformedIsNone) {
  for (const char* text : {"", "x", "99 0 1 1 1 \n\n", "0 3 1 1 1 \n\n", "0 -1 1 1 1 \n\n", "0 0 x 1 1 \n\n",
                           "0 0 1 1 1 7\n\n", "0 0 1 1 1 1,x\n\n", "0 0 1"}) {
    SCOPED_TRACE(text);
    EXPECT_FALSE(decode_failure(text, 3));
  }
}

}  // namespace
}  // namespace ddp::core
