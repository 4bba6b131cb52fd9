#include "worker_runtime/flight_recorder/recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/flight_recorder/quick_clock.hpp"

#ifndef __SANITIZE_THREAD__  // which has its own
namespace {

thread_local int allocation_count = 0;

}  // namespace

// Counts what a thread allocates. Not inline, where the compiler takes the pairs for mismatched ones.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocation_count;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace {

std::atomic<bool> are_clocks_raw{false};

// While it lives, both clocks are the kernel's raw clock, whose rate and time nobody adjusts.
class RawClocks {
 public:
  RawClocks() { are_clocks_raw = true; }
  ~RawClocks() { are_clocks_raw = false; }
  RawClocks(const RawClocks&) = delete;
  RawClocks& operator=(const RawClocks&) = delete;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const bool is_adjusted = clock == CLOCK_MONOTONIC || clock == CLOCK_REALTIME;
  return static_cast<int>(
      ::syscall(SYS_clock_gettime, is_adjusted && are_clocks_raw ? CLOCK_MONOTONIC_RAW : clock, time));
}

namespace ddp::flight_recorder {
namespace {

using process_group::Collective;
using process_group::CollectiveKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StrEq;

constexpr Operation kAllReduce{
    .name = "all_reduce", .reduce_op = "sum", .input_count = 4, .output_count = 4, .element_bytes = 4};
constexpr Operation kBarrier{.name = "barrier"};

Operation send_to(int peer) { return {.name = "send", .input_count = 2, .element_bytes = 4, .peer = peer}; }
Operation receive_from(int peer) { return {.name = "receive", .output_count = 2, .element_bytes = 4, .peer = peer}; }

GroupFacts group_named(const std::string& name) {
  return {.backend = "cpu", .name = name, .description = "all ranks", .ranks = {0, 1}, .rank = 1};
}

TimePoint at(int nanoseconds) { return TimePoint(std::chrono::nanoseconds(nanoseconds)); }

std::vector<std::uint64_t> records_of(const Snapshot& snapshot) {
  std::vector<std::uint64_t> records;
  for (const Entry& entry : snapshot.entries) records.push_back(entry.record);
  return records;
}

std::vector<State> states_of(const Snapshot& snapshot) {
  std::vector<State> states;
  for (const Entry& entry : snapshot.entries) states.push_back(entry.state);
  return states;
}

TEST(FlightRecorder, ACompletionSaidWithoutTheLockIsSeenAtOnce) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group_0"));
  auto& completion = recorder.completion_of(group);
  completion.say(recorder.record_started(group, kAllReduce, at(1)), at(3));
  const Snapshot seen = recorder.snapshot();
  EXPECT_THAT(states_of(seen), ElementsAre(State::completed));
  EXPECT_EQ(seen.entries.front().ended, at(3));
  EXPECT_EQ(seen.groups.front().last_completed, 1u);

  completion.say(recorder.record_started(group, kBarrier, at(5)), at(6));
  const Ticket last = recorder.record_started(group, kBarrier, at(7));
  EXPECT_THAT(states_of(recorder.snapshot()), ElementsAre(State::completed, State::completed, State::started));
  completion.say(last, at(8));
  recorder.close(group);
  const Snapshot closed = recorder.snapshot();
  EXPECT_THAT(states_of(closed), ElementsAre(State::completed, State::completed, State::completed));
  EXPECT_EQ(closed.entries.back().ended, at(8));
}

TEST(FlightRecorder, ACompletionOfWhatTheRingHasGoneOverIsNoOnes) {
  Recorder recorder(2);
  const GroupId slow = recorder.open(group_named("group_0")), fast = recorder.open(group_named("group_1"));
  const Ticket ticket = recorder.record_started(slow, kBarrier, at(1));
  for (int i = 0; i < 3; ++i) recorder.record_started(fast, kBarrier, at(2));
  recorder.completion_of(slow).say(ticket, at(3));
  EXPECT_THAT(states_of(recorder.snapshot()), ElementsAre(State::started, State::started));
}

TEST(FlightRecorder, ACompletionIsKnownWhenTheRingHasGoneOverWhatItIsOf) {
  Recorder recorder(2);
  const GroupId slow = recorder.open(group_named("group_0")), fast = recorder.open(group_named("group_1"));
  recorder.completion_of(slow).say(recorder.record_started(slow, kBarrier, at(1)), at(2));
  for (int i = 0; i < 3; ++i) recorder.record_started(fast, kBarrier, at(3));
  const Snapshot snapshot = recorder.snapshot();
  EXPECT_EQ(snapshot.groups.front().last_completed, 1u);
}

TEST(QuickClock, GoesWithBothClocks) {
  const RawClocks raw;
  QuickClock clock;
  Moment last = clock.now();
  const auto end = last.steady + std::chrono::milliseconds(50);  // over several settings
  while (last.steady < end) {
    const auto steady_before = std::chrono::steady_clock::now();
    const TimePoint wall_before = now();
    last = clock.now();
    const TimePoint wall_after = now();
    const auto steady_after = std::chrono::steady_clock::now();
    constexpr std::chrono::microseconds kOff{20};
    ASSERT_GE(last.steady, steady_before - kOff);
    ASSERT_LE(last.steady, steady_after + kOff);
    ASSERT_GE(last.wall, wall_before - kOff);
    ASSERT_LE(last.wall, wall_after + kOff);
  }
}

TEST(FlightRecorder, KeepsWhatAnOperationWasAndItsTimes) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group_0"));
  const TimePoint before = now();
  const Ticket ticket = recorder.record(group, kAllReduce);
  recorder.start(ticket, before + std::chrono::seconds(1));
  recorder.complete(ticket, before + std::chrono::seconds(2));

