#include "base/event_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ddp::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::MatchesRegex;
using ::testing::SizeIs;
using ::testing::StartsWith;

class Events : public ::testing::Test {
 protected:
  EventLog log(LogLevel level) {
    return {level, [this](LogLevel, const std::string& line) {
              const std::lock_guard lock(mutex_);
              written_.push_back(line);
            }};
  }

  std::mutex mutex_;
  std::vector<std::string> written_;
};

TEST_F(Events, HaveTimeLevelNameAndFields) {
  auto log = this->log(LogLevel::info);
  log({"round_started", LogFields().add("round", 3).add("took", std::chrono::milliseconds(40)), LogLevel::info},
      LogFields().add("job", "llama"));
  ASSERT_THAT(written_, SizeIs(1));
  EXPECT_THAT(written_[0], MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info round_started "
                                        "job=llama round=3 took=40ms"));
}

TEST_F(Events, BelowTheLevelAreKeptOnly) {
  auto log = this->log(LogLevel::warning);
  log({"a", {}, LogLevel::debug});
  log({"b", {}, LogLevel::info});
  log({"c", {}, LogLevel::warning});
  log({"d", {}, LogLevel::error});
  EXPECT_THAT(written_, ElementsAre(EndsWith(" warning c"), EndsWith(" error d")));
  EXPECT_THAT(log.take_kept(), MatchesRegex(".* debug a\n.* info b\n.* warning c\n.* error d\n"));
  EXPECT_EQ(log.take_kept(), "");
  EXPECT_THAT(written_, SizeIs(2)) << "what is taken is not written again";
  log({"e", {}, LogLevel::error});
  EXPECT_THAT(written_, SizeIs(3));
  EXPECT_THAT(log.take_kept(), EndsWith(" error e\n"));
}

TEST_F(Events, OfLevelOffAreKeptAllTheSame) {
  auto log = this->log(LogLevel::off);
  log({"a", {}, LogLevel::error});
  EXPECT_THAT(written_, SizeIs(0));
  EXPECT_THAT(log.take_kept(), EndsWith(" error a\n"));
}

TEST_F(Events, AreForgottenBeyondTheNewest) {
  auto log = this->log(LogLevel::off);
  const int count = static_cast<int>(EventLog::kKeptMax) + 7;
  for (int i = 0; i < count; ++i) log({"event", LogFields().add("number", i)});
  const auto kept = log.take_kept();
  EXPECT_EQ(static_cast<std::size_t>(std::count(kept.begin(), kept.end(), '\n')), EventLog::kKeptMax);
  EXPECT_THAT(kept.substr(0, kept.find('\n')), EndsWith(" event number=7"));
  EXPECT_THAT(kept, EndsWith(" event number=" + std::to_string(count - 1) + "\n"));
}

TEST_F(Events, OfSeveralThreadsAreWholeLines) {
  auto log = this->log(LogLevel::debug);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread)
    threads.emplace_back([&log, thread] {
      for (int i = 0; i < 1'000; ++i) log({"event", LogFields().add("thread", thread).add("number", i)});
    });
  for (int i = 0; i < 10; ++i) (void)log.take_kept();
  for (auto& thread : threads) thread.join();
  for (const auto& line : written_) EXPECT_THAT(line, MatchesRegex("[^ ]+ debug event thread=[01] number=[0-9]+"));
  EXPECT_THAT(written_, SizeIs(2'000));
}

TEST(LogFields, QuoteWhatIsNotOneWord) {
  EXPECT_EQ(LogFields().add("a", "plain-word:1,2").text(), " a=plain-word:1,2");
  EXPECT_EQ(LogFields().add("a", "").text(), " a=\"\"");
  EXPECT_EQ(LogFields().add("a", "two words").text(), " a=\"two words\"");
  EXPECT_EQ(LogFields().add("a", "b=c").text(), " a=\"b=c\"");
  EXPECT_EQ(LogFields().add("a", "say \"x\" \\ y").text(), " a=\"say \\\"x\\\" \\\\ y\"");
}

TEST(LogFields, StayOneLineWhateverOthersHavePutIntoThem) {
  const auto text = LogFields().add("why", "a\n2026-01-01T00:00:00.000Z error forged\x1b[2J").text();
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(LogFields, AreCut) {
  const auto text = LogFields().add("why", std::string(100'000, 'x')).text();
  EXPECT_THAT(text, AllOf(StartsWith(" why=xxx"), EndsWith("...")));
  EXPECT_LT(text.size(), LogFields::kValueBytesMax + 10);
}

TEST(LogFields, StayBelowWhatAPipeTakesAtOnce) {
  LogFields fields;
  for (int i = 0; i < 100; ++i) fields.add("key", std::string(LogFields::kValueBytesMax, '"'));
  EXPECT_LT(fields.text().size(), 4'000u);
  EXPECT_THAT(fields.add("exit_code", 3).text(), EndsWith(" exit_code=3"));
}

TEST(LogFields, LeaveOutWhatIsEmpty) {
  EXPECT_EQ(LogFields().add("a", std::optional<int>()).add_if_any("b", "").text(), "");
  EXPECT_EQ(LogFields().add("a", std::optional<int>(3)).add_if_any("b", "c").add("d", true).text(), " a=3 b=c d=true");
}

TEST(LogLevels, HaveTheirWords) {
  EXPECT_EQ(log_level_of("debug"), LogLevel::debug);
  EXPECT_EQ(log_level_of("warning"), LogLevel::warning);
  EXPECT_EQ(log_level_of("off"), LogLevel::off);
  for (const char* word : {"", "Debug", "warn", "5"}) EXPECT_EQ(log_level_of(word), std::nullopt) << word;
}

}  // namespace
}  // namespace ddp::base
