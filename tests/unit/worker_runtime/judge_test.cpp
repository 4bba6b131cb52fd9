#include "worker_runtime/core/failure/judge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::core {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Progress = std::vector<std::optional<RankProgress>>;

constexpr const char* kCall = "all_reduce of 100 float32 (sum)";

FailedGroup group_of(int rank) {
  process_group::GroupMember who;
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

Verdict judge_by(const FailedGroup& group, const Failure& failure, const Progress& progress) {
  return judge(group, failure, reports_of(failure, progress));
}

TEST(Judge, TimeoutNamesTheMissingRankAndHowFarAllCame) {
  const auto verdict =
      judge_by(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), done_with(5)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message,
              AllOf(HasSubstr(std::string("rank 2 did not come to ") + kCall +
                              ", call 7, 400 bytes, within 100 ms; rank 2 last called all_reduce"),
                    HasSubstr("where: rank 0 of 3, pid 4711"), HasSubstr("cuda:0, NCCL 2.28.9"),
                    HasSubstr("ranks: rank 2 called 5 and completed it; rank 0 called 7, started 7, completed 6")));
}

TEST(Judge, TimeoutDoesNotNameARankThatWaitsInAnEarlierCallItself) {
  const RankProgress waiting_in_6{.called = 6, .started = 6, .completed = 5, .oldest = 6, .operation = kCall};
  const Progress rank_2_is_silent{waiting_in_7(), waiting_in_6, std::nullopt};
  for (const int rank : {0, 1}) {
    const auto verdict = judge_by(group_of(rank), failed(Cause::timed_out, 0), rank_2_is_silent);
    EXPECT_EQ(verdict.kind, Verdict::Kind::timeout) << "rank " << rank;
    EXPECT_THAT(verdict.ranks, ElementsAre(2)) << "rank " << rank;
  }
  EXPECT_THAT(judge_by(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_6, done_with(5)}).ranks,
              ElementsAre(2));
}

TEST(Judge, TimeoutOfACallFarAheadNamesTheRankThatAnotherOneWaitsFor) {
  const RankProgress far_ahead{.called = 7, .started = 7, .completed = 5, .oldest = 6, .operation = kCall};
  const RankProgress waiting_in_6{.called = 6, .started = 6, .completed = 5, .oldest = 6, .operation = kCall};
  const RankProgress stuck_in_5{.called = 5, .started = 5, .completed = 4, .oldest = 5, .operation = kCall};
  EXPECT_THAT(judge_by(group_of(0), failed(Cause::timed_out, 0), {far_ahead, stuck_in_5, waiting_in_6}).ranks,
              ElementsAre(1));
}

TEST(Judge, TimeoutNamesARankInAnEarlierCallWhereNoOtherHoldsThatUp) {
  const RankProgress late_in_6{.called = 6, .started = 6, .completed = 5, .oldest = 6, .operation = kCall};
  EXPECT_THAT(judge_by(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), late_in_6, waiting_in_7()}).ranks,
              ElementsAre(1));
}

TEST(Judge, ErrorOfASubGroupNamesItsRanksOfTheJob) {
  FailedGroup group = group_of(1);
  group.who.name = "group_0/2";
  EXPECT_THAT(judge_by(group, failed(Cause::timed_out, 0), {}).message,
              HasSubstr("where: rank 1 of 3 in group_0/2, pid 4711"));
  group.job_ranks = {2, 3, 5};
  EXPECT_THAT(judge_by(group, failed(Cause::timed_out, 0), {}).message,
              HasSubstr("where: rank 1 of 3 in group_0/2, which is ranks 2, 3 and 5 of the job, pid 4711"));
}

TEST(Judge, TimeoutIsTheSameOnARankThatIsTold) {
  const auto verdict =
      judge_by(group_of(1), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), std::nullopt});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message, HasSubstr("within 100 ms; rank 2 did not answer\n"));
}

TEST(Judge, AwaitedRankLearnsWhichRankGaveUp) {
  const auto verdict =
      judge_by(group_of(2), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), done_with(5)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(verdict.ranks, ElementsAre(0));
  EXPECT_THAT(verdict.message, HasSubstr("rank 0 gave up on the group: it waited 100 ms for this rank in all_reduce"));
}