  const Snapshot snapshot = recorder.snapshot();
  ASSERT_THAT(snapshot.entries, SizeIs(1));
  const Entry& entry = snapshot.entries.front();
  EXPECT_EQ(entry.group, group);
  EXPECT_THAT(entry.operation.name, StrEq("all_reduce"));
  EXPECT_EQ(entry.operation.input_count, 4U);
  EXPECT_EQ(entry.state, State::completed);
  EXPECT_GE(entry.created, before);
  EXPECT_EQ(entry.started, before + std::chrono::seconds(1));
  EXPECT_EQ(entry.ended, before + std::chrono::seconds(2));
  ASSERT_THAT(snapshot.groups, SizeIs(1));
  EXPECT_EQ(snapshot.groups.front().facts.name, "group_0");
}

TEST(FlightRecorder, CountsCollectivesAndPointToPointOfEachGroupApart) {
  Recorder recorder;
  const GroupId first = recorder.open(group_named("first"));
  const GroupId second = recorder.open(group_named("second"));
  recorder.record(first, kAllReduce);
  recorder.record(second, kBarrier);
  recorder.record(first, send_to(0));
  const Ticket last = recorder.record(first, kBarrier);
  EXPECT_EQ(last.record, 3U);
  EXPECT_EQ(last.collective_sequence, 2U);
  EXPECT_EQ(last.point_to_point_sequence, 1U);

  const auto entries = recorder.snapshot().entries;
  ASSERT_THAT(entries, SizeIs(4));
  EXPECT_EQ(entries[1].collective_sequence, 1U);
  EXPECT_EQ(entries[1].operation_number, 1U);
  EXPECT_TRUE(entries[2].is_point_to_point);
  EXPECT_EQ(entries[2].collective_sequence, 1U);
  EXPECT_EQ(entries[3].operation_number, 3U);
}

TEST(FlightRecorder, ACoalescedCallIsOneWithItsEnd) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group"));
  recorder.record(group, kBarrier);
  const std::vector<Operation> both{send_to(0), receive_from(0)};
  const Ticket ticket = recorder.record(group, both);
  EXPECT_EQ(ticket.entry_count, 3U);
  recorder.start(ticket);
  recorder.complete(ticket);
  const auto next = recorder.record(group, std::vector<Operation>{kAllReduce, kAllReduce});
  EXPECT_EQ(next.collective_sequence, 2U);

  const auto entries = recorder.snapshot().entries;
  ASSERT_THAT(entries, SizeIs(7));
  EXPECT_THAT(entries[3].operation.name, StrEq("coalesced"));
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(entries[i].point_to_point_sequence, 1U);
    EXPECT_EQ(entries[i].operation_number, static_cast<std::uint64_t>(i + 1));
    EXPECT_TRUE(entries[i].is_point_to_point);
    EXPECT_EQ(entries[i].state, State::completed);
  }
  for (int i = 4; i <= 6; ++i) EXPECT_EQ(entries[i].collective_sequence, 2U);
}

TEST(FlightRecorder, TheRingKeepsTheLast) {
  Recorder recorder(4);
  const GroupId group = recorder.open(group_named("group"));
  const Ticket first = recorder.record(group, kAllReduce);
  for (int i = 0; i < 3; ++i) recorder.record(group, kAllReduce);
  EXPECT_THAT(records_of(recorder.snapshot()), ElementsAre(0, 1, 2, 3));
  for (int i = 0; i < 6; ++i) recorder.record(group, kAllReduce);
  recorder.start(first);
  recorder.complete(first);
  recorder.refuse(first);
  const Snapshot snapshot = recorder.snapshot();
  EXPECT_THAT(records_of(snapshot), ElementsAre(6, 7, 8, 9));
  EXPECT_THAT(states_of(snapshot), ::testing::Each(State::scheduled));
  EXPECT_EQ(snapshot.groups.front().last_scheduled, 10U);
}

