#include "worker_runtime/engine/unused_parameters.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace {

using ddp::gradient_engine::describe_unused;
using ddp::gradient_engine::to_bitmap;

TEST(UnusedParameters, NamesParametersAndRanks) {
  std::vector<std::int64_t> bitmaps;
  for (const auto& missing : std::vector<std::vector<std::size_t>>{{}, {2}, {0}, {0, 2}}) {
    const auto words = to_bitmap(missing, 3);
    bitmaps.insert(bitmaps.end(), words.begin(), words.end());
  }
  EXPECT_EQ(
      describe_unused({"body.weight", "body.bias", "head.bias"}, bitmaps, 4),
      "parameter body.weight got no gradient on ranks 2 and 3; parameter head.bias got no gradient on ranks 1 and 3");
}

TEST(UnusedParameters, SaysWhereNoRankHadOne) {
  EXPECT_EQ(describe_unused({"a", "b"}, {2, 2}, 2), "parameter b got no gradient on any rank");
}

TEST(UnusedParameters, NamesTheFirstOfManyAcrossWords) {
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

}  // namespace
