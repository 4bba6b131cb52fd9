#include "ddp/sampling.hpp"

#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "ddp/evaluation_sampler.hpp"
#include "ddp/sampler_cursor.hpp"
#include "tests/unit/worker_runtime/sampler_properties.hpp"
#include "worker_runtime/sampler/random_words.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace {

using ddp::DistributedSampler;
using ddp::EvaluationSampler;
using ddp::InvalidArgument;
using ddp::LastBatch;
using ddp::SamplerCursor;
using ddp::SamplerPosition;
using ddp::Tail;
using ddp::sampler::RandomWords;
using ddp::test::Dice;
using ddp::test::Indices;

TEST(RandomWords, IsSplitMix64) {
  // Published outputs for the seed 1234567.
  RandomWords words(1234567);
  EXPECT_EQ(words.next(), 6457827717110365317U);
  EXPECT_EQ(words.next(), 3203168211198807973U);
  EXPECT_EQ(words.next(), 9817491932198370423U);
  EXPECT_EQ(words.next(), 4593380528125082431U);
  EXPECT_EQ(words.next(), 16408922859458223821U);
  EXPECT_EQ(RandomWords(1234567).at(4), 16408922859458223821U);
}

TEST(RandomWords, ShufflesEvenly) {
  int counts[3][3] = {};
  for (std::uint64_t seed = 0; seed < 9000; ++seed) {
    int numbers[3] = {0, 1, 2};
    RandomWords({seed, 5}).shuffle(numbers, numbers + 3);
    for (int place = 0; place < 3; ++place) ++counts[place][numbers[place]];
  }
  for (const auto& of_place : counts) {
    for (const int count : of_place) EXPECT_NEAR(count, 3000, 200);  // the standard deviation is 45
  }
}

TEST(RandomWords, DependsOnEachNumberOfTheKey) {
  EXPECT_NE(RandomWords({1, 2}).next(), RandomWords({2, 1}).next());
  EXPECT_NE(RandomWords({1, 2}).next(), RandomWords({0, 3}).next());
  EXPECT_NE(RandomWords({1}).next(), RandomWords({0, 1}).next());
}

TEST(SamplerPosition, IsWrittenAndReadAsText) {
  SamplerPosition position;
  position.seed = std::numeric_limits<std::uint64_t>::max();
  position.epoch = 2;
  position.taken = 1024;
  position.sample_count = 50000;
  position.partitions = 8;
  position.order = 0x0f3a17c2b4d8e6f0;
  const std::string text = to_string(position);
  EXPECT_EQ(text, "18446744073709551615-2-1024-50000-8-0f3a17c2b4d8e6f0");
  EXPECT_EQ(ddp::parse_sampler_position(text), position);
}

TEST(SamplerPosition, IsNotReadFromOtherText) {
  for (const char* text : {"", "1", "1-2-3-4-5-", "1-2-3-4-5-6", "1-2-3-4-0f3a17c2b4d8e6f0",
                           "1-2-3-4-5-0F3A17C2B4D8E6F0", "1-2-3-4-5-0f3a17c2b4d8e6f0 ", " 1-2-3-4-5-0f3a17c2b4d8e6f0",
                           "01-2-3-4-5-0f3a17c2b4d8e6f0", "1--2-3-4-5-0f3a17c2b4d8e6f0", "1-2-3-4-5-00f3a17c2b4d8e6f0",
                           "18446744073709551616-2-3-4-5-0f3a17c2b4d8e6f0"}) {
    EXPECT_EQ(ddp::parse_sampler_position(text), std::nullopt) << text;
  }
}

TEST(DistributedSampler, GoesOnWithAnyNumberOfRanks) {
  Dice dice(1);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const std::size_t count = dice.from_to(1, 60);
    const bool shuffle = dice.coin();
    const Tail tail = dice.coin() ? Tail::drop : Tail::pad;
    const auto make = [&](int replicas, int rank) {
      return DistributedSampler({count, replicas, rank, shuffle, 5, tail == Tail::drop});
    };
    const DistributedSampler alone = make(1, 0);
    const Indices order = alone.indices(3);
    SamplerPosition from = alone.start(3);
    ASSERT_EQ(ddp::test::taken_with_changing_ranks(make, from, dice), order);
    from.taken = dice.from_to(0, count);
    ddp::test::expect_shares_of(order, make, from, static_cast<int>(dice.from_to(1, 9)), tail);
  }
}

TEST(DistributedSampler, RefusesPositionsThatDoNotFit) {
  const DistributedSampler sampler({10, 2, 0});
  const SamplerPosition good = sampler.after(sampler.start(4), 3);
  EXPECT_EQ(good.taken, 6U);
  EXPECT_EQ(sampler.after(good, 3).taken, 10U);
  EXPECT_EQ(sampler.after(good, std::numeric_limits<std::size_t>::max()).taken, 10U);
  const auto refused = [&](auto change) {
    SamplerPosition bad = good;
    change(bad);
    EXPECT_THROW(sampler.indices(bad), InvalidArgument);
    EXPECT_THROW(static_cast<void>(sampler.after(bad, 1)), InvalidArgument);
  };
  refused([](SamplerPosition& p) { p.seed = 1; });
  refused([](SamplerPosition& p) { p.sample_count = 11; });
  refused([](SamplerPosition& p) { p.taken = 11; });
  refused([](SamplerPosition& p) { ++p.order; });
  refused([](SamplerPosition& p) { p = {}; });
  refused([](SamplerPosition& p) { p = DistributedSampler({10, 2, 0, false}).start(4); });
  refused([](SamplerPosition& p) { p = EvaluationSampler({10, 2, 0}).start(4); });
}