TEST(FlightRecorder, AClosedGroupGoesWithTheLastOfItsEntries) {
  Recorder recorder(3);
  const GroupId without = recorder.open(group_named("without entries"));
  const GroupId closed = recorder.open(group_named("closed"));
  const GroupId open = recorder.open(group_named("open"));
  recorder.record(closed, kBarrier);
  recorder.close(closed);
  recorder.close(without);
  EXPECT_THAT(recorder.snapshot().groups, SizeIs(2));
  recorder.record(open, kBarrier);
  recorder.record(open, kBarrier);
  EXPECT_THAT(recorder.snapshot().groups, SizeIs(2));
  recorder.record(open, kBarrier);
  ASSERT_THAT(recorder.snapshot().groups, SizeIs(1));
  EXPECT_EQ(recorder.snapshot().groups.front().facts.name, "open");
}

TEST(FlightRecorder, WhatHasEndedStaysAsItIs) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group"));
  const Ticket completed = recorder.record(group, kBarrier);
  const Ticket failed = recorder.record(group, kBarrier);
  const Ticket refused = recorder.record(group, kBarrier);
  recorder.complete(completed, at(5));
  recorder.fail(failed, at(6));
  recorder.refuse(refused);
  for (const Ticket& ticket : {completed, failed, refused}) {
    recorder.start(ticket, at(7));
    recorder.complete(ticket, at(8));
    recorder.fail(ticket, at(9));
    recorder.refuse(ticket);
  }
  const Snapshot snapshot = recorder.snapshot();
  EXPECT_THAT(states_of(snapshot), ElementsAre(State::completed, State::failed, State::refused));
  EXPECT_EQ(snapshot.entries[0].started, at(5));  // nobody saw it start
  EXPECT_EQ(snapshot.entries[0].ended, at(5));
  EXPECT_EQ(snapshot.entries[1].started, TimePoint{});
  EXPECT_EQ(snapshot.entries[1].ended, at(6));
}

TEST(FlightRecorder, ARefusedCallLeavesItsNumbersToTheNext) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group"));
  recorder.record(group, kBarrier);
  recorder.refuse(recorder.record(group, kBarrier));
  const Ticket second = recorder.record(group, kBarrier);
  EXPECT_EQ(second.collective_sequence, 2U);
  EXPECT_EQ(recorder.snapshot().entries.back().operation_number, 2U);
  const Ticket third = recorder.record(group, kBarrier);
  recorder.refuse(second);  // not the last one
  EXPECT_EQ(recorder.record(group, kBarrier).collective_sequence, third.collective_sequence + 1);
  recorder.refuse(recorder.record(group, send_to(0)));
  EXPECT_EQ(recorder.record(group, send_to(0)).point_to_point_sequence, 1U);
}

TEST(FlightRecorder, SaysHowFarEachGroupHasCome) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group"));
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(recorder.record(group, kBarrier));
  for (int i = 0; i < 3; ++i) recorder.start(tickets[i]);
  for (int i = 0; i < 2; ++i) recorder.complete(tickets[i]);
  recorder.fail(tickets[2]);
  const GroupStatus status = recorder.snapshot().groups.front();
  EXPECT_EQ(status.last_scheduled, 5U);
  EXPECT_EQ(status.last_started, 3U);
  EXPECT_EQ(status.last_completed, 2U);
}

TEST(FlightRecorder, SaysWhetherACallOfAnOpenGroupHasNotCompleted) {
  Recorder recorder(4);
  EXPECT_FALSE(recorder.has_incomplete_call());
  const GroupId group = recorder.open({});
  const Ticket first = recorder.record(group, kAllReduce);
  EXPECT_TRUE(recorder.has_incomplete_call());
  recorder.start(first);
  recorder.complete(first);
  EXPECT_FALSE(recorder.has_incomplete_call());
  const Ticket second = recorder.record(group, kAllReduce);
  recorder.refuse(second);
  EXPECT_FALSE(recorder.has_incomplete_call()) << "the other ranks never saw it";
  const Ticket third = recorder.record_started(group, kAllReduce, now());
  recorder.completion_of(group).say(third, now());
  EXPECT_FALSE(recorder.has_incomplete_call());
  recorder.fail(recorder.record(group, kAllReduce));
  EXPECT_TRUE(recorder.has_incomplete_call());
  recorder.close(group);
  EXPECT_FALSE(recorder.has_incomplete_call());
}

