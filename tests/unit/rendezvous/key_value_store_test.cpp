#include "rendezvous/store/key_value_store.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "ddp/error.hpp"
#include "tests/unit/rendezvous/golden.hpp"

namespace ddp::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr ConnectionId kAnn{1};
constexpr ConnectionId kBob{2};
constexpr ConnectionId kCat{3};
constexpr ConnectionId kDan{4};

const std::string kFulfilled(1, kWaitFulfilled);
const std::string kCancelled(1, kWaitCancelled);

// The one answer to a command, which goes to the one who sent it.
std::string ask(KeyValueStore& store, Command command, ConnectionId from = kAnn) {
  auto answers = store.step(from, std::move(command));
  if (answers.size() != 1 || answers[0].to != from) return "not one answer to its sender";
  return answers[0].bytes;
}

std::string refusal_of(KeyValueStore& store, Command command) {
  try {
    (void)store.step(kAnn, std::move(command));
  } catch (const StoreError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(KeyValueStore, AnswersASessionAsPyTorchDoes) {
  KeyValueStore store;
  for (const auto& exchange : golden_session()) {
    SCOPED_TRACE(exchange.what);
    std::string answered;
    for (const auto& answer : store.step(kAnn, Command(exchange.command))) answered += answer.bytes;
    EXPECT_EQ(answered, exchange.answered);
  }
}

TEST(KeyValueStore, CompareSetFollowsTheReference) {
  KeyValueStore store;
  EXPECT_EQ(ask(store, command::CompareSet{"k", "other", "new"}), encode_value("other"));  // missing: nothing is stored
  EXPECT_EQ(store.key_count(), 0u);
  EXPECT_EQ(ask(store, command::CompareSet{"k", "", "one"}), encode_value("one"));
  EXPECT_EQ(ask(store, command::CompareSet{"k", "", "two"}), encode_value("one"));
  EXPECT_EQ(ask(store, command::CompareSet{"k", "one", "two"}), encode_value("two"));
  EXPECT_EQ(ask(store, command::Get{"k"}), encode_value("two"));
}

TEST(KeyValueStore, MissingKeysReadAsEmpty) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kAnn, command::Set{"b", "2"}), IsEmpty());
  EXPECT_EQ(ask(store, command::Get{"a"}), encode_value(""));
  EXPECT_EQ(ask(store, command::MultiGet{{"a", "b", "b"}}), encode_value("") + encode_value("2") + encode_value("2"));
  EXPECT_EQ(ask(store, command::Remove{"a"}), encode_integer(0));
  EXPECT_EQ(ask(store, command::Remove{"b"}), encode_integer(1));
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, EmptyListsAreAnsweredAtOnce) {
  KeyValueStore store;
  EXPECT_EQ(ask(store, command::Check{}), std::string(1, kReady));
  EXPECT_EQ(ask(store, command::Wait{}), kFulfilled);
  EXPECT_EQ(ask(store, command::MultiGet{}), "");
  EXPECT_THAT(store.step(kAnn, command::MultiSet{}), IsEmpty());
}

TEST(KeyValueStore, AddKeepsDecimalText) {
  const struct {
    const char* old;
    std::int64_t delta;
    const char* want;
  } cases[] = {{"41", 1, "42"}, {"-3", 1, "-2"},   {" \t+7 apples", -8, "-1"},
               {"0", 0, "0"},   {"12.5", 1, "13"}, {"9223372036854775806", 1, "9223372036854775807"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.old);
    KeyValueStore store;
    (void)store.step(kAnn, command::Set{"n", c.old});
    EXPECT_EQ(ask(store, command::Add{"n", c.delta}), encode_integer(std::strtoll(c.want, nullptr, 10)));
    EXPECT_EQ(ask(store, command::Get{"n"}), encode_value(c.want));
  }
}

