#include "launcher/output/error_file.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

TEST(ErrorFile, FindsTheMessage) {
  EXPECT_EQ(error_message_of(R"({"message": {"message": "ValueError: x\ny", "extraInfo": {"timestamp": "1"}}})"),
            "ValueError: x");
  EXPECT_EQ(error_message_of(R"({"message": "plain"})"), "plain");
}

TEST(ErrorFile, NonsenseHasNoMessage) {
  for (const auto* text : {"", "{", "[]", "{}", R"({"message": 3})", R"({"message": {"message": []}})", "\xff\xfe"})
    EXPECT_EQ(error_message_of(text), "") << text;
  EXPECT_EQ(read_error_file("/nonexistent/error.json"), "");
}

}  // namespace
}  // namespace ddp::launcher