TEST(Judge, TimeoutAfterAllRanksCalledNamesNone) {
  const auto verdict =
      judge_by(group_of(0), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), waiting_in_7()});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, IsEmpty());
  EXPECT_THAT(verdict.message, HasSubstr("did not complete within 100 ms, though every rank has called it"));
}

TEST(Judge, DifferentCallsWithOneNumberAreAMismatch) {
  RankProgress other = waiting_in_7();
  other.operation = "barrier";
  for (const int rank : {0, 1, 2}) {
    const auto verdict = judge_by(group_of(rank), failed(Cause::timed_out, 0), {waiting_in_7(), waiting_in_7(), other});
    EXPECT_EQ(verdict.kind, Verdict::Kind::mismatch);
    EXPECT_THAT(verdict.message, HasSubstr(std::string("rank 0 called ") + kCall + ", rank 2 called barrier (call 7)"));
  }
}

TEST(Judge, TimeoutOfASendNamesItsPeer) {
  Failure failure = failed(Cause::timed_out, 0);
  failure.operation = "send of 5 float32 to rank 2";
  failure.number = 0;
  failure.peers = {2};
  const auto verdict = judge_by(group_of(0), failure, {done_with(7), done_with(7), done_with(7)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message,
              AllOf(HasSubstr("rank 2 did not come to send of 5 float32 to rank 2, 400 bytes, within 100 ms; "
                              "rank 2's last collective is all_reduce"),
                    HasSubstr("in one coalesce()")));
}

TEST(Judge, ErrorNamesTheRankThatDidNotAnswer) {
  const auto verdict =
      judge_by(group_of(0), failed(Cause::transport, 0), {waiting_in_7(), waiting_in_7(), std::nullopt});
  EXPECT_EQ(verdict.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.message, HasSubstr("rank 2 did not answer: this rank found in all_reduce of 100 float32 (sum), "
                                         "call 7, 400 bytes: a socket was closed"));
}

TEST(Judge, ErrorAfterWhichAllAnswerNamesTheRankThatFoundIt) {
  const Progress all{waiting_in_7(), waiting_in_7(), waiting_in_7()};
  EXPECT_THAT(judge_by(group_of(1), failed(Cause::transport, 0), all).ranks, ElementsAre(0));
  EXPECT_THAT(judge_by(group_of(0), failed(Cause::transport, 0), all).ranks, IsEmpty());
  EXPECT_EQ(judge_by(group_of(0), failed(Cause::device, 0), all).kind, Verdict::Kind::error);
  EXPECT_EQ(judge_by(group_of(1), failed(Cause::device, 0), all).kind, Verdict::Kind::rank_failure);
}

TEST(Judge, TimeoutWithoutAnyReportNamesNone) {
  const auto verdict = judge_by(group_of(0), failed(Cause::timed_out, 0), {});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.message, AllOf(HasSubstr("within 100 ms"), Not(HasSubstr("every rank has called it"))));
}

