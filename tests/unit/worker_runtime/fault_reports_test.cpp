#include "worker_runtime/engine/fault_reports.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace {

using ddp::gradient_engine::describe_unused;
using ddp::gradient_engine::to_bitmap;

TEST(FaultReports, NamesParametersAndRanks) {
  std::vector<std::int64_t> bitmaps;
  for (const auto& missing : std::vector<std::vector<std::size_t>>{{}, {2}, {0}, {0, 2}}) {
    const auto words = to_bitmap(missing, 3);
    bitmaps.insert(bitmaps.end(), words.begin(), words.end());
  }
  EXPECT_EQ(
      describe_unused({"body.weight", "body.bias", "head.bias"}, bitmaps, 4),
      "parameter body.weight got no gradient on ranks 2 and 3; parameter head.bias got no gradient on ranks 1 and 3");
}

TEST(FaultReports, SaysWhereNoRankHadOne) {
  EXPECT_EQ(describe_unused({"a", "b"}, {2, 2}, 2), "parameter b got no gradient on any rank");
}

TEST(FaultReports, NamesTheFirstOfManyAcrossWords) {
  std::vector<std::string> names;
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < 130; ++i) names.push_back("p" + std::to_string(i));
  for (std::size_t i = 63; i < 130; ++i) missing.push_back(i);
  const std::string text = describe_unused(names, to_bitmap(missing, names.size()), 1);
  EXPECT_EQ(text.substr(0, text.find(';')), "parameter p63 got no gradient on rank 0");
  EXPECT_NE(text.find("parameter p70 got"), std::string::npos);
  EXPECT_EQ(text.find("parameter p71 got"), std::string::npos);
  EXPECT_EQ(text.substr(text.rfind(';')), "; and 59 more parameters");
}

TEST(FaultReports, NamesTheFirstParameterThatIsNotFrozenOnAllRanks) {
  const auto text = ddp::gradient_engine::describe_frozen({"a", "b", "c"}, {0b011, 0b001, 0b011}, 3);
  EXPECT_EQ(text, "parameter b is frozen on ranks 0 and 2, but not on rank 1");
}

TEST(FaultReports, NamesTheFirstMiscountOfEachRank) {
  using ddp::gradient_engine::describe_miscounts;
  using ddp::gradient_engine::miscount_words;
  std::vector<std::int64_t> words;
  for (const auto& miscount :
       std::vector<std::optional<ddp::gradient_engine::Miscount>>{{{1, 2, 3}}, {}, {{0, 1, 0}}}) {
    const auto own = miscount_words(miscount);
    words.insert(words.end(), own.begin(), own.end());
  }
  EXPECT_EQ(describe_miscounts({"shared.weight", "head.bias"}, words, 3),
            "on rank 0 parameter head.bias became ready 3 times, but 2 times in the step that fixed the static graph; "
            "on rank 2 parameter shared.weight became ready 0 times, but 1 time in the step that fixed the static "
            "graph");
}

}  // namespace