TEST(DistributedSampler, SaysWhyAPositionDoesNotFit) {
  const SamplerPosition position = DistributedSampler({11, 1, 0}).start(0);
  try {
    static_cast<void>(DistributedSampler({10, 2, 1}).indices(position));
    FAIL() << "not refused";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "a position of sample count 11, but the sampler has 10\n"
                 "where: DistributedSampler of rank 1\n"
                 "try:   the data set that the position was taken of, or start() of this sampler");
  }
}

TEST(DistributedSampler, PositionsStayTheSameBetweenVersions) {
  EXPECT_EQ(to_string(DistributedSampler({10, 2, 0, true, 7}).start(4)), "7-4-0-10-1-86d6fd953217ae03");
  EXPECT_EQ(to_string(DistributedSampler({10, 2, 0, false}).start(0)), "0-0-0-10-1-5e41ab087439611e");
}

TEST(SamplerCursor, GivesTheBatchesOfEachEpoch) {
  const DistributedSampler sampler({23, 2, 1});
  for (const LastBatch last : {LastBatch::keep, LastBatch::drop}) {
    SamplerCursor cursor(sampler, 5, last);
    for (const std::uint64_t epoch : {0, 1, 2}) {
      EXPECT_EQ(cursor.state(), sampler.start(epoch));
      for (const Indices& batch : sampler.batches(epoch, 5, last)) EXPECT_EQ(cursor.next_batch(), batch);
      EXPECT_THAT(cursor.next_batch(), testing::IsEmpty());
      EXPECT_TRUE(cursor.is_over());
      EXPECT_THAT(cursor.next_batch(), testing::IsEmpty());
      cursor.next_epoch();
    }
  }
}

TEST(SamplerCursor, GoesOnWhereAnotherOneStood) {
  // Three batches of 4 on 3 ranks, then 2 ranks with batches of 5.
  Indices seen;
  SamplerPosition position;
  for (int rank = 0; rank < 3; ++rank) {
    SamplerCursor cursor(DistributedSampler({101, 3, rank}), 4, LastBatch::keep);
    cursor.next_epoch();
    for (int i = 0; i < 3; ++i) {
      const Indices batch = cursor.next_batch();
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    if (rank > 0) {
      EXPECT_EQ(cursor.state(), position);
    }
    position = cursor.state();
  }
  EXPECT_EQ(position.taken, 36U);
  for (int rank = 0; rank < 2; ++rank) {
    SamplerCursor cursor(DistributedSampler({101, 2, rank, true, 0, true}), 5, LastBatch::keep);
    cursor.restore(position);
    for (Indices batch = cursor.next_batch(); !batch.empty(); batch = cursor.next_batch()) {
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    EXPECT_TRUE(cursor.is_over());
  }
  Indices all = DistributedSampler({101, 1, 0}).indices(1);
  all.pop_back();  // dropped: 65 samples do not divide by 2
  EXPECT_EQ(ddp::test::sorted(seen), ddp::test::sorted(all));
}

TEST(SamplerCursor, RanksOfUnequalCountsAgreeOnThePosition) {
  for (const LastBatch last : {LastBatch::keep, LastBatch::drop}) {
    for (std::size_t batch_size = 1; batch_size < 9; ++batch_size) {
      std::vector<SamplerCursor<EvaluationSampler>> cursors;
      for (int rank = 0; rank < 3; ++rank) cursors.emplace_back(EvaluationSampler({16, 3, rank}), batch_size, last);
      while (!cursors[0].is_over()) {
        for (auto& cursor : cursors) cursor.next_batch();
        EXPECT_EQ(cursors[1].state(), cursors[0].state());
        EXPECT_EQ(cursors[2].state(), cursors[0].state());
        EXPECT_EQ(cursors[2].is_over(), cursors[0].is_over());
      }
      for (auto& cursor : cursors) EXPECT_THAT(cursor.next_batch(), testing::IsEmpty());
    }
  }
}

TEST(SamplerCursor, StaysWhereItIsIfAPositionDoesNotFit) {
  SamplerCursor cursor(DistributedSampler({10, 1, 0, false}), 3, LastBatch::keep);
  cursor.next_batch();
  const SamplerPosition before = cursor.state();
  EXPECT_THROW(cursor.restore(SamplerPosition{}), InvalidArgument);
  EXPECT_EQ(cursor.state(), before);
  EXPECT_EQ(cursor.next_batch(), (Indices{3, 4, 5}));
}

TEST(SamplerCursor, RefusesBatchesOfNothing) {
  EXPECT_THROW(SamplerCursor(DistributedSampler({10, 1, 0}), 0, LastBatch::keep), InvalidArgument);
}

}  // namespace
