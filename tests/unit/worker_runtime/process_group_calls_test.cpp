// What a process group makes of calls before they reach a backend: what it refuses, and what it hands on.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/thrown_by.hpp"
#include "tests/unit/worker_runtime/stand_in_backend.hpp"

namespace ddp {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;
using process_group::AbortCause;
using test::Calls;
using test::Collective;
using test::CollectiveKind;
using test::group_over;
using test::kGpu;
using test::StandInBackend;
using testing::thrown_by;

// Rank 1 of 3.
class GroupCalls : public ::testing::Test {
 protected:
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  ProcessGroup group_ = group_over(std::make_unique<StandInBackend>(calls_, Device{}), 1, 3);
  std::vector<float> two_ = std::vector<float>(2);
  std::vector<float> six_ = std::vector<float>(6);
  std::vector<float> other_six_ = std::vector<float>(6);
  std::vector<double> reals_ = std::vector<double>(6);

  MemoryRange part(std::size_t begin, std::size_t count) { return {six_.data() + begin, count}; }

  std::string refusal(const std::function<void()>& call) {
    const auto error = thrown_by<InvalidArgument>(call);
    return error ? error->what() : "";
  }

  const Collective& only_run() {
    EXPECT_EQ(calls_->run.size(), 1u);
    return calls_->run.back();
  }
};

TEST_F(GroupCalls, HandOnEveryKind) {
  group_.reduce(two_, {}, 0, ReduceOp::product);
  group_.gather(two_, {}, 2);
  group_.scatter({}, two_, 0);
  group_.all_to_all(six_, other_six_);
  group_.send(two_, 2);
  group_.receive(two_, 0);
  group_.all_reduce(two_, ReduceOp::max);
  group_.barrier();
  const CollectiveKind kinds[] = {CollectiveKind::reduce,     CollectiveKind::gather, CollectiveKind::scatter,
                                  CollectiveKind::all_to_all, CollectiveKind::send,   CollectiveKind::receive,
                                  CollectiveKind::all_reduce, CollectiveKind::barrier};
  ASSERT_EQ(calls_->run.size(), std::size(kinds));
  for (std::size_t i = 0; i < std::size(kinds); ++i) EXPECT_EQ(calls_->run[i].kind, kinds[i]);
  EXPECT_EQ(calls_->run[0].op, ReduceOp::product);
  EXPECT_EQ(calls_->run[0].root, 0);
  EXPECT_EQ(calls_->run[1].root, 2);
  EXPECT_EQ(calls_->run[2].output.count, 2u);
  EXPECT_EQ(calls_->run[3].input.data, six_.data());
  EXPECT_EQ(calls_->run[3].output.data, other_six_.data());
  EXPECT_EQ(calls_->run[4].root, 2);
  EXPECT_EQ(calls_->run[5].root, 0);
  EXPECT_EQ(calls_->run[6].op, ReduceOp::max);
  EXPECT_EQ(calls_->run[6].timeout, 5s);
}

TEST_F(GroupCalls, HandOnTheAsynchronousFormsToo) {
  int stream = 0;
  const CollectiveOptions options{.timeout = 70ms, .stream = &stream};
  static_cast<void>(group_.reduce_async(two_, {}, 0, ReduceOp::min, options));
  static_cast<void>(group_.gather_async(two_, {}, 2, options));
  static_cast<void>(group_.scatter_async({}, two_, 0, options));
  static_cast<void>(group_.all_to_all_async(six_, other_six_, options));
  static_cast<void>(group_.send_async(two_, 2, options));
  static_cast<void>(group_.receive_async(two_, 0, options));
  static_cast<void>(group_.all_reduce_async(two_, ReduceOp::max, options));
  static_cast<void>(group_.broadcast_async(two_, 0, options));
  static_cast<void>(group_.all_gather_async(two_, six_, options));
  static_cast<void>(group_.reduce_scatter_async(six_, two_, ReduceOp::sum, options));
  static_cast<void>(group_.barrier_async(options));
  std::vector<CollectiveKind> kinds;
  for (const auto& one : calls_->submitted) {
    ASSERT_EQ(one.size(), 1u);
    kinds.push_back(one[0].kind);
    EXPECT_EQ(one[0].timeout, 70ms);
    EXPECT_EQ(one[0].stream, &stream);
  }
  EXPECT_THAT(kinds, ElementsAre(CollectiveKind::reduce, CollectiveKind::gather, CollectiveKind::scatter,
                                 CollectiveKind::all_to_all, CollectiveKind::send, CollectiveKind::receive,
                                 CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                                 CollectiveKind::reduce_scatter, CollectiveKind::barrier));
}

TEST_F(GroupCalls, TheRootHasBothRanges) {
  group_.reduce(two_, two_, 1);
  EXPECT_EQ(only_run().output.data, two_.data()) << "the same memory";
  group_.reduce(two_, part(0, 2), 1);
  group_.gather(two_, six_, 1);
  group_.gather(part(2, 2), six_, 1);
  group_.scatter(six_, two_, 1);
  group_.scatter(six_, part(2, 2), 1);
  EXPECT_EQ(calls_->run.size(), 6u);
}

TEST_F(GroupCalls, RefuseARangeThatTheRankDoesNotHave) {
  EXPECT_EQ(refusal([&] { group_.reduce(two_, two_, 0); }),
            "reduce: output of 2 elements on rank 1, which is not root (0) and has none");
  EXPECT_THAT(refusal([&] { group_.gather(two_, six_, 2); }), HasSubstr("gather: output of 6 elements on rank 1"));
  EXPECT_THAT(refusal([&] { group_.scatter(six_, two_, 2); }), HasSubstr("scatter: input of 6 elements on rank 1"));
}

TEST_F(GroupCalls, RefuseCountsThatDoNotFit) {
  EXPECT_EQ(refusal([&] {
              group_.all_gather_v(two_, six_, {2, 2});
            }),
            "all_gather_v: 2 counts of the output, there are 3 ranks");
  EXPECT_EQ(refusal([&] {
              group_.all_gather_v(two_, six_, {2, 2, 1});
            }),
            "all_gather_v: the counts of the output are 5 in all, it has 6 elements");
  EXPECT_THAT(refusal([&] { group_.all_gather_v(two_, six_, {2, 2, SIZE_MAX}); }), HasSubstr("more in all than its 6"));
  EXPECT_EQ(refusal([&] {
              group_.all_gather_v(two_, six_, {2, 1, 3});
            }),
            "all_gather_v: input has 2 elements, this rank's count is 1");
  EXPECT_THAT(refusal([&] { group_.all_gather_v(part(0, 2), six_, {1, 2, 3}); }), HasSubstr("input overlaps output"));
  EXPECT_EQ(refusal([&] {
              group_.reduce_scatter_v(six_, two_, {2, 1, 3});
            }),
            "reduce_scatter_v: output has 2 elements, this rank's count is 1");
  EXPECT_THAT(refusal([&] { group_.reduce_scatter_v(six_, part(2, 2), {2, 2, 2}); }), HasSubstr("output overlaps"));
  EXPECT_EQ(refusal([&] {
              group_.all_to_all_v(six_, {2, 2, 2}, two_, {1, 1, 0});
            }),
            "all_to_all_v: this rank gives itself 2 elements, and expects 1");
  group_.all_gather_v(part(1, 2), six_, {1, 2, 3});  // this rank's own part
  EXPECT_EQ(calls_->run.size(), 1u);
}

TEST_F(GroupCalls, RefuseSizesThatDoNotFit) {
  EXPECT_THAT(refusal([&] { group_.reduce(two_, six_, 1); }), HasSubstr("an input of 2 elements, an output of 6"));
  EXPECT_THAT(refusal([&] { group_.gather(two_, part(0, 5), 1); }), HasSubstr("5 elements is not 3 times 2"));
  EXPECT_THAT(refusal([&] { group_.scatter(part(0, 4), two_, 1); }), HasSubstr("4 elements is not 3 times 2"));
  EXPECT_THAT(refusal([&] { group_.all_to_all(six_, part(0, 3)); }), HasSubstr("not 3 times the same"));
  EXPECT_THAT(refusal([&] { group_.all_to_all(two_, part(0, 2)); }), HasSubstr("not 3 times the same"));
}

TEST_F(GroupCalls, RefuseTypesThatDiffer) {
  EXPECT_THAT(refusal([&] { group_.reduce(six_, reals_, 1); }), HasSubstr("differ in type: float32 and float64"));
  EXPECT_THAT(refusal([&] { group_.gather(two_, reals_, 1); }), HasSubstr("differ in type"));
  EXPECT_THAT(refusal([&] { group_.scatter(reals_, two_, 1); }), HasSubstr("differ in type"));
  EXPECT_THAT(refusal([&] { group_.all_to_all(six_, reals_); }), HasSubstr("differ in type"));
}

TEST_F(GroupCalls, RefuseMemoryThatOverlaps) {
  EXPECT_THAT(refusal([&] { group_.reduce(part(0, 2), part(1, 2), 1); }), HasSubstr("is not the same memory"));
  EXPECT_THAT(refusal([&] { group_.gather(part(0, 2), six_, 1); }), HasSubstr("not this rank's own part"));
  EXPECT_THAT(refusal([&] { group_.scatter(six_, part(4, 2), 1); }), HasSubstr("not this rank's own part"));
  EXPECT_THAT(refusal([&] { group_.all_to_all(six_, six_); }), HasSubstr("output overlaps input"));
}

TEST_F(GroupCalls, RefuseRanksThatAreNot) {
  EXPECT_EQ(refusal([&] { group_.reduce(two_, {}, 3); }), "reduce: root is 3, ranks are 0 to 2");
  EXPECT_THAT(refusal([&] { group_.gather(two_, {}, -1); }), HasSubstr("root is -1"));
  EXPECT_THAT(refusal([&] { group_.scatter({}, two_, 3); }), HasSubstr("root is 3"));
  EXPECT_EQ(refusal([&] { group_.send(two_, 3); }), "send: the peer is 3, ranks are 0 to 2");
  EXPECT_THAT(refusal([&] { group_.receive(two_, -1); }), HasSubstr("the peer is -1"));
  EXPECT_EQ(refusal([&] { group_.send(two_, 1); }), "send: the peer is this rank itself, 1");
  EXPECT_THAT(refusal([&] { group_.receive(two_, 1); }), HasSubstr("itself"));
}

TEST_F(GroupCalls, RefuseWhatIsWrongWithOneRange) {
  MemoryRange on_gpu = two_;
  on_gpu.device = kGpu;
  EXPECT_EQ(refusal([&] { group_.send(on_gpu, 0); }), "send: input is on cuda:1, the group's memory on cpu:0");
  EXPECT_THAT(refusal([&] { group_.receive(on_gpu, 0); }), HasSubstr("output is on cuda:1"));
  EXPECT_THAT(refusal([&] { group_.send({nullptr, 2, DataType::uint8}, 0); }), HasSubstr("2 elements is null"));
  const MemoryRange crooked(reinterpret_cast<char*>(two_.data()) + 1, 1, DataType::bfloat16);
  EXPECT_THAT(refusal([&] { group_.receive(crooked, 0); }), HasSubstr("not aligned to bfloat16"));
  EXPECT_THAT(refusal([&] {
                group_.send({two_.data(), SIZE_MAX / 2 + 1, DataType::uint8}, 0);
              }),
              HasSubstr("larger than any memory"));
  EXPECT_THAT(refusal([&] { group_.reduce(two_, {}, 0, static_cast<ReduceOp>(6)); }),
              HasSubstr("no ReduceOp with the number 6"));
  EXPECT_THAT(refusal([&] {
                group_.all_reduce({two_.data(), 1, static_cast<DataType>(11)});
              }),
              HasSubstr("no data type with the number 11"));
  EXPECT_THAT(refusal([&] {
                group_.all_reduce({two_.data(), 1, DataType::boolean}, ReduceOp::average);
              }),
              HasSubstr("there is no average of bool"));
  EXPECT_THAT(refusal([&] { group_.all_reduce(two_, ReduceOp::sum, {.factor = 0.5}); }),
              HasSubstr("all_reduce: a factor of 0.5 without ReduceOp::premul_sum"));
  EXPECT_THAT(refusal([&] { group_.broadcast(two_, 0, {.factor = 2}); }),
              HasSubstr("broadcast: a factor of 2 without"));
  std::int32_t integer = 1;
  EXPECT_THAT(refusal([&] {
                group_.all_reduce({&integer, 1}, ReduceOp::premul_sum, {.factor = 2});
              }),
              HasSubstr("all_reduce: there is no premul_sum of int32\ntry:   a floating-point type"));
  EXPECT_THAT(refusal([&] { group_.all_reduce({&integer, 1}, ReduceOp::premul_sum); }), HasSubstr("no premul_sum"));
  EXPECT_THAT(refusal([&] { group_.all_reduce(two_, ReduceOp::premul_sum, {.factor = 1e40}); }),
              HasSubstr("the factor 1e+40 is no finite float32"));
  EXPECT_THAT(refusal([&] { group_.all_reduce(two_, ReduceOp::premul_sum, {.factor = NAN}); }),
              HasSubstr("the factor nan is no finite float32"));
  EXPECT_THAT(refusal([&] { group_.send(two_, 0, {.tag = -1}); }), HasSubstr("send: a tag of -1; tags are 0 or above"));
  EXPECT_THAT(refusal([&] { group_.all_reduce(two_, ReduceOp::sum, {.tag = 1}); }),
              HasSubstr("all_reduce: a tag of 1, which only sends and receives have"));
  EXPECT_THAT(refusal([&] { group_.receive(two_, -1); }), HasSubstr("receive: the peer is -1, ranks are 0 to 2"));
  EXPECT_THAT(refusal([&] { static_cast<void>(group_.receive_from_any_async(two_, nullptr)); }),
              HasSubstr("no place for the source"));
  EXPECT_THAT(
      refusal([&] {
        int source = 0;
        static_cast<void>(group_.coalesce([&] { static_cast<void>(group_.receive_from_any_async(two_, &source)); }));
      }),
      HasSubstr("receive_from_any_async within coalesce()"));
  EXPECT_THAT(refusal([&] { group_.send(two_, 0, {.timeout = -1ms}); }), HasSubstr("send: a timeout of -1 ms"));
  EXPECT_THAT(refusal([&] { static_cast<void>(group_.coalesce([] {}, {.timeout = -1ms})); }),
              HasSubstr("coalesce: a timeout of -1 ms"));
  EXPECT_THAT(refusal([&] { static_cast<void>(group_.coalesce({})); }), HasSubstr("coalesce: an empty function"));
  EXPECT_THAT(calls_->run, IsEmpty());
  EXPECT_THAT(calls_->submitted, IsEmpty());
}

TEST_F(GroupCalls, AnEmptyGroupRefusesAll) {
  ProcessGroup none;
  EXPECT_THAT(refusal([&] { none.send(two_, 0); }), HasSubstr("this ProcessGroup is empty"));
  EXPECT_THAT(refusal([&] { static_cast<void>(none.barrier_async()); }), HasSubstr("empty"));
  EXPECT_THAT(refusal([&] { static_cast<void>(none.coalesce([] {})); }), HasSubstr("empty"));
  EXPECT_THAT(refusal([&] { none.split(0); }), HasSubstr("empty"));
  EXPECT_THAT(refusal([&] { none.new_group({0}); }), HasSubstr("empty"));
}

TEST_F(GroupCalls, WithinCoalesceBeginAsOne) {
  int own = 0;
  int of_all = 0;
  Work send;
  Work receive;
  const Work all = group_.coalesce(
      [&] {
        receive = group_.receive_async(part(0, 2), 0, {.timeout = 1ms});
        send = group_.send_async(two_, 2, {.stream = &own, .tag = 6});
        static_cast<void>(group_.all_reduce_async(two_, ReduceOp::premul_sum, {.factor = 0.25}));
        EXPECT_THAT(calls_->submitted, IsEmpty());
        EXPECT_THAT(refusal([&] { send.wait(); }), HasSubstr("has not begun its calls"));
        EXPECT_THAT(refusal([&] { static_cast<void>(send.wait_for(1ms)); }), HasSubstr("has not begun its calls"));
        EXPECT_THAT(refusal([&] { send.on_completed([](auto) {}); }), HasSubstr("has not begun its calls"));
        EXPECT_FALSE(send.is_completed());
        EXPECT_FALSE(send.duration());
      },
      {.timeout = 2s, .stream = &of_all});
  ASSERT_EQ(calls_->submitted.size(), 1u);
  const auto& begun = calls_->submitted[0];
  ASSERT_EQ(begun.size(), 3u);
  EXPECT_EQ(begun[0].kind, CollectiveKind::receive);
  EXPECT_EQ(begun[1].kind, CollectiveKind::send);
  EXPECT_EQ(begun[0].timeout, 2s);
  EXPECT_EQ(begun[1].timeout, 2s);
  EXPECT_EQ(begun[0].stream, &of_all);
  EXPECT_EQ(begun[1].stream, &own);
  EXPECT_EQ(begun[1].tag, 6);
  EXPECT_EQ(begun[2].factor, 0.25) << "its own";
  const auto work = calls_->works.at(0);
  EXPECT_FALSE(send.is_completed());
  EXPECT_FALSE(receive.wait_for(1h));
  EXPECT_GT(work->limit, std::chrono::steady_clock::now() + 59min);
  send.on_completed([](auto) {});
  EXPECT_EQ(work->callbacks.size(), 1u);
  send.wait();
  receive.wait();
  Work(all).wait();
  EXPECT_EQ(work->waits, 3);
  EXPECT_FALSE(receive.duration());
  work->is_done = true;
  work->took = 5ns;
  EXPECT_TRUE(receive.is_completed());
  EXPECT_EQ(receive.duration(), 5ns);
  group_.barrier();  // and calls are as before
  EXPECT_EQ(calls_->run.size(), 1u);
}

TEST_F(GroupCalls, AnEmptyWorkHasCompleted) {
  Work none;
  EXPECT_TRUE(none.wait_for(0ms));
  EXPECT_FALSE(none.duration());
  int calls = 0;
  none.on_completed([&](const std::exception_ptr& error) { calls += error ? 100 : 1; });
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(refusal([&] { none.on_completed({}); }), HasSubstr("on_completed: an empty function"));
}

TEST_F(GroupCalls, AWorkHasALimitOfItsOwnAndCallbacks) {
  Work work = group_.all_reduce_async(two_);
  const auto state = calls_->works.at(0);
  for (const auto limit : {-5ms, std::chrono::milliseconds::min(), std::chrono::milliseconds::min() + 1h}) {
    EXPECT_FALSE(work.wait_for(limit)) << "as 0 ms";
    EXPECT_LE(state->limit, std::chrono::steady_clock::now());
    EXPECT_GT(state->limit, std::chrono::steady_clock::now() - 1h);
  }
  EXPECT_FALSE(work.wait_for(std::chrono::milliseconds::max()));
  EXPECT_GT(state->limit, std::chrono::steady_clock::now() + 24h);
  state->is_done = true;
  EXPECT_TRUE(work.wait_for(0ms));
  EXPECT_EQ(state->waits, 0);
  work.on_completed([](auto) {});
  EXPECT_EQ(state->callbacks.size(), 1u);
}

TEST_F(GroupCalls, ACoalesceWithoutCallsBeginsNothing) {
  Work none = group_.coalesce([] {});
  none.wait();
  EXPECT_TRUE(none.is_completed());
  EXPECT_THAT(calls_->submitted, IsEmpty());
}

TEST_F(GroupCalls, WhatIsThrownWithinCoalesceBeginsNothing) {
  Work send;
  const auto wrong = thrown_by<InvalidArgument>([&] {
    static_cast<void>(group_.coalesce([&] {
      send = group_.send_async(two_, 0);
      static_cast<void>(group_.send_async(two_, 1));
    }));
  });
  ASSERT_TRUE(wrong);
  EXPECT_THAT(wrong->what(), HasSubstr("itself"));
  EXPECT_THAT(calls_->submitted, IsEmpty());
  EXPECT_THAT(refusal([&] { send.wait(); }), HasSubstr("has not begun its calls"));
  EXPECT_FALSE(send.is_completed());
  static_cast<void>(group_.send_async(two_, 0));
  EXPECT_EQ(calls_->submitted.size(), 1u) << "the group goes on";
}

TEST_F(GroupCalls, WithinCoalesceOnlyAsynchronousOnesGo) {
  static_cast<void>(group_.coalesce([&] {
    EXPECT_THAT(refusal([&] { group_.send(two_, 0); }), HasSubstr("send within coalesce()"));
    EXPECT_THAT(refusal([&] { group_.barrier(); }), HasSubstr("barrier within coalesce()"));
    EXPECT_THAT(refusal([&] { group_.allocate(8); }), HasSubstr("allocate within coalesce()"));
    EXPECT_THAT(refusal([&] { static_cast<void>(group_.coalesce([] {})); }), HasSubstr("coalesce within coalesce()"));
    EXPECT_THAT(refusal([&] { group_.split(0); }), HasSubstr("split within coalesce()"));
    EXPECT_THAT(refusal([&] { group_.new_group({0}); }), HasSubstr("new_group within coalesce()"));
  }));
  EXPECT_THAT(calls_->submitted, IsEmpty());
}

TEST_F(GroupCalls, ACoalesceHasALimit) {
  const auto error = thrown_by<Error>([&] {
    static_cast<void>(group_.coalesce([&] {
      for (int i = 0; i <= 65'536; ++i) static_cast<void>(group_.barrier_async());
    }));
  });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("more than 65536 calls"));
  EXPECT_THAT(calls_->submitted, IsEmpty());
}

TEST_F(GroupCalls, ACoalesceOutlivesTheHandleItWasCalledOn) {
  static_cast<void>(group_.coalesce([&] {
    static_cast<void>(group_.barrier_async());
    group_ = {};
  }));
  EXPECT_EQ(calls_->submitted.size(), 1u);
}

// As if each rank had given these words to the all_gather.
void answer_gathers(Calls& calls, const std::vector<std::vector<std::int64_t>>& words) {
  calls.work = [words](const Collective& collective) {
    if (collective.kind != CollectiveKind::all_gather) return;
    auto* to = static_cast<std::int64_t*>(collective.output.data);
    const auto* own = static_cast<const std::int64_t*>(collective.input.data);
    EXPECT_EQ(std::vector<std::int64_t>(own, own + collective.input.count), words[1]);
    for (const auto& of_rank : words) to = std::copy(of_rank.begin(), of_rank.end(), to);
  };
}

TEST_F(GroupCalls, SplitMakesTheGroupOfAColorInTheOrderOfKeys) {
  answer_gathers(*calls_, {{4, 9}, {4, -1}, {4, -1}});
  ProcessGroup made = group_.split(4, -1, {.timeout = 300ms});
  ASSERT_EQ(calls_->splits.size(), 1u);
  EXPECT_THAT(calls_->splits[0].ranks, ElementsAre(1, 2, 0));
  EXPECT_EQ(calls_->splits[0].timeout, 300ms);
  EXPECT_EQ(made.rank(), 0);
  EXPECT_EQ(made.size(), 3);
  EXPECT_EQ(made.local_rank(), 1) << "as the launcher counts";
  EXPECT_EQ(made.local_size(), 3);
  EXPECT_EQ(made.round(), group_.round());
  EXPECT_EQ(made.timeout(), 5s);

  answer_gathers(*calls_, {{0, 0}, {4, 0}, {0, 0}});
  EXPECT_EQ(group_.split(4).size(), 1);
  EXPECT_THAT(calls_->splits[1].ranks, ElementsAre(1));
}

TEST_F(GroupCalls, SplitWithoutAColorTakesPartAndGetsNoGroup) {
  answer_gathers(*calls_, {{-5, 0}, {-5, 0}, {1, 0}});
  ProcessGroup none = group_.split(-5);
  ASSERT_EQ(calls_->splits.size(), 1u);
  EXPECT_THAT(calls_->splits[0].ranks, IsEmpty());
  EXPECT_THAT(refusal([&] { none.rank(); }), HasSubstr("empty"));
}

TEST_F(GroupCalls, NewGroupHasTheRanksInTheOrderOfTheList) {
  calls_->work = [](const Collective& collective) {  // all three say the same
    const auto* own = static_cast<const std::int64_t*>(collective.input.data);
    auto* to = static_cast<std::int64_t*>(collective.output.data);
    for (int rank = 0; rank < 3; ++rank) to = std::copy_n(own, collective.input.count, to);
  };
  ProcessGroup made = group_.new_group({2, 1});
  ASSERT_EQ(calls_->splits.size(), 1u);
  EXPECT_THAT(calls_->splits[0].ranks, ElementsAre(2, 1));
  EXPECT_EQ(made.rank(), 1);
  EXPECT_EQ(made.size(), 2);
  group_.new_group({0, 2});
  EXPECT_THAT(calls_->splits[1].ranks, IsEmpty());
}

TEST_F(GroupCalls, SubGroupsHaveNamesOfTheirOwnThatAllRanksKnow) {
  const auto name_of_last = [](const Calls& calls) { return calls.splits.back().of_new.name; };
  answer_gathers(*calls_, {{7, 0}, {9, 0}, {-1, 0}});
  group_.split(9);
  EXPECT_EQ(name_of_last(*calls_), "group_0/2") << "that of color 7 is the first";
  answer_gathers(*calls_, {{-1, 0}, {-1, 0}, {3, 0}});
  group_.split(-1);
  answer_gathers(*calls_, {{4, 0}, {4, 0}, {4, 0}});
  ProcessGroup made = group_.split(4);
  EXPECT_EQ(name_of_last(*calls_), "group_0/4");
  answer_gathers(*calls_->of_sub_groups.back(), {{1, 0}, {1, 0}, {1, 0}});
  made.split(1);
  EXPECT_EQ(name_of_last(*calls_->of_sub_groups.back()), "group_0/4/1");
}

TEST_F(GroupCalls, NewGroupWantsOneListOnAllRanks) {
  calls_->work = [](const Collective& collective) {  // rank 2 says something else
    const auto* own = static_cast<const std::int64_t*>(collective.input.data);
    auto* to = static_cast<std::int64_t*>(collective.output.data);
    for (int rank = 0; rank < 3; ++rank) to = std::copy_n(own, collective.input.count, to);
    to[-1] += 1;
  };
  const auto error = thrown_by<MismatchError>([&] { group_.new_group({2, 1}); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("ranks 0 and 2 want different ranks; this one (1) wants ranks 2 and 1"));
  EXPECT_THAT(calls_->splits, IsEmpty());
  calls_->run.clear();
  EXPECT_THAT(refusal([&] { group_.new_group({}); }), HasSubstr("no ranks"));
  EXPECT_THAT(refusal([&] { group_.new_group({0, 3}); }), HasSubstr("there is no rank 3, ranks are 0 to 2"));
  EXPECT_THAT(refusal([&] { group_.new_group({-1}); }), HasSubstr("there is no rank -1"));
  EXPECT_THAT(refusal([&] { group_.new_group({1, 2, 1}); }), HasSubstr("rank 1 is in the list twice"));
  EXPECT_THAT(calls_->run, IsEmpty()) << "before anything is begun";
}

TEST_F(GroupCalls, TheEndOfTheRoundEndsSubGroupsToo) {
  answer_gathers(*calls_, {{4, 0}, {4, 0}, {4, 0}});
  ProcessGroup first = group_.split(4);
  ProcessGroup of_first = [&] {
    answer_gathers(*calls_->of_sub_groups[0], {{1, 0}, {1, 0}, {1, 0}});
    return first.split(1);
  }();
  group_.split(4);  // let go of at once
  const auto abort_count = [](const Calls& calls) { return calls.aborts.size(); };
  group_.impl()->abort("a word of the program", AbortCause::program);
  EXPECT_EQ(abort_count(*calls_->of_sub_groups[0]), 0u) << "it ends on its own";
  group_.impl()->abort("rank 2 died", AbortCause::round_over);
  ASSERT_EQ(abort_count(*calls_->of_sub_groups[0]), 1u);
  EXPECT_EQ(calls_->of_sub_groups[0]->aborts[0], std::make_pair(std::string("rank 2 died"), AbortCause::round_over));
  EXPECT_EQ(abort_count(*calls_->of_sub_groups[0]->of_sub_groups[0]), 1u);
  ProcessGroup late = group_.split(4);
  EXPECT_EQ(abort_count(*calls_->of_sub_groups.back()), 1u) << "one that was being made then";
}

TEST_F(GroupCalls, OnADeviceRanksTellEachOtherWordsThroughItsMemory) {
  const auto calls = std::make_shared<Calls>();
  auto backend = std::make_unique<StandInBackend>(calls, kGpu);
  auto* const gpu = backend.get();
  auto group = group_over(std::move(backend), 1, 3);
  answer_gathers(*calls, {{4, 0}, {4, 0}, {4, 0}});
  EXPECT_EQ(group.split(4).size(), 3);
  ASSERT_EQ(calls->run.size(), 1u);
  EXPECT_EQ(calls->run[0].input.device, kGpu);
  EXPECT_EQ(calls->run[0].output.device, kGpu);
  EXPECT_EQ(gpu->memory().copies, 2);
  calls->work = nullptr;
  group.barrier();
  EXPECT_EQ(calls->run[1].input.device, kGpu);
  group.scatter({}, {two_.data(), 2, DataType::float32, kGpu}, 0);
  EXPECT_EQ(calls->run[2].input.device, kGpu) << "an empty range is where the other is";
}

template <class Input, class Group = ProcessGroup>
std::vector<bool> async_calls_that_take() {
  return {
      requires(Group & group, MemoryRange out){static_cast<void>(group.all_gather_async(std::declval<Input>(), out));
}
, requires(Group& group, MemoryRange out) { static_cast<void>(group.reduce_scatter_async(std::declval<Input>(), out)); }
, requires(Group& group, MemoryRange out) { static_cast<void>(group.reduce_async(std::declval<Input>(), out, 0)); }
, requires(Group& group, MemoryRange out) { static_cast<void>(group.gather_async(std::declval<Input>(), out, 0)); }
, requires(Group& group, MemoryRange out) { static_cast<void>(group.scatter_async(std::declval<Input>(), out, 0)); }
, requires(Group& group, MemoryRange out) { static_cast<void>(group.all_to_all_async(std::declval<Input>(), out)); }
, requires(Group& group) { static_cast<void>(group.send_async(std::declval<Input>(), 0)); }
};  // namespace
}  // namespace ddp

TEST(AsyncCalls, TakeNoVectorThatIsGoneBeforeTheyEnd) {
  EXPECT_THAT(async_calls_that_take<std::vector<float>&>(), Each(true));
  EXPECT_THAT(async_calls_that_take<const std::vector<float>&>(), Each(true));
  EXPECT_THAT(async_calls_that_take<ConstMemoryRange>(), Each(true));
  EXPECT_THAT(async_calls_that_take<std::vector<float>>(), Each(false));
}

}  // namespace
}  // namespace ddp