TEST(Judge, AbortIsAFailureOfTheAbortingRankForTheOthers) {
  const Failure abort{.cause = Cause::aborted, .rank = 1, .what = "the user pressed a key"};
  EXPECT_EQ(judge_by(group_of(1), abort, {}).kind, Verdict::Kind::aborted);
  EXPECT_EQ(judge_by(group_of(1), abort, {}).message, "it was aborted: the user pressed a key");
  const auto elsewhere = judge_by(group_of(0), abort, {});
  EXPECT_EQ(elsewhere.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(elsewhere.ranks, ElementsAre(1));
  EXPECT_THAT(elsewhere.message, HasSubstr("rank 1 aborted the group: the user pressed a key"));
}

// The backend cpu knows only of the ranks that are missing or lost.
Failure failed_in_barrier(Cause cause) {
  return {.cause = cause, .rank = 1, .number = 9, .operation = "barrier", .limit = std::chrono::milliseconds(250)};
}

RankState state_of(int rank, Presence presence, std::uint64_t calls) {
  return {.rank = rank,
          .pid = 10 + rank,
          .presence = presence,
          .calls = calls,
          .last_call = {.kind = CollectiveKind::broadcast, .count = 5}};
}

RankReport missing_in_9(const RankState& state) { return report_of(state, 9, Part::missing); }

TEST(Judge, LostRanksAreNamedWithWhatTheyDid) {
  FailedGroup group{.who = {.rank = 1, .size = 4, .round = {}}, .pid = 77};
  const RankReport dead = missing_in_9(state_of(0, Presence::here, 8));
  const RankReport left = missing_in_9(state_of(3, Presence::left, 8));
  const auto verdict = judge(group, failed_in_barrier(Cause::ranks_lost), {dead});
  EXPECT_EQ(verdict.kind, Verdict::Kind::rank_failure);
  EXPECT_THAT(verdict.ranks, ElementsAre(0));
  EXPECT_EQ(verdict.message,
            "rank 0 (pid 10) ended; this rank needed it in barrier, call 9\n"
            "where: rank 1 of 4, pid 77, round 0-0000000000000000-0\n"
            "try:   look at the end of the output of rank 0; `dmesg | grep -i oom` tells whether memory ran out");
  const auto of_two = judge(group, failed_in_barrier(Cause::ranks_lost), {dead, left});
  EXPECT_THAT(of_two.ranks, ElementsAre(0, 3));
  EXPECT_THAT(of_two.message,
              StartsWith("rank 0 (pid 10) ended, rank 3 (pid 13) has left the group; this rank needed them in"));
}

TEST(Judge, TimeoutSaysWhatEachMissingRankDidLast) {
  RankState silent = state_of(4, Presence::unreachable, 0);
  silent.answer = Answer::silent;
  const auto verdict =
      judge(group_of(1), failed_in_barrier(Cause::timed_out),
            {missing_in_9(state_of(0, Presence::here, 0)), missing_in_9(state_of(2, Presence::here, 8)),
             missing_in_9(state_of(3, Presence::here, 9)), missing_in_9(silent)});
  EXPECT_EQ(verdict.kind, Verdict::Kind::timeout);
  EXPECT_THAT(verdict.ranks, ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(verdict.message,
              StartsWith("ranks 0, 2, 3 and 4 did not come to barrier, call 9, within 250 ms; rank 0 (pid 10) has "
                         "called nothing yet; rank 2 (pid 12) last called broadcast of 5 float32 from rank 0, call 8; "
                         "rank 3 (pid 13) did not finish broadcast of 5 float32 from rank 0, call 9; rank 4 (pid 14) "
                         "did not answer\n"));
}

TEST(Judge, TimeoutDescribesNoMoreRanksThanAPersonReads) {
  std::vector<RankReport> missing;
  for (int rank = 0; rank < 20; ++rank) missing.push_back(missing_in_9(state_of(rank, Presence::here, 0)));
  const auto verdict = judge(group_of(1), failed_in_barrier(Cause::timed_out), missing);
  EXPECT_EQ(verdict.ranks.size(), 20u);
  EXPECT_THAT(verdict.message, HasSubstr("rank 15 (pid 25) has called nothing yet; and 4 more\n"));
}

TEST(Judge, PeersThatMetASendAreMissedAtItsEnd) {
  Failure failure = failed_in_barrier(Cause::timed_out);
  failure.operation = "send of 5 float32 to rank 2";
  failure.peers = {2};
  RankState peer = state_of(2, Presence::here, 3);
  EXPECT_THAT(judge(group_of(1), failure, {report_of(peer, 0, Part::begun)}).message,
              StartsWith("rank 2 did not come to the end of send of 5 float32 to rank 2, message 9, within 250 ms; "
                         "rank 2 (pid 12)'s last collective is broadcast"));
  peer.answer = Answer::not_asked;
  EXPECT_THAT(judge(group_of(1), failure, {report_of(peer, 0, Part::missing)}).message,
              StartsWith("rank 2 did not come to send of 5 float32 to rank 2, message 9, within 250 ms\n"));
}

TEST(Judge, MismatchSaysWhatToTry) {
  Failure failure = failed_in_barrier(Cause::mismatch);
  failure.what = describe_difference({2, "barrier"}, {1, "split"});
  EXPECT_THAT(judge(group_of(1), failure, {}).message,
              AllOf(StartsWith("rank 1 called split, rank 2 called barrier (call 9)\n"),
                    HasSubstr("let every rank call the same collectives in the same order")));
  failure.peers = {2};
  EXPECT_THAT(judge(group_of(1), failure, {}).message,
              AllOf(HasSubstr("(message 9)\n"), HasSubstr("let the sender and the receiver name the same type")));
}

}  // namespace
}  // namespace ddp::core
