// Log files of ddprun, as a user finds them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/host_name.hpp"
#include "tests/integration/job.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

namespace fs = std::filesystem;
using ddp::test::contents_of;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

class DdprunLogs : public ::testing::Test {
 protected:
  std::string log_dir() const { return "--log-dir=" + (scratch_.path() / "logs").string(); }

  // Of the only run that there is.
  fs::path run(const std::string& parent = "logs") const {
    std::error_code none_yet;
    for (const auto& entry : fs::directory_iterator(scratch_.path() / parent, none_yet))
      if (!entry.is_symlink()) return entry.path();
    return "no run";
  }
  std::string log(int round, int rank, const std::string& name = "stdout.log") const {
    return contents_of(run() / ("round_" + std::to_string(round)) / ("rank_" + std::to_string(rank)) / name);
  }

  ScratchDirectory scratch_;
};

TEST_F(DdprunLogs, RedirectedOutputIsInFilesOnlyAndTheSummaryQuotesThem) {
  Job job(shell(2, "echo out $RANK; echo oh $RANK >&2; [ $RANK = 0 ] || exit 3; " + kStay, {log_dir(), "-r", "3"}));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_EQ(job.out(), "");
  EXPECT_EQ(log(0, 1), "out 1\n");
  EXPECT_EQ(log(0, 1, "stderr.log"), "oh 1\n");
  EXPECT_THAT(job.err(), HasSubstr("  | oh 1\n"));
}