TEST(KeyValueStore, AddThatIsNoSumIsRefusedAndChangesNothing) {
  const auto most = std::numeric_limits<std::int64_t>::max();
  const auto least = std::numeric_limits<std::int64_t>::min();
  const struct {
    std::string old;
    std::int64_t delta;
    const char* want;
  } cases[] = {{"apples", 1, "is no number"},
               {"", 1, "is no number"},
               {"+-5", 1, "is no number"},
               {"9223372036854775808", 0, "is beyond 64 bits"},
               {std::to_string(most), 1, "add up to more than 64 bits"},
               {"-1", least, "add up to more than 64 bits"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.old);
    KeyValueStore store;
    (void)store.step(kAnn, command::Set{"n", c.old});
    EXPECT_THAT(refusal_of(store, command::Add{"n", c.delta}), HasSubstr(c.want));
    EXPECT_EQ(ask(store, command::Get{"n"}), encode_value(c.old));
  }
}

TEST(KeyValueStore, EveryWayToMakeAKeyWakesItsWaiters) {
  const Command makers[] = {command::Set{"k", "v"}, command::CompareSet{"k", "", "v"}, command::Add{"k", 1},
                            command::Append{"k", "v"}, command::MultiSet{{{"j", "v"}, {"k", "v"}}}};
  for (const auto& maker : makers) {
    SCOPED_TRACE(maker.index());
    KeyValueStore store;
    EXPECT_THAT(store.step(kBob, command::Wait{{"k"}}), IsEmpty());
    EXPECT_THAT(store.step(kCat, command::Wait{{"k", "k"}}), IsEmpty());
    auto answers = store.step(kAnn, Command(maker));
    std::erase_if(answers, [](const Answer& answer) { return answer.to == kAnn; });
    EXPECT_THAT(answers, ElementsAre(Answer{kBob, kFulfilled}, Answer{kCat, kFulfilled}));
    EXPECT_EQ(store.waiting_count(), 0u);
  }
}

TEST(KeyValueStore, CompareSetThatStoresNothingWakesNobody) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kBob, command::Wait{{"k"}}), IsEmpty());
  EXPECT_EQ(ask(store, command::CompareSet{"k", "other", "new"}), encode_value("other"));
  EXPECT_EQ(store.waiting_count(), 1u);
}

TEST(KeyValueStore, WaiterIsAnsweredWhenItsLastKeyAppears) {
  KeyValueStore store;
  (void)store.step(kAnn, command::Set{"a", ""});
  EXPECT_THAT(store.step(kBob, command::Wait{{"a", "b", "c"}}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Set{"b", ""}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Set{"b", "again"}), IsEmpty());
  EXPECT_EQ(ask(store, command::Remove{"b"}), encode_integer(1));  // does not undo the waiter's progress
  EXPECT_THAT(store.step(kAnn, command::Set{"c", ""}), ElementsAre(Answer{kBob, kFulfilled}));
  EXPECT_THAT(store.step(kAnn, command::Set{"c", ""}), IsEmpty());
}

TEST(KeyValueStore, CancelledOrDisconnectedWaiterHearsNothingMore) {
  KeyValueStore store;
  EXPECT_EQ(ask(store, command::CancelWait{}), kCancelled);  // without any wait too
  EXPECT_THAT(store.step(kAnn, command::Wait{{"k"}}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Wait{{"k"}}), IsEmpty());
  EXPECT_THAT(store.step(kCat, command::Wait{{"k"}}), IsEmpty());
  EXPECT_EQ(ask(store, command::CancelWait{}), kCancelled);
  store.disconnected(kBob);
  store.disconnected(kBob);
  EXPECT_THAT(store.step(kAnn, command::Set{"k", ""}), ElementsAre(Answer{kCat, kFulfilled}));
}

TEST(KeyValueStore, SecondWaitTakesThePlaceOfTheFirst) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kBob, command::Wait{{"a", "b"}}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Wait{{"b", "c"}}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Set{"a", ""}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Set{"b", ""}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Set{"c", ""}), ElementsAre(Answer{kBob, kFulfilled}));
}

