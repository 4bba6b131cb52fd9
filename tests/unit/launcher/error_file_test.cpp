#include "launcher/output/error_file.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/worker_runtime/scratch_directory.hpp"

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

nlohmann::json for_caller(const std::string& json_text) {
  return nlohmann::json::parse(error_file_for_caller(json_text, {"", 7, "rank 1 exited with 7"}, 1234));
}

TEST(ErrorFile, TheCallersHasTheWorkersWordsAndTheCode) {
  const auto json =
      for_caller(R"({"message": {"message": "ValueError: x\ny", "extraInfo": {"timestamp": "1"}}, "more": 1})");
  EXPECT_EQ(json["message"]["message"], "ValueError: x\ny");
  EXPECT_EQ(json["message"]["errorCode"], 7);
  EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "1");
  EXPECT_EQ(json["more"], 1);
  EXPECT_EQ(for_caller(R"({"message": "plain", "timestamp": 5})"),
            nlohmann::json({{"message", "plain"}, {"timestamp", 5}}));
  EXPECT_EQ(for_caller("{\"message\": \"\\ud800\"}")["message"]["errorCode"],
            7);  // no valid text: as if there were none
}

TEST(ErrorFile, TheCallersSaysWhatIsKnownWhereTheWorkerWroteNothing) {
  for (const auto* text : {"", "{", "[1]", "{}", "\xff"}) {
    const auto json = for_caller(text);
    EXPECT_EQ(json["message"]["message"], "rank 1 exited with 7") << text;
    EXPECT_EQ(json["message"]["errorCode"], 7);
    EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "1234");
  }
}

TEST(ErrorFile, DeeplyNestedTextIsNoMessage) {
  const auto nested = [](int depth) {
    return R"({"message": "m", "more": )" + std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']') + "}";
  };
  EXPECT_EQ(error_message_of(nested(10)), "m");
  EXPECT_EQ(for_caller(nested(10))["message"], "m");
  EXPECT_EQ(error_message_of(nested(200'000)), "");
  EXPECT_EQ(for_caller(nested(200'000))["message"]["message"], "rank 1 exited with 7");
}

TEST(ErrorFile, IsPassedOn) {
  const test::ScratchDirectory scratch;
  const auto mine = (scratch.path() / "mine.json").string(), callers = (scratch.path() / "callers.json").string();
  std::ofstream(mine) << R"({"message": {"message": "ValueError: x"}})";
  std::ofstream(callers) << std::string(1000, ' ');
  ASSERT_TRUE(pass_error_on({mine, 7, ""}, callers));
  EXPECT_EQ(read_error_file(callers), "ValueError: x");
  ASSERT_TRUE(pass_error_on({"", 7, "rank 1 was killed"}, callers));
  EXPECT_EQ(read_error_file(callers), "rank 1 was killed");
  EXPECT_FALSE(pass_error_on({mine, 7, ""}, "/nonexistent/error.json"));
}

}  // namespace
}  // namespace ddp::launcher
