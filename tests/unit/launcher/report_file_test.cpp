#include "launcher/agent/report_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using rendezvous::Ending;
using rendezvous::FinishJob;
using rendezvous::RoundTimes;
using rendezvous::RunReport;
using ::testing::HasSubstr;

class File : public ::testing::Test {
 protected:
  File() {
    std::string name = std::filesystem::temp_directory_path() / "report_XXXXXX";
    folder = ::mkdtemp(name.data());
  }
  ~File() override { std::filesystem::remove_all(folder); }
  std::string folder;
};

TEST(Report, TellsTheTimesOfEachRoundInSecondsAndNullWhereThereAreNone) {
  RunReport report;
  report.total = 100s;
  report.worked = 75s;
  report.useful = 55s;
  report.rounds_count = 2;
  report.rounds = {RoundTimes{4, "", 2, 8, 0ms, 0ms, 0ms, 250ms, {}, 50s, 20s},
                   RoundTimes{5, "rank 3 was killed by SIGKILL", 1, 4, 3ms, 1500ms, 20ms, 100ms, 2s, 25s}};
  FinishJob verdict;
  verdict.report = report;
  const auto json = nlohmann::json::parse(report_json({"bert", 75, verdict}));
  EXPECT_EQ(json, (nlohmann::json{{"run_id", "bert"},
                                  {"exit_code", 75},
                                  {"left", false},
                                  {"total_seconds", 100.0},
                                  {"worked_seconds", 75.0},
                                  {"goodput", 0.55},
                                  {"rounds_count", 2},
                                  {"rounds",
                                   {{{"round", 4},
                                     {"why", "rank 3 was killed by SIGKILL"},
                                     {"cause", nullptr},
                                     {"nodes", 2},
                                     {"world_size", 8},
                                     {"detect_seconds", 0.0},
                                     {"stop_seconds", 0.0},
                                     {"rendezvous_seconds", 0.0},
                                     {"start_seconds", 0.25},
                                     {"first_step_seconds", nullptr},
                                     {"worked_seconds", 50.0},
                                     {"lost_seconds", 20.0}},
                                    {{"round", 5},
                                     {"why", "all workers ended well"},
                                     {"cause", nullptr},
                                     {"nodes", 1},
                                     {"world_size", 4},
                                     {"detect_seconds", 0.003},
                                     {"stop_seconds", 1.5},
                                     {"rendezvous_seconds", 0.02},
                                     {"start_seconds", 0.1},
                                     {"first_step_seconds", 2.0},
                                     {"worked_seconds", 25.0},
                                     {"lost_seconds", nullptr}}}}}));
}

TEST(Report, TheLastRoundHasTheCause) {
  FinishJob verdict;
  verdict.report.emplace().rounds.resize(2);
  auto& cause = verdict.cause.emplace();
  cause.rank = 5;
  cause.host = "gpu17";
  cause.pid = 41822;
  cause.ending = {Ending::Kind::killed, 9, false};
  cause.stderr_file = "/logs/stderr.log";
  cause.stderr_tail = {"step 4", "oh"};
  auto json = nlohmann::json::parse(report_json({"bert", 137, verdict}));
  EXPECT_TRUE(json["rounds"][0]["cause"].is_null());
  EXPECT_EQ(json["rounds"][1]["cause"], (nlohmann::json{{"rank", 5},
                                                        {"is_certain", true},
                                                        {"host", "gpu17"},
                                                        {"pid", 41822},
                                                        {"exit_code", nullptr},
                                                        {"signal", "SIGKILL"},
                                                        {"out_of_memory", nullptr},
                                                        {"killed_for", nullptr},
                                                        {"message", nullptr},
                                                        {"stderr_file", "/logs/stderr.log"},
                                                        {"stderr_tail", {"step 4", "oh"}}}));
  verdict.has_left = true;
  EXPECT_EQ(nlohmann::json::parse(report_json({"bert", 143, verdict}))["left"], true);
  cause.ending.out_of_memory = true;
  verdict.is_cause_certain = false;
  json = nlohmann::json::parse(report_json({"bert", 137, verdict}))["rounds"][1]["cause"];
  EXPECT_EQ(json["out_of_memory"], true);
  EXPECT_EQ(json["is_certain"], false);
  auto& other = verdict.consequences.emplace_back();
  other.rank = 2;
  other.host = "gpu16";
  other.after = 1500ms;
  other.accused = {5};
  other.killed_for = "killed by ddprun: did not come";
  other.ending = {Ending::Kind::killed, 9, false};
  json = nlohmann::json::parse(report_json({"bert", 137, verdict}));
  EXPECT_EQ(json["rounds"][1]["other_failures"][0], (nlohmann::json{{"rank", 2},
                                                                    {"host", "gpu16"},
                                                                    {"how", "was killed by SIGKILL"},
                                                                    {"after_seconds", 1.5},
                                                                    {"accused_ranks", {5}},
                                                                    {"killed_for", "killed by ddprun: did not come"}}));
  EXPECT_FALSE(json["rounds"][0].contains("other_failures"));
  EXPECT_TRUE(json["rounds"][1].at("seen_first").is_null());
  verdict.seen_first = 2;
  cause.job_time = 3s;
  other.job_time = 2200ms;
  json = nlohmann::json::parse(report_json({"bert", 137, verdict}));
  EXPECT_EQ(json["rounds"][1]["seen_first"],
            (nlohmann::json{
                {"rank", 2}, {"host", "gpu16"}, {"how", "was killed by SIGKILL"}, {"seconds_before_cause", 0.8}}));
  cause.ending = {Ending::Kind::exited, 3, false};
  cause.message = "no data";
  json = nlohmann::json::parse(report_json({"bert", 3, verdict}))["rounds"][1]["cause"];
  EXPECT_EQ(json["exit_code"], 3);
  EXPECT_TRUE(json["signal"].is_null());
  EXPECT_EQ(json["message"], "no data");
}