TEST_F(DdprunLogs, TeedOutputIsInBothAndNoRestartTouchesIt) {
  Job job(shell(2,
                "echo round $TORCHELASTIC_RESTART_COUNT rank $RANK; "
                "[ $RANK$TORCHELASTIC_RESTART_COUNT != 10 ] || exit 1; "
                "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || " +
                    kStay,
                {log_dir(), "--tee=3", "--max-restarts=1"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(log(0, 1), "round 0 rank 1\n");
  for (const int rank : {0, 1}) {
    const auto line = "round 1 rank " + std::to_string(rank) + "\n";
    EXPECT_EQ(log(1, rank), line);
    EXPECT_THAT(job.out(), HasSubstr("[default" + std::to_string(rank) + "]:" + line));
  }
}

TEST_F(DdprunLogs, LinesOf64WorkersAreCompleteInEveryFileAndOnTheConsole) {
  Job job(shell(64, "seq -f \"$RANK.%g\" 3000", {log_dir(), "--tee=1"}));
  EXPECT_EQ(job.wait(), 0);
  std::string got[64];
  std::istringstream lines(job.out());
  for (std::string line; std::getline(lines, line);) {
    const auto rank = std::stoi(line.substr(8));
    const auto text = line.substr(line.find(':') + 1);
    ASSERT_EQ(std::stoi(text), rank) << line;
    got[rank] += text + "\n";
  }
  for (int rank = 0; rank < 64; ++rank) {
    std::string want;
    for (int i = 1; i <= 3000; ++i) want += std::to_string(rank) + "." + std::to_string(i) + "\n";
    EXPECT_EQ(log(0, rank), want) << rank;
    EXPECT_EQ(got[rank], want) << rank;
  }
}

TEST_F(DdprunLogs, AReaderThatIsSlowLosesLinesOnTheConsoleOnly) {
  Job job(shell(2, "seq 2000000; echo end >&2; " + kStay, {log_dir(), "-r", "2", "--tee=1"}));
  const auto complete = [&] { return log(0, 0, "stderr.log") + log(0, 1, "stderr.log") == "end\nend\n"; };
  EXPECT_TRUE(becomes_true(complete));  // though nobody has read a byte
  job.kill(SIGTERM);
  EXPECT_EQ(job.wait(), 143);
  for (const int rank : {0, 1}) {
    const auto text = log(0, rank);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2'000'000);
    EXPECT_EQ(text.substr(text.size() - 8), "2000000\n");
  }
  EXPECT_THAT(job.out(), HasSubstr("ddprun: dropped "));
}

TEST_F(DdprunLogs, WithoutAPlaceTheyAreInAFolderOfTheUsersAlone) {
  const auto parent = "ddprun_" + std::to_string(::geteuid());
  Job job(shell(1, "echo hello", {"-t", "1"}), {{"TMPDIR=" + scratch_.path().string()}});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(contents_of(run(parent) / "round_0/rank_0/stdout.log"), "hello\n");
  EXPECT_THAT(job.err(), HasSubstr("ddprun: log files are in " + run(parent).string() + "\n"));
  EXPECT_EQ(fs::status(scratch_.path() / parent).permissions(), fs::perms::owner_all);
}

TEST_F(DdprunLogs, DevNullMeansNoFilesNotEvenForErrors) {
  Job job(shell(1, "echo \"<$TORCHELASTIC_ERROR_FILE>\"", {"--log-dir=/dev/null", "--tee=3"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(job.out(), "[default0]:<>\n");
}

TEST_F(DdprunLogs, AFolderThatCannotBeIsAnErrorInThreeParts) {
  std::ofstream(scratch_.path() / "logs") << "a file";
  Job job(shell(1, "true", {log_dir()}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("error: the folder for log files can't be made: Not a directory\nwhere: " +
                                   (scratch_.path() / "logs").string() + "\ntry:   "));
}

// A file system of 64 KiB, in a mount namespace of ddprun's own.
TEST_F(DdprunLogs, AFullDiskIsAnErrorAtTheStartAndNoneOfTheJobsLater) {
  const auto logs = scratch_.path() / "logs";
  fs::create_directory(logs);
  const auto on_small_disk = [&](const std::string& script) {
    return shell(1, "exec unshare -rm sh -c 'mount -t tmpfs -o size=64k tmpfs " + logs.string() + " && " + script + "'",
                 {});
  };
  const auto ddprun = "exec " + built("ddprun") + " --tee=1 " + log_dir() + " ";
  {
    Job job(on_small_disk("echo mounted"));
    if (job.wait() != 0) GTEST_SKIP() << "no file system can be mounted here: " << job.err();
  }
  {
    Job job(on_small_disk("head -c 100k /dev/zero > " + (logs / "ballast").string() + "; " + ddprun + "true"));
    EXPECT_EQ(job.wait(), 2) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("error: log files can't be written: No space left on device"));
  }
  {
    Job job(on_small_disk(ddprun + "seq 100000"));
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_THAT(job.out(), HasSubstr("[default0]:100000\n"));
    EXPECT_THAT(job.err(), HasSubstr("can't be written: No space left on device"));
  }
}

TEST_F(DdprunLogs, AFullDiskExplainsWhyTheLogOfAFailedWorkerIsEmpty) {
  const auto logs = scratch_.path() / "logs";
  fs::create_directory(logs);
  const auto mount = "mount -t tmpfs -o size=256k tmpfs " + logs.string() + " && ";
  const auto in_namespace = [&](const std::string& script) {
    return shell(1, "exec unshare -rm sh -c '" + mount + script + "'", {});
  };
  {
    Job job(in_namespace("echo mounted"));
    if (job.wait() != 0) GTEST_SKIP() << "no file system can be mounted here: " << job.err();
  }
  Job job(in_namespace("exec " + built("ddprun") + " --redirects=3 " + log_dir() + " sh -c \"head -c 1M /dev/zero > " +
                       (logs / "ballast").string() + "; echo the reason >&2; exit 3\""));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), HasSubstr("/stderr.log on " + base::host_name() + " (No space left on device)\n"));
  EXPECT_THAT(job.err(), HasSubstr("try:   free some space on the disk of its log"));
  EXPECT_THAT(job.err(), Not(HasSubstr("wrote nothing to stderr: run `sh`")));
  const auto error = job.err().find("error: rank 0 ended with exit code 3");
  EXPECT_LT(job.err().find("ddprun: the report was not written: No space left on device\n"), error) << job.err();
  EXPECT_LT(job.err().find("ddprun: its own log was not written: No space left on device\n"), error) << job.err();
}

TEST_F(DdprunLogs, TheFolderOfAJobBeginsWithItsTimeAndLatestLeadsToTheNewest) {
  for (const std::string id : {"b", "a"}) {
    Job job(shell(1, "echo job " + id, {log_dir(), "-r", "1", "--rdzv-id=" + id}));
    EXPECT_EQ(job.wait(), 0) << job.err();
    const auto latest = fs::read_symlink(scratch_.path() / "logs/latest");
    EXPECT_THAT(latest.string(), MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+-[0-9]+-[0-9]+_[ab]"));
    EXPECT_EQ(job.err(), "ddprun: log files are in " + (scratch_.path() / "logs" / latest).string() + "\n");
    EXPECT_EQ(contents_of(scratch_.path() / "logs/latest/round_0/rank_0/stdout.log"), "job " + id + "\n");
  }
}

TEST_F(DdprunLogs, TheErrorIsTheLastOnTheConsoleAfterAReportOfTenLinesAtMost) {
  Job job(shell(1, "echo oh $TORCHELASTIC_RESTART_COUNT >&2; " + kCommitAndDie,
                {log_dir(), "--tee=2", "--max-restarts=39"}));
  EXPECT_EQ(job.wait(), 137);
  const auto& err = job.err();
  const auto report = err.find("ddprun: 40 rounds in "), folder = err.find("ddprun: log files are in "),
             error = err.find("error: rank 0 was killed by SIGKILL");
  ASSERT_NE(report, std::string::npos) << err;
  ASSERT_NE(error, std::string::npos) << err;
  EXPECT_LT(err.find("oh 39"), report) << err;  // what the worker printed, before it is quoted
  EXPECT_LT(report, folder);
  EXPECT_LT(folder, error);
  EXPECT_LE(std::count(err.begin() + static_cast<std::ptrdiff_t>(report),
                       err.begin() + static_cast<std::ptrdiff_t>(folder), '\n'),
            10);
  EXPECT_THAT(err.substr(err.rfind('\n', err.size() - 2) + 1), StartsWith("try:   "));
  const auto all = nlohmann::json::parse(contents_of(run() / "report.json"));
  ASSERT_EQ(all.at("rounds").size(), 40u) << "more than membership tells of at the end";
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(all.at("rounds")[i].at("round"), i);
  for (const auto& round : all.at("rounds")) EXPECT_THAT(round.at("why"), HasSubstr("rank 0 was killed by SIGKILL"));
  const auto& cause = all.at("rounds").back().at("cause");
  EXPECT_EQ(cause.at("rank"), 0);
  EXPECT_EQ(cause.at("host"), base::host_name());
  EXPECT_EQ(cause.at("signal"), "SIGKILL");
  EXPECT_EQ(contents_of(cause.at("stderr_file").get<std::string>()), "oh 39\n");
  EXPECT_EQ(cause.at("stderr_tail"), nlohmann::json({"oh 39"}));
}

TEST_F(DdprunLogs, ATerminalStaysOne) {
  Job job(shell(2, "[ -t 1 ] && printf '\\r50%%' && echo", {log_dir(), "--tee=3"}), {{}, true});
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(log(0, 1), "\r50%\n");
  EXPECT_THAT(job.out(), HasSubstr("[default1]:50%"));
}

TEST_F(DdprunLogs, EqualLinesAreShownOnce) {
  Job job(shell(8, "echo hello; echo my $RANK >&2", {"--merge-equal-lines"}));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.out(), HasSubstr("hello\n"));
  EXPECT_THAT(job.err(), HasSubstr("[3] my 3\n"));
}

TEST_F(DdprunLogs, HaveDdprunsOwnEventsWhereTheJobEndedBadly) {
  Job job(shell(2, "[ $RANK = 0 ] || exit 3; " + kStay, {log_dir()}));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), Not(HasSubstr("Z debug ")));
  const auto events = contents_of(run() / ("ddprun_" + base::host_name() + ".log"));
  EXPECT_THAT(events, HasSubstr("Z debug worker_started "));
  EXPECT_THAT(events, HasSubstr(" local_rank=1 how=\"ended with exit code 3\""));
  EXPECT_THAT(events, HasSubstr(" phase=finished "));
  EXPECT_THAT(events, HasSubstr("Z info finish job=" + run().filename().string().substr(20) + " part=node node="));
}

TEST_F(DdprunLogs, SayIfDdprunsOwnEventsCouldNotBeWritten) {
  const auto log = scratch_.path() / "logs/latest" / ("ddprun_" + base::host_name() + ".log");
  Job job(shell(1, "mkdir " + log.string() + "; exit 3", {log_dir()}));
  EXPECT_EQ(job.wait(), 3);
  EXPECT_THAT(job.err(), HasSubstr("ddprun: its own log was not written: a log file can't be opened: Is a directory"));
}

TEST_F(DdprunLogs, HaveNoEventsWhereItEndedWell) {
  Job job(shell(1, "echo out", {log_dir(), "-r", "1"}));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(log(0, 0), "out\n");
  EXPECT_FALSE(fs::exists(run() / ("ddprun_" + base::host_name() + ".log")));
}

TEST_F(DdprunLogs, EventsAreShownFromTheLevelThatIsWanted) {
  for (const std::string level : {"debug", "info"}) {
    SCOPED_TRACE(level);
    Job::Options options;
    options.environment = {"DDPRUN_LOG_LEVEL=" + level};
    Job job(shell(1, "echo out"), options);
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_EQ(job.out(), "out\n");
    EXPECT_THAT(job.err(), HasSubstr("Z info spawn job="));
    EXPECT_EQ(job.err().find("Z debug ") != std::string::npos, level == "debug") << job.err();
  }
  Job job(shell(1, "echo out", {"--log-level=loud"}));
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("--log-level takes debug, info, warning, error or off, not 'loud'"));
}

}  // namespace
}  // namespace ddp::test