TEST(FlightRecorder, RecordsOfARoundCountFromItsStart) {
  Recorder recorder;
  const GroupId group = recorder.open(group_named("group"));
  recorder.record(group, kBarrier);
  recorder.close(group);
  recorder.begin_round("second");
  recorder.record(recorder.open(group_named("group")), kBarrier);
  recorder.begin_round("second");
  recorder.open(group_named("other"));
  std::vector<std::uint64_t> firsts, rounds;
  for (const auto& status : recorder.snapshot().groups) {
    firsts.push_back(status.first_record_of_round);
    rounds.push_back(status.round_count);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 1, 1));
  EXPECT_THAT(rounds, ElementsAre(0, 1, 1));
}

#ifndef __SANITIZE_THREAD__
TEST(FlightRecorder, RecordingAllocatesNothing) {
  Recorder recorder(64);
  const GroupId group = recorder.open(group_named("group"));
  const std::vector<Operation> coalesced{send_to(0), receive_from(0)};
  const int before = allocation_count;
  for (int i = 0; i < 1000; ++i) {
    const Ticket ticket = recorder.record(group, kAllReduce);
    recorder.start(ticket);
    recorder.complete(ticket);
    recorder.fail(recorder.record(group, coalesced));
  }
  EXPECT_EQ(allocation_count, before);
}
#endif

TEST(FlightRecorder, ThreadsMayRecordAndLookAtOnce) {
  constexpr int kThreads = 4, kCalls = 2000;
  Recorder recorder(256);
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const GroupId group = recorder.open(group_named("group_" + std::to_string(i)));
      for (int call = 1; call <= kCalls; ++call) {
        const Ticket ticket = recorder.record(group, kAllReduce);
        EXPECT_EQ(ticket.collective_sequence, static_cast<std::uint64_t>(call));
        recorder.start(ticket);
        recorder.complete(ticket);
      }
      recorder.close(group);
      --running;
    });
  }
  while (running > 0) {
    const auto records = records_of(recorder.snapshot());
    for (std::size_t i = 1; i < records.size(); ++i) ASSERT_EQ(records[i], records[i - 1] + 1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder.snapshot().entries.back().record, kThreads * kCalls - 1U);
}

TEST(FlightRecorder, AForkedChildHasItsOwn) {
  const auto recorded_before = process_recorder().snapshot().entries.size();  // by other tests of this process
  const GroupId group = process_recorder().open(group_named("of the parent"));
  process_recorder().record(group, kBarrier);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool is_empty = process_recorder().snapshot().entries.empty();
    const GroupId own = process_recorder().open(group_named("of the child"));
    const bool is_first = process_recorder().record(own, kBarrier).record == 0;
    ::_exit(is_empty && is_first ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(process_recorder().snapshot().entries, SizeIs(recorded_before + 1));
  process_recorder().close(group);
}

TEST(OperationOf, TakesWhatACollectiveIsAbout) {
  std::vector<float> input(3), output(6);
  Collective gather{
      .kind = CollectiveKind::all_gather, .input = input, .output = output, .timeout = std::chrono::seconds(2)};
  const Operation gathered = operation_of(gather);
  EXPECT_THAT(gathered.name, StrEq("all_gather"));
  EXPECT_EQ(gathered.reduce_op, nullptr);
  EXPECT_EQ(gathered.input_count, 3U);
  EXPECT_EQ(gathered.output_count, 6U);
  EXPECT_EQ(gathered.element_bytes, sizeof(float));
  EXPECT_EQ(gathered.root, -1);
  EXPECT_EQ(gathered.peer, -1);
  EXPECT_EQ(gathered.timeout, std::chrono::seconds(2));

  Collective reduce{.kind = CollectiveKind::reduce_scatter, .input = output, .output = input, .op = ReduceOp::average};
  EXPECT_THAT(operation_of(reduce).reduce_op, StrEq("average"));
  std::vector<std::int64_t> integers(2);
  const Operation broadcast =
      operation_of({.kind = CollectiveKind::broadcast, .input = integers, .output = integers, .root = 1});
  EXPECT_EQ(broadcast.root, 1);
  EXPECT_EQ(broadcast.type, DataType::int64);
  EXPECT_EQ(operation_of({}).element_bytes, 0U);  // a barrier
}

}  // namespace
}  // namespace ddp::flight_recorder