TEST(KeyValueStore, BytesAreBoundedAndARefusedCommandChangesNothing) {
  constexpr auto kEntry = KeyValueStore::kEntryBytes;
  KeyValueStore store({.value_bytes_max = 100, .answer_bytes_max = 100, .total_bytes_max = 2 * (kEntry + 10)});
  (void)store.step(kAnn, command::Set{"a", "123456789"});
  (void)store.step(kAnn, command::Set{"b", "12345678"});
  const auto before = store.total_bytes();
  EXPECT_EQ(before, 2 * (kEntry + 10) - 1);
  const Command refused[] = {command::Set{"c", ""},       command::Set{"b", "1234567890"},
                             command::Append{"b", "90"},  command::CompareSet{"c", "", ""},
                             command::Add{"c", 1},        command::Wait{{"c"}},
                             command::QueuePush{"c", ""}, command::Barrier{"c", 1},
                             command::Barrier{"c", 2},    command::MultiSet{{{"b", "1234567890"}, {"a", ""}}}};
  for (const auto& command : refused) {
    SCOPED_TRACE(command.index());
    EXPECT_THAT(refusal_of(store, command), HasSubstr("the store is full: it holds " + std::to_string(before) + " of " +
                                                      std::to_string(before + 1) + " bytes"));
    EXPECT_EQ(store.total_bytes(), before);
  }
  EXPECT_EQ(ask(store, command::Get{"a"}), encode_value("123456789"));
  EXPECT_THAT(store.step(kAnn, command::Append{"b", "9"}), IsEmpty());
  EXPECT_EQ(ask(store, command::Remove{"a"}), encode_integer(1));
  EXPECT_THAT(store.step(kAnn, command::Set{"c", "3"}), IsEmpty());
}

TEST(KeyValueStore, WaitsGiveTheirBytesBack) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kAnn, command::Wait{{"a", "b", "b"}}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Wait{{"c"}}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Wait{{"c", "d"}}), IsEmpty());
  EXPECT_GT(store.total_bytes(), 0u);
  store.disconnected(kAnn);
  EXPECT_EQ(ask(store, command::CancelWait{}, kBob), kCancelled);
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, LongValuesAreReferredToAndNotCopied) {
  KeyValueStore store;
  const std::string first(1000, '1'), second(2000, '2');
  (void)store.step(kAnn, command::Set{"k", first});
  const auto before = store.total_bytes();
  std::vector<Answer> answers;
  for (int i = 0; i < 3; ++i) answers.push_back(store.step(kAnn, command::Get{"k"}).front());
  answers.push_back(store.step(kAnn, command::CompareSet{"k", "another", ""}).front());
  EXPECT_EQ(store.total_bytes(), before);
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.bytes, "");
    ASSERT_EQ(answer.values.size(), 1u);
    EXPECT_EQ(answer.values[0]->bytes(), first);
    EXPECT_EQ(answer.values[0], answers[0].values[0]);
  }
  (void)store.step(kAnn, command::Set{"j", second});
  auto both = store.step(kAnn, command::MultiGet{{"k", "missing", "j"}}).front();
  ASSERT_EQ(both.values.size(), 3u);
  EXPECT_EQ(both.values[0]->bytes(), first);
  EXPECT_EQ(both.values[1], nullptr);
  EXPECT_EQ(both.values[2]->bytes(), second);
}

TEST(KeyValueStore, AnswersKeepTheValueThatTheyAnswered) {
  const std::string old(1000, 'o'), added(1000, 'a');
  const Command changes[] = {command::Set{"k", added}, command::Append{"k", added}, command::Remove{"k"},
                             command::CompareSet{"k", old, added}, command::MultiSet{{{"k", added}}}};
  for (const auto& change : changes) {
    SCOPED_TRACE(change.index());
    KeyValueStore store;
    (void)store.step(kAnn, command::Set{"k", old});
    {
      const auto answer = store.step(kAnn, command::Get{"k"}).front();
      (void)store.step(kBob, Command(change));
      EXPECT_EQ(answer.values.at(0)->bytes(), old);
      EXPECT_EQ(store.memory().dropped_bytes(), 1000u);
      EXPECT_GE(store.total_bytes(), 1000u);  // it counts although the store has dropped it
    }
    EXPECT_EQ(store.memory().dropped_bytes(), 0u);
    const auto now = store.step(kAnn, command::Get{"k"}).front();
    if (std::holds_alternative<command::Append>(change)) {
      EXPECT_EQ(now.values.at(0)->bytes(), old + added);
    }
    (void)store.step(kAnn, command::Remove{"k"});
  }
}

