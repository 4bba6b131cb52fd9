#include "rendezvous/store/send_queue.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

namespace ddp::store {
namespace {

SharedValue value_of(MemoryBudget& memory, std::string bytes) {
  return std::make_shared<Value>(memory, std::move(bytes));
}

// Writes all of it, up to `bytes_max()` bytes at a time.
template <class BytesMax>
std::string drain(SendQueue& queue, BytesMax bytes_max) {
  static SendQueue::Scratch scratch;
  std::string all;
  while (!queue.is_empty()) {
    std::string some;
    for (const auto part : queue.front(scratch)) {
      EXPECT_FALSE(part.empty());
      some += part;
    }
    EXPECT_FALSE(some.empty());
    if (some.empty()) break;
    some.resize(std::min<std::size_t>(some.size(), bytes_max()));
    queue.consume(some.size());
    all += some;
  }
  return all;
}

TEST(SendQueue, WritesBytesThenValuesInOrder) {
  MemoryBudget memory(1u << 30);
  SendQueue queue;
  queue.append({{}, "first", {}});
  queue.append({{}, "", {value_of(memory, "v"), nullptr, value_of(memory, std::string(9000, 'w'))}});
  queue.append({{}, "last", {}});
  const std::string want =
      "first" + encode_value("v") + encode_value("") + encode_value(std::string(9000, 'w')) + "last";
  EXPECT_EQ(queue.bytes(), want.size());
  EXPECT_EQ(drain(queue, [] { return std::string::npos; }), want);
}

TEST(SendQueue, WritesTheSameHoweverItIsCut) {
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    MemoryBudget memory(1u << 30);
    const auto text = [&random](std::size_t below) {
      return std::string(random() % below, static_cast<char>('a' + random() % 26));
    };
    std::string want, got;
    SendQueue queue;
    for (int step = 0; step < 60; ++step) {
      Answer answer{{}, text(random() % 8 == 0 ? 5000 : 20), {}};
      want += answer.bytes;
      for (auto count = random() % 4 == 0 ? random() % 300 : random() % 3; count > 0; --count) {
        if (random() % 10 == 0) {
          answer.values.push_back(nullptr);
          want += encode_value({});
          continue;
        }
        answer.values.push_back(value_of(memory, text(random() % 20 == 0 ? 20'000 : 500)));
        want += encode_value(answer.values.back()->bytes());
      }
      queue.append(std::move(answer));
      EXPECT_EQ(queue.bytes(), want.size() - got.size());
      if (random() % 3 == 0) {
        SendQueue::Scratch scratch;
        const auto parts = queue.front(scratch);
        std::string some;
        for (const auto part : parts) some += part;
        some.resize(random() % (some.size() + 1));
        queue.consume(some.size());
        got += some;
      }
    }
    got += drain(queue, [&random] { return 1 + random() % 10'000; });
    ASSERT_TRUE(got == want);
    EXPECT_EQ(memory.used_bytes(), 0u);  // what is written is let go of
    EXPECT_LT(queue.memory_bytes(), 2000u);
  }
}

TEST(SendQueue, CountsWhatItOccupies) {
  MemoryBudget memory(1u << 30);
  const auto value = std::make_shared<Value>(memory, std::string(1u << 20, 'v'));
  SendQueue queue;
  EXPECT_EQ(queue.memory_bytes(), 0u);
  queue.append({{}, "", std::vector<SharedValue>(1000, value)});
  EXPECT_EQ(queue.bytes(), 1000 * (8 + (1u << 20)));
  EXPECT_GE(queue.memory_bytes(), 1000 * sizeof(SharedValue));
  EXPECT_LT(queue.memory_bytes(), 20'000u);
  EXPECT_EQ(queue.dropped_value_bytes(), 0u);
  value->drop();
  EXPECT_EQ(queue.dropped_value_bytes(), 1000u << 20);
  queue.append({{}, std::string(5000, 'b'), {}});
  EXPECT_GE(queue.memory_bytes(), 1000 * sizeof(SharedValue) + 5000);
  queue.clear();
  EXPECT_EQ(queue.memory_bytes(), 0u);
  EXPECT_TRUE(queue.is_empty());
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace ddp::store
