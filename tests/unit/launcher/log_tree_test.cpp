#include "launcher/output/log_tree.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "launcher/command_line/option_table.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

namespace fs = std::filesystem;

TEST(LogTree, MakesFoldersThatCanBeForetold) {
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at((scratch.path() / "a/b/").string());
  tree.make_rank_directory("bert_7", 3, 12);
  tree.make_rank_directory("bert_7", 3, 12);
  EXPECT_TRUE(fs::is_directory(scratch.path() / "a/b/bert_7/round_3/rank_12"));
  EXPECT_TRUE(fs::is_empty(tree.rank_directory("bert_7", 3, 12)));
  EXPECT_FALSE(fs::exists(tree.job_directory("other")));
}

TEST(LogTree, IsTheSamePlaceForAWorkerThatChangesItsDirectory) {
  const auto before = fs::current_path();
  const test::ScratchDirectory scratch;
  fs::current_path(scratch.path());
  EXPECT_EQ(LogTree::at("logs").job_directory("run"), scratch.path() / "logs/run");
  fs::current_path(before);
}

TEST(LogTree, KnowsTheHighestRoundOfARun) {
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at(scratch.path().string());
  EXPECT_EQ(tree.highest_round("run"), -1);
  for (const int round : {0, 9, 10}) tree.make_rank_directory("run", static_cast<std::uint32_t>(round), 0);
  for (const auto* name : {"round_11x", "round_", "rounds_12", "round_-13", "round_99999999999"})
    fs::create_directory(tree.job_directory("run") + "/" + name);
  EXPECT_EQ(tree.highest_round("run"), 10);
  tree.make_rank_directory(job_folder("run", 1'800'000'000), 12, 0);
  tree.make_rank_directory(job_folder("other_run", 1'800'000'000), 13, 0);
  fs::create_directories(scratch.path() / "some_thing_of_20_chars_run/round_14");
  EXPECT_EQ(tree.highest_round("run"), 12) << "over all jobs with this run id";
  EXPECT_EQ(tree.highest_round("other_run"), 13);
}

TEST(LogTree, LatestLeadsToTheNewestJob) {
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at(scratch.path().string());
  const auto latest = scratch.path() / "latest";
  const auto older = job_folder("b", 1'800'000'000), newer = job_folder("a", 1'800'000'001);
  tree.point_latest_at(older);
  EXPECT_EQ(fs::read_symlink(latest), older);
  tree.point_latest_at(newer);
  EXPECT_EQ(fs::read_symlink(latest), newer);
  tree.point_latest_at(older);
  EXPECT_EQ(fs::read_symlink(latest), newer);
  const auto same_second = job_folder("0", 1'800'000'001);
  tree.point_latest_at(same_second);
  EXPECT_EQ(fs::read_symlink(latest), same_second);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1) << "nothing else is left there";
}

TEST(LogTree, AFolderOfTheNameLatestStays) {
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at(scratch.path().string());
  fs::create_directory(scratch.path() / "latest");
  tree.point_latest_at(job_folder("a", 1'800'000'000));
  EXPECT_TRUE(fs::is_directory(fs::symlink_status(scratch.path() / "latest")));
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
}

TEST(LogTree, RemovesRecordingsAndNothingElse) {
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at(scratch.path().string());
  tree.make_rank_directory("run", 3, 0);
  for (const auto* name : {"flight_recorder_0", "flight_recorder.0.json", "flight_recorder.0.events.log", "other"})
    std::ofstream(tree.round_directory("run", 3) + "/" + name) << "x";
  tree.remove_recordings("run", 3);
  tree.remove_recordings("run", 4);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(tree.round_directory("run", 3))) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{"other", "rank_0"}));
}

TEST(LogTree, AFileIsNoFolder) {
  const test::ScratchDirectory scratch;
  const auto path = (scratch.path() / "file").string();
  std::ofstream(path) << "x";
  for (const auto& directory : {path, path + "/logs", std::string("/proc/nowhere"), std::string("/dev/full")})
    EXPECT_THROW(LogTree::at(directory), UsageError) << directory;
  const auto tree = LogTree::at(scratch.path().string());
  fs::create_directory(scratch.path() / "run");
  std::ofstream(scratch.path() / "run/round_0") << "x";
  EXPECT_THROW(tree.make_rank_directory("run", 0, 0), UsageError);
  EXPECT_THROW(open_log_file(scratch.path().string()), UsageError);
}

// As where the folder is everybody's: others make what is not there yet.
TEST(LogTree, ALinkOfAnotherUserIsNotFollowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a link away";
  const test::ScratchDirectory scratch;
  const auto tree = LogTree::at((scratch.path() / "logs").string());
  tree.make_rank_directory("run", 0, 0);
  const auto target = scratch.path() / "target", file = scratch.path() / "logs/run/round_0/rank_0/stdout.log",
             round = scratch.path() / "logs/run/round_1";
  fs::create_directory(target);
  fs::create_symlink(target / "file", file);
  fs::create_directory_symlink(target, round);
  EXPECT_TRUE(open_log_file(file.string())) << "a link of one's own";
  fs::remove(target / "file");
  tree.make_rank_directory("run", 1, 0);
  fs::remove_all(target / "rank_0");
  const auto own = scratch.path() / "logs/run/ddprun_host.log", run = scratch.path() / "logs/other";
  fs::create_symlink(target / "own", own);
  fs::create_directory_symlink(target, run);
  for (const auto& link : {file, round, own, run}) ASSERT_EQ(::lchown(link.c_str(), 12345, 12345), 0);
  EXPECT_THROW(tree.open_own_log("run", "host"), UsageError);
  EXPECT_THROW(tree.open_own_log("other", "host"), UsageError);
  EXPECT_THROW(open_log_file(file.string()), UsageError);
  EXPECT_THROW(tree.make_rank_directory("run", 1, 0), UsageError);
  EXPECT_TRUE(fs::is_empty(target));
}

TEST(LogTree, AFolderThatMayNotBeWrittenIsRefused) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  const test::ScratchDirectory scratch;
  ::chmod(scratch.path().c_str(), 0500);
  EXPECT_THROW(LogTree::at(scratch.path().string()), UsageError);
  EXPECT_THROW(LogTree::at((scratch.path() / "logs").string()), UsageError);
  ::chmod(scratch.path().c_str(), 0700);
}

class TemporaryLogTree : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("TMPDIR", scratch_.path().c_str(), 1); }
  void TearDown() override { before_.empty() ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", before_.c_str(), 1); }
  std::string directory() const { return (scratch_.path() / ("ddprun_" + std::to_string(::geteuid()))).string(); }

  void expect_another_one() const {
    const auto tree = LogTree::in_temporary_directory();
    EXPECT_EQ(tree.notice(), directory() + " is not this user's alone");
    const auto used = fs::path(tree.job_directory("run")).parent_path();
    EXPECT_EQ(used.string().substr(0, directory().size() + 1), directory() + "_");
    EXPECT_EQ(fs::status(used).permissions(), fs::perms::owner_all);
  }

  std::string before_ = ::getenv("TMPDIR") != nullptr ? ::getenv("TMPDIR") : "";
  test::ScratchDirectory scratch_;
};

TEST_F(TemporaryLogTree, IsTheUsersAlone) {
  EXPECT_EQ(LogTree::in_temporary_directory().job_directory("run"), directory() + "/run");
  EXPECT_EQ(fs::status(directory()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(LogTree::in_temporary_directory().notice(), "");  // again
}

TEST_F(TemporaryLogTree, OneThatOthersCanWriteToIsNotUsed) {
  fs::create_directory(directory());
  fs::permissions(directory(), fs::perms::all);
  expect_another_one();
}

TEST_F(TemporaryLogTree, ALinkIsNotFollowed) {
  fs::create_directory(scratch_.path() / "elsewhere");
  fs::create_directory_symlink(scratch_.path() / "elsewhere", directory());
  expect_another_one();
  EXPECT_TRUE(fs::is_empty(scratch_.path() / "elsewhere"));
}

TEST_F(TemporaryLogTree, AFileInItsPlaceStopsNothing) {
  std::ofstream(directory()) << "taken";
  expect_another_one();
}

TEST_F(TemporaryLogTree, OneOfSomebodyElseIsNotUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(directory());
  fs::permissions(directory(), fs::perms::owner_all);
  ASSERT_EQ(::chown(directory().c_str(), 12345, 12345), 0);
  expect_another_one();
}

TEST(JobFolder, BeginsWithTheTimeSoThatNamesSortByIt) {
  EXPECT_EQ(job_folder("bert/7", 1'795'772'585), "2026-11-27T09-43-05_bert_7");
  EXPECT_EQ(job_folder("bert/7", 0), "bert_7");
  EXPECT_EQ(job_folder(std::string(1000, 'x'), 1).size(), 200u);
}

TEST(FolderName, HasNothingThatCannotStandThere) {
  EXPECT_EQ(folder_name_of("bert-7f3.x"), "bert-7f3.x");
  EXPECT_EQ(folder_name_of("../../etc\n"), ".._.._etc_");
  EXPECT_EQ(folder_name_of(".."), "__");
  EXPECT_EQ(folder_name_of(""), "_");
  EXPECT_EQ(folder_name_of(std::string(1000, 'x')).size(), 200u);
}

}  // namespace
}  // namespace ddp::launcher