TEST(KeyValueStore, PoppedValueCountsUntilItsAnswerIsGone) {
  KeyValueStore store;
  (void)store.step(kAnn, command::QueuePush{"q", std::string(1000, 'v')});
  {
    const auto answer = store.step(kAnn, command::QueuePop{"q"}).front();
    EXPECT_EQ(answer.bytes, encode_integer(1));
    EXPECT_EQ(answer.values.at(0)->bytes(), std::string(1000, 'v'));
    EXPECT_EQ(store.total_bytes(), 1000u);
  }
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, GrowingValueCountsTheRoomThatItHas) {
  KeyValueStore store({.total_bytes_max = 4000});
  (void)store.step(kAnn, command::Set{"k", std::string(1000, 'v')});
  (void)store.step(kAnn, command::Append{"k", "1"});
  EXPECT_GE(store.total_bytes(), 2000u);  // it has doubled its room
  for (int i = 0; i < 900; ++i) (void)store.step(kAnn, command::Append{"k", "2"});
  const auto before = store.total_bytes();
  EXPECT_THAT(refusal_of(store, command::Append{"k", std::string(1000, '3')}), HasSubstr("the store is full"));
  EXPECT_EQ(store.total_bytes(), before);
  EXPECT_EQ(store.step(kAnn, command::Get{"k"}).front().values.at(0)->bytes().size(), 1901u);
  (void)store.step(kAnn, command::Set{"k", "short"});
  EXPECT_LT(store.total_bytes(), 300u);
}

// What all ranks of a job do that wait for all others. Each key's text is there once.
TEST(KeyValueStore, ManyWaitsForTheSameKeysShareThem) {
  constexpr std::uint64_t kRanks = 200;
  constexpr std::size_t kKey = 1000;
  KeyValueStore store;
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < kRanks; ++i) keys.push_back(std::to_string(i) + "/" + std::string(kKey, 'k'));
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) (void)store.step(ConnectionId{rank}, command::Wait{keys});
  EXPECT_LT(store.total_bytes(), kRanks * (2 * kKey) + kRanks * kRanks * 40);
  EXPECT_GE(store.wait_bytes(ConnectionId{7}), kRanks * kKey);
  std::size_t woken = 0;
  for (const auto& key : keys) woken += store.step(kAnn, command::Set{key, ""}).size();
  EXPECT_EQ(woken, kRanks);
  EXPECT_EQ(store.waiting_count(), 0u);
  for (const auto& key : keys) (void)store.step(kAnn, command::Remove{key});
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, WaitBeyondItsLimitIsRefused) {
  KeyValueStore store({.wait_bytes_max = 1000});
  EXPECT_THAT(store.step(kAnn, command::Wait{{"a", "b", "c", "d"}}), IsEmpty());
  EXPECT_THAT(refusal_of(store, command::Wait{{"a", "b", "c", "d", "e"}}), HasSubstr("beyond the limit of 1000"));
  EXPECT_EQ(store.waiting_count(), 1u);
}