RoundTimes round_of(std::uint32_t number, int nodes = 0) {
  RoundTimes out;
  out.round = number;
  out.nodes = nodes;
  return out;
}

TEST(Report, HasTheRoundsBeforeThoseOfTheVerdictOnce) {
  FinishJob verdict;
  verdict.report.emplace().rounds_count = 5;
  verdict.report->rounds = {round_of(3), round_of(4)};
  RunEnd end{"bert", 3, verdict};
  for (std::uint32_t round = 0; round < 4; ++round)
    end.earlier_rounds += round_line(round_of(round, 2), "rank 3 failed") + "\n";
  const auto json = nlohmann::json::parse(report_json(end));
  std::vector<int> numbers, nodes;
  for (const auto& round : json["rounds"]) {
    numbers.push_back(round["round"]);
    nodes.push_back(round["nodes"]);
  }
  EXPECT_EQ(numbers, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(nodes, (std::vector<int>{2, 2, 2, 0, 0})) << "what membership tells at the end goes before";
  EXPECT_EQ(json["rounds"][1]["why"], "rank 3 failed");
}

TEST(Report, PassesOverALineThatTheDiskHasTornAndTellsOfRoundsWithoutAVerdict) {
  RunEnd end{"bert", 77, {}};
  end.earlier_rounds = round_line(round_of(0), "") + "\n{\"round\": 1, \"wh";
  const auto rounds = nlohmann::json::parse(report_json(end))["rounds"];
  ASSERT_EQ(rounds.size(), 1U);
  EXPECT_EQ(rounds[0]["why"], "the next round began");
}

TEST(Report, IsAllNullsWhereMembershipToldNone) {
  const auto json = nlohmann::json::parse(report_json({"x", 77, {}}));
  EXPECT_EQ(json["exit_code"], 77);
  EXPECT_TRUE(json["total_seconds"].is_null());
  EXPECT_TRUE(json["rounds_count"].is_null());
  EXPECT_EQ(json["rounds"], nlohmann::json::array());
}

TEST(Report, TakesBytesThatAreNoTextForWhatTheyAre) {
  FinishJob verdict;
  verdict.what = "\xff\xfe";
  verdict.report.emplace().rounds.emplace_back();
  EXPECT_FALSE(nlohmann::json::parse(report_json({"x", 1, verdict})).is_discarded());
}

TEST_F(File, ReplacesWhatWasThere) {
  const auto path = folder + "/report.json";
  std::ofstream(path) << "an older and much longer one";
  ReportFile(path).write("new\n");
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  EXPECT_EQ(content.str(), "new\n");
}

TEST_F(File, AtAWrongPathIsRefusedAtOnceAndAFullDiskLater) {
  try {
    ReportFile file(folder + "/missing/report.json");
    FAIL() << "it was taken";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder + "/missing/report.json: No such file"));
    EXPECT_EQ(error.where(), "--report");
  }
  EXPECT_THROW(ReportFile("/dev/full").write("some"), std::system_error);
}

}  // namespace
}  // namespace ddp::launcher