// So that the server can make room and try it again.
TEST(KeyValueStore, CommandThatHasNoRoomCanBeTriedAgain) {
  const std::string big(3000, 'b');
  const Command commands[] = {command::Set{"k", big},
                              command::CompareSet{"k", "", big},
                              command::Append{"k", big},
                              command::MultiSet{{{"j", "1"}, {"k", big}}},
                              command::QueuePush{"k", big},
                              command::Wait{{std::string(3000, 'k')}},
                              command::Barrier{std::string(1000, 'k'), 2},
                              command::Append{"there", big}};
  for (const auto& original : commands) {
    SCOPED_TRACE(original.index());
    KeyValueStore store({.total_bytes_max = 5000});
    (void)store.step(kAnn, command::Set{"there", std::string(300, 't')});
    const auto referred_to = store.step(kAnn, command::Get{"there"});
    (void)store.step(kBob, command::Set{"other", std::string(3000, 'o')});
    Command command = original;
    EXPECT_THROW((void)store.step(kAnn, std::move(command)), StoreFull);
    EXPECT_EQ(command, original);
    (void)store.step(kBob, command::Remove{"other"});
    EXPECT_NO_THROW((void)store.step(kAnn, std::move(command)));
  }
}

TEST(KeyValueStore, ValuesAndAnswersDoNotOutgrowTheirLimits) {
  KeyValueStore store({.value_bytes_max = 10, .answer_bytes_max = 40, .total_bytes_max = 1000});
  (void)store.step(kAnn, command::Append{"k", "12345"});
  (void)store.step(kAnn, command::Append{"k", "67890"});
  EXPECT_THAT(refusal_of(store, command::Append{"k", "1"}), HasSubstr("beyond the limit of 10 bytes"));
  EXPECT_EQ(ask(store, command::MultiGet{{"k", "k"}}), encode_value("1234567890") + encode_value("1234567890"));
  EXPECT_THAT(refusal_of(store, command::MultiGet{{"k", "k", "k"}}), HasSubstr("an answer of 54 bytes"));
  (void)store.step(kAnn, command::Set{"a key of 24 bytes, in all", ""});
  EXPECT_THAT(refusal_of(store, command::ListKeys{}), HasSubstr("an answer of 50 bytes"));
}

TEST(KeyValueStore, QueueIsThereWhileItHoldsSomethingAndIsNoKey) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kAnn, command::QueuePush{"q", "one"}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::QueuePush{"q", ""}), IsEmpty());
  EXPECT_EQ(ask(store, command::Check{{"q"}}), std::string(1, kReady));
  EXPECT_EQ(ask(store, command::Wait{{"q"}}), kFulfilled);
  EXPECT_EQ(ask(store, command::KeyCount{}), encode_integer(0));
  EXPECT_EQ(ask(store, command::ListKeys{}), encode_integer(0));
  EXPECT_EQ(ask(store, command::Get{"q"}), encode_value(""));
  EXPECT_EQ(ask(store, command::Remove{"q"}), encode_integer(0));
  (void)store.step(kAnn, command::Set{"q", "a key of this name"});
  EXPECT_EQ(ask(store, command::QueueLength{"q"}), encode_integer(2));
  EXPECT_EQ(ask(store, command::QueuePop{"q"}), encode_integer(2) + encode_value("one"));
  EXPECT_EQ(ask(store, command::QueuePop{"q"}), encode_integer(1) + encode_value(""));
  EXPECT_EQ(ask(store, command::QueuePop{"q"}), encode_integer(0));
  EXPECT_EQ(ask(store, command::QueueLength{"q"}), encode_integer(0));
  EXPECT_EQ(ask(store, command::Remove{"q"}), encode_integer(1));
  EXPECT_EQ(ask(store, command::Check{{"q"}}), std::string(1, kNotReady));
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, PushAnswersTheOneThatHasWaitedLongest) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kCat, command::Wait{{"q", "k"}}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Wait{{"q"}}), IsEmpty());
  EXPECT_THAT(store.step(kAnn, command::Wait{{"q"}}), IsEmpty());
  EXPECT_THAT(store.step(kDan, command::QueuePush{"q", "1"}), ElementsAre(Answer{kBob, kFulfilled}));  // Cat misses k
  EXPECT_THAT(store.step(kDan, command::QueuePush{"q", "2"}), ElementsAre(Answer{kAnn, kFulfilled}));
  EXPECT_THAT(store.step(kDan, command::QueuePush{"q", "3"}), IsEmpty());
  EXPECT_THAT(store.step(kDan, command::Set{"k", ""}), ElementsAre(Answer{kCat, kFulfilled}));
}

TEST(KeyValueStore, BarrierOpensWhenAllHaveComeAndStaysOpen) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kAnn, command::Barrier{"b", 3}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Barrier{"b", 3}), IsEmpty());
  EXPECT_THAT(store.step(kCat, command::Barrier{"b", 3}),
              ElementsAre(Answer{kCat, kFulfilled}, Answer{kAnn, kFulfilled}, Answer{kBob, kFulfilled}));
  EXPECT_EQ(ask(store, command::Barrier{"b", 3}), kFulfilled);
  EXPECT_EQ(ask(store, command::Get{"b"}), encode_value("4"));
  EXPECT_EQ(ask(store, command::Barrier{"other", 0}), kFulfilled);
}

TEST(KeyValueStore, WhoLeavesABarrierIsCountedButNotAnswered) {
  KeyValueStore store;
  EXPECT_THAT(store.step(kAnn, command::Barrier{"b", 4}), IsEmpty());
  EXPECT_THAT(store.step(kBob, command::Barrier{"b", 4}), IsEmpty());
  EXPECT_THAT(store.step(kCat, command::Barrier{"b", 4}), IsEmpty());
  EXPECT_EQ(ask(store, command::CancelWait{}), kCancelled);
  store.disconnected(kBob);
  EXPECT_THAT(store.step(kDan, command::Barrier{"b", 4}),
              ElementsAre(Answer{kDan, kFulfilled}, Answer{kCat, kFulfilled}));
  EXPECT_EQ(store.waiting_count(), 0u);
  EXPECT_EQ(ask(store, command::Remove{"b"}), encode_integer(1));
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, BarrierAtAKeyThatIsNoNumberIsRefused) {
  KeyValueStore store;
  (void)store.step(kAnn, command::Set{"b", "text"});
  EXPECT_THAT(refusal_of(store, command::Barrier{"b", 1}), HasSubstr("BARRIER: the value of key \"b\""));
}

// The same by lists and searches, with no thought for speed.
class SlowStore {
 public:
  std::optional<std::vector<Answer>> step(ConnectionId from, const Command& command) {  // empty where it refuses
    answers_.clear();
    from_ = from;
    if (!std::visit([this](const auto& c) { return run(c); }, command)) return std::nullopt;
    return answers_;
  }

  void disconnected(ConnectionId connection) {
    std::erase_if(waits_, [connection](const auto& wait) { return wait.first == connection; });
    std::erase_if(in_barrier_, [connection](const auto& one) { return one.who == connection; });
  }

  std::size_t key_count() const { return entries_.size(); }
  std::size_t waiting_count() const { return waits_.size() + in_barrier_.size(); }

 private:
  std::string* find(const std::string& key) {
    for (auto& entry : entries_) {
      if (entry.key == key) return &entry.value;
    }
    return nullptr;
  }

  void put(const std::string& key, const std::string& value) {
    if (auto* old = find(key)) {
      *old = value;
    } else {
      entries_.push_back({key, value});
    }
    for (auto& [waiter, keys] : waits_) {
      std::erase(keys, key);
      if (keys.empty()) answers_.push_back({waiter, kFulfilled});
    }
    std::erase_if(waits_, [](const auto& wait) { return wait.second.empty(); });
  }

  bool answer(std::string bytes) {
    answers_.push_back({from_, std::move(bytes)});
    return true;
  }
  std::string value_of(const std::string& key) { return find(key) ? *find(key) : ""; }
  std::vector<std::string> missing(std::vector<std::string> keys) {
    std::erase_if(keys, [this](const auto& key) { return find(key) != nullptr || !queues_[key].empty(); });
    return keys;
  }

  bool run(const command::Validate&) { return true; }
  bool run(const command::Set& c) { return put(c.key, c.value), true; }
  bool run(const command::CompareSet& c) {
    if (find(c.key) ? value_of(c.key) != c.expected : !c.expected.empty()) {
      return answer(encode_value(find(c.key) ? value_of(c.key) : c.expected));
    }
    answer(encode_value(c.desired));
    return put(c.key, c.desired), true;
  }
  bool run(const command::Get& c) { return answer(encode_value(value_of(c.key))); }
  bool run(const command::Add& c) {
    char* end = nullptr;
    const auto old = value_of(c.key);
    const auto sum = std::strtoll(old.c_str(), &end, 10) + c.delta;  // the test keeps to small numbers
    if (find(c.key) && end == old.c_str()) return false;
    answer(encode_integer(sum));
    return put(c.key, std::to_string(sum)), true;
  }
  bool run(const command::Check& c) { return answer(std::string(1, missing(c.keys).empty() ? kReady : kNotReady)); }
  bool run(const command::Wait& c) {
    disconnected(from_);
    if (missing(c.keys).empty()) return answer(kFulfilled);
    waits_.emplace_back(from_, missing(c.keys));
    return true;
  }
  bool run(const command::KeyCount&) { return answer(encode_integer(static_cast<std::int64_t>(entries_.size()))); }
  bool run(const command::Remove& c) {
    return answer(encode_integer(std::erase_if(entries_, [&c](const auto& entry) { return entry.key == c.key; }) > 0));
  }
  bool run(const command::Append& c) { return put(c.key, value_of(c.key) + c.value), true; }
  bool run(const command::MultiGet& c) {
    std::string all;
    for (const auto& key : c.keys) all += encode_value(value_of(key));
    return answer(all);
  }
  bool run(const command::MultiSet& c) {
    for (const auto& entry : c.entries) put(entry.key, entry.value);
    return true;
  }
  bool run(const command::CancelWait&) {
    disconnected(from_);
    return answer(kCancelled);
  }
  bool run(const command::Ping& c) { return answer(encode_nonce(c.nonce)); }
  bool run(const command::QueuePush& c) {
    queues_[c.key].push_back(c.value);
    for (auto wait = waits_.begin(); wait != waits_.end(); ++wait) {
      if (std::erase(wait->second, c.key) == 0 || !wait->second.empty()) continue;
      answers_.push_back({wait->first, kFulfilled});
      waits_.erase(wait);
      break;
    }
    return true;
  }
  bool run(const command::QueuePop& c) {
    auto& queue = queues_[c.key];
    if (queue.empty()) return answer(encode_integer(0));
    answer(encode_integer(static_cast<std::int64_t>(queue.size())) + encode_value(queue.front()));
    queue.erase(queue.begin());
    return true;
  }
  bool run(const command::QueueLength& c) {
    return answer(encode_integer(static_cast<std::int64_t>(queues_[c.key].size())));
  }
  bool run(const command::ListKeys&) {
    std::set<std::string> keys;
    for (const auto& entry : entries_) keys.insert(entry.key);
    std::string all = encode_integer(static_cast<std::int64_t>(keys.size()));
    for (const auto& key : keys) all += encode_value(key);
    return answer(all);
  }
  bool run(const command::Barrier& c) {
    char* end = nullptr;
    const auto old = value_of(c.key);
    const auto count = std::strtoll(old.c_str(), &end, 10) + 1;
    if (find(c.key) && end == old.c_str()) return false;
    disconnected(from_);
    in_barrier_.push_back({from_, c.key, c.size});
    for (const auto& one : in_barrier_) {
      if (one.key == c.key && one.size <= count) answers_.push_back({one.who, kFulfilled});
    }
    std::erase_if(in_barrier_, [&](const auto& one) { return one.key == c.key && one.size <= count; });
    return put(c.key, std::to_string(count)), true;
  }

  struct InBarrier {
    ConnectionId who;
    std::string key;
    std::int64_t size;
  };

  ConnectionId from_{};
  std::map<std::string, std::vector<std::string>> queues_;
  std::vector<InBarrier> in_barrier_;
  std::vector<KeyValue> entries_;
  std::vector<std::pair<ConnectionId, std::vector<std::string>>> waits_;
  std::vector<Answer> answers_;
};

// As it goes on the wire.
Answer without_references(const Answer& answer) {
  Answer flat{answer.to, answer.bytes};
  for (const auto& value : answer.values) flat.bytes += encode_value(value ? value->bytes() : "");
  return flat;
}

// Every second seed has answers that refer to the values. Some answers stay while the values change.
void expect_same_as_slow_store(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint64_t bound) { return random() % bound; };
  const auto key = [&] { return std::string(1, static_cast<char>('a' + below(6))); };
  const auto keys = [&] {
    std::vector<std::string> list(below(4));
    for (auto& item : list) item = key();
    return list;
  };
  const auto value = [&] { return std::vector<std::string>{"", "x", "7", "-12", "3 pears"}[below(5)]; };
  const auto any_command = [&]() -> Command {
    switch (below(22)) {
      case 0: return command::Set{key(), value()};
      case 1: return command::CompareSet{key(), value(), value()};
      case 2: return command::Get{key()};
      case 3: return command::Add{key(), static_cast<std::int64_t>(below(9)) - 4};
      case 4: return command::Check{keys()};
      case 5: return command::KeyCount{};
      case 6: return command::Append{key(), value()};
      case 7: return command::MultiGet{keys()};
      case 8: return command::MultiSet{{{key(), value()}, {key(), value()}}};
      case 9: return command::CancelWait{};
      case 10:
      case 11:
      case 12: return command::Remove{key()};
      case 13: return command::QueuePush{key(), value()};
      case 14:
      case 15: return command::QueuePop{key()};
      case 16: return command::QueueLength{key()};
      case 17: return command::ListKeys{};
      case 18: return command::Barrier{key(), static_cast<std::int64_t>(below(6))};
      default: return command::Wait{keys()};
    }
  };
  const auto by_connection = [](const Answer& a, const Answer& b) { return a.to < b.to; };
  KeyValueStore store({.copied_bytes_max = seed % 2 == 0 ? 256u : 0u});
  SlowStore slow;
  std::vector<std::pair<Answer, Answer>> unread;  // and as they were
  for (int step = 0; step < 3000; ++step) {
    const ConnectionId from{below(8)};
    if (below(20) == 0) {
      store.disconnected(from);
      slow.disconnected(from);
      continue;
    }
    const Command command = any_command();
    auto want = slow.step(from, command);
    std::optional<std::vector<Answer>> got;
    try {
      got = store.step(from, Command(command));
    } catch (const StoreError&) {
    }
    if (want) std::stable_sort(want->begin(), want->end(), by_connection);  // nothing is promised between connections
    if (got) std::stable_sort(got->begin(), got->end(), by_connection);
    for (std::size_t i = 0; got && i < got->size(); ++i) {
      auto& answer = (*got)[i];
      auto flat = without_references(answer);
      if (below(4) == 0) unread.emplace_back(answer, flat);
      answer = std::move(flat);
    }
    if (unread.size() > 10) {
      for (const auto& [answer, then] : unread) ASSERT_EQ(without_references(answer), then) << "step " << step;
      unread.clear();
    }
    ASSERT_EQ(got, want) << "step " << step << ", command " << command.index();
    ASSERT_EQ(store.key_count(), slow.key_count());
    ASSERT_EQ(store.waiting_count(), slow.waiting_count());
  }
  unread.clear();
  for (std::uint64_t id = 0; id < 8; ++id) store.disconnected(ConnectionId{id});
  for (char c = 'a'; c < 'g'; ++c) {
    (void)store.step(kAnn, command::Remove{std::string(1, c)});
    while (ask(store, command::QueuePop{std::string(1, c)}) != encode_integer(0)) {
    }
  }
  EXPECT_EQ(store.total_bytes(), 0u);
}

TEST(KeyValueStore, DoesWhatASlowPlainStoreDoes) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same_as_slow_store(seed);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace ddp::store
