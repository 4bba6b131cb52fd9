// What is left of a failure: the files of the flight recorder; and of a run: its trace.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;
namespace fs = std::filesystem;

class Diagnostics : public ::testing::Test {
 protected:
  Diagnostics() { ::setenv("DDP_FLIGHT_RECORDER", (folder() / "trace_").c_str(), 1); }
  ~Diagnostics() override { ::unsetenv("DDP_FLIGHT_RECORDER"); }

  const fs::path& folder() const { return scratch_.path(); }
  fs::path json_of(int rank) const { return folder() / ("trace." + std::to_string(rank) + ".json"); }
  std::string look(int rank) const { return "\nlook:  " + json_of(rank).string(); }

  static json read(const fs::path& path) {
    std::ifstream file(path);
    return json::parse(file);
  }

  test::ScratchDirectory scratch_;
};

TEST_F(Diagnostics, ATimeoutIsWrittenByAllAndTheLateRankWasNotInIt) {
  run_ranks(3, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(7);
    group.all_reduce(values);
    const auto call = [&] { group.barrier({.timeout = milliseconds(2'000)}); };
    if (rank < 2) {
      const auto error = thrown_by<TimeoutError>(call);
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(), EndsWith(look(rank)));
      const auto again = thrown_by<AbortedError>(call);
      ASSERT_TRUE(again);
      EXPECT_THAT(again->what(), Not(HasSubstr("look:")));
      return;
    }
    wait_until([&] { return fs::exists(folder() / "trace_0") && fs::exists(folder() / "trace_1"); });
    const auto error = thrown_by<RankFailure>(call);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), EndsWith(look(2)));
  });
  for (int rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const json dump = read(json_of(rank));
    EXPECT_EQ(dump["rank"], rank);
    EXPECT_EQ(dump["pg_config"]["cpu:group_0"]["ranks"], "[0, 1, 2]");
    EXPECT_THAT(dump["libddp"]["reason"].get<std::string>(), HasSubstr(rank < 2 ? "rank 2 did not come" : "gave up"));
    const json& entries = dump["entries"];
    ASSERT_EQ(entries.size(), rank < 2 ? 2U : 1U);
    EXPECT_EQ(entries[0]["operation"], "all_reduce");
    EXPECT_EQ(entries[0]["outcome"], "completed");
    EXPECT_EQ(entries[0]["bytes_in"], 28);
    EXPECT_EQ(dump["refused"].size(), rank < 2 ? 0U : 1U);
    const json& last = rank < 2 ? entries[1] : dump["refused"][0];
    EXPECT_EQ(last["operation"], "barrier");
    EXPECT_EQ(last["collective_seq_id"], 2);
    EXPECT_EQ(last["outcome"], rank < 2 ? "failed" : "refused");
    EXPECT_EQ(last["timeout_ms"], 2000);
  }
}

TEST_F(Diagnostics, AMismatchIsWrittenByAllWithWhatEachCalled) {
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(4);
    const auto error = thrown_by<MismatchError>([&] { rank == 0 ? group.barrier() : group.all_reduce(values); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), EndsWith(look(rank)));
  });
  for (int rank = 0; rank < 2; ++rank) {
    const json dump = read(json_of(rank));
    ASSERT_EQ(dump["entries"].size(), 1U);
    EXPECT_EQ(dump["entries"][0]["operation"], rank == 0 ? "barrier" : "all_reduce");
    EXPECT_EQ(dump["entries"][0]["outcome"], "failed");
  }
}

TEST_F(Diagnostics, TheDeathOfARankIsWrittenByTheOthers) {
  Shared<std::atomic<int>> calls;
  RankProcesses ranks(3, [&](int rank) {
    auto group = init_process_group();
    std::vector<float> values(1000);
    const auto error = thrown_by<RankFailure>([&] {
      for (;;) {
        group.all_reduce_async(values).wait();
        if (rank == 1) ++*calls;
      }
    });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), EndsWith(look(rank)));
  });
  wait_until([&] { return calls->load() > 10; });
  ranks.kill(1);
  ranks.expect_killed(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
  EXPECT_FALSE(fs::exists(json_of(1)));
  for (const int rank : {0, 2}) {
    const json dump = read(json_of(rank));
    EXPECT_EQ(dump["entries"].back()["outcome"], "failed");
    EXPECT_THAT(dump["refused"], IsEmpty());
  }
}

TEST_F(Diagnostics, AnAbortIsNoFailure) {
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    group.barrier();
    if (rank == 0) {
      group.abort("enough");
      thrown_by<AbortedError>([&] { group.barrier(); });
    } else {
      thrown_by<RankFailure>([&] { group.barrier(); });
    }
  });
  EXPECT_TRUE(fs::is_empty(folder()));
}

TEST_F(Diagnostics, OnlyTheFirstFailureOfAGroupIsWrittenAndEachGroupsOwn) {
  run_ranks(2, [&](int rank) {
    auto group = init_process_group();
    for (int i = 0; i < 2; ++i) {
      auto other = init_process_group();
      thrown_by<MismatchError>([&] { rank == 0 ? other.barrier() : void(other.allocate(1)); });
      EXPECT_TRUE(fs::remove(json_of(rank)));
      thrown_by<AbortedError>([&] { other.barrier(); });
      EXPECT_FALSE(fs::exists(json_of(rank)));
    }
    group.barrier();
    thrown_by<MismatchError>([&] { rank == 0 ? group.barrier() : void(group.allocate(1)); });
    const json dump = read(json_of(rank));
    EXPECT_EQ(dump["entries"].size(), 4U);  // those of the other two, too
    EXPECT_EQ(dump["pg_config"].size(), 3U);
  });
}

TEST_F(Diagnostics, DdprunKeepsThemBesideItsLogs) {
  ::unsetenv("DDP_FLIGHT_RECORDER");
  test::Job::Options options;
  options.environment = {"DDP_LOG_LEVEL=info"};
  test::Job job({"--standalone", "--nproc-per-node=3", "--rdzv-id=late", "--log-dir=" + folder().string(),
                 test::built("late_worker")},
                options);
  ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
  const fs::path round = folder() / fs::read_symlink(folder() / "latest") / "round_0";
  for (int rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    const fs::path path = round / ("flight_recorder." + std::to_string(rank) + ".json");
    EXPECT_EQ(read(path)["rank"], rank);
    EXPECT_TRUE(fs::exists(round / ("flight_recorder_" + std::to_string(rank))));
    EXPECT_THAT(job.out(), HasSubstr("look:  " + path.string()));
    const auto number = std::to_string(rank);
    EXPECT_THAT(job.err(), HasSubstr("Z info process_group_made rank=" + number + " pid="));
    const auto log = test::contents_of(round / ("flight_recorder." + number + ".events.log"));
    EXPECT_THAT(log, HasSubstr("Z info process_group_made rank=" + number + " "));
    EXPECT_THAT(log, HasSubstr("Z error group_failed rank=" + number + " pid="));
  }
}

TEST_F(Diagnostics, AWrongLogLevelIsSaidOnce) {
  ::unsetenv("DDP_FLIGHT_RECORDER");
  test::Job::Options options;
  options.environment = {"DDP_LOG_LEVEL=loud"};
  test::Job job({"--standalone", "--nproc-per-node=3", "--log-dir=" + folder().string(), test::built("late_worker")},
                options);
  ASSERT_EQ(job.wait(), 0) << job.out() << job.err();
  EXPECT_EQ(test::occurrences(job.err(), "DDP_LOG_LEVEL takes debug, info, warning, error or off, not 'loud'"), 3)
      << "by each rank";
}

TEST_F(Diagnostics, TheTracesOfRanksCanBePutTogether) {
  ::setenv("DDP_TRACE", (folder() / "timeline_").c_str(), 1);
  run_ranks(2, [](int) {
    auto group = init_process_group();
    std::vector<float> values(1000);
    const TraceSpan span("step");
    group.all_reduce_async(values).wait();
  });
  ::unsetenv("DDP_TRACE");
  const json first = read(folder() / "timeline_0.json"), second = read(folder() / "timeline_1.json");
  EXPECT_EQ(first["baseTimeNanoseconds"], second["baseTimeNanoseconds"]);
  std::set<int> processes;
  for (const json* file : {&first, &second}) {
    std::vector<std::string> names;
    for (const json& event : (*file)["traceEvents"]) {
      processes.insert(event["pid"].get<int>());
      if (event["ph"] == "X") names.push_back(event["name"]);
    }
    EXPECT_THAT(names, ::testing::UnorderedElementsAre("all_reduce", "step"));
  }
  EXPECT_THAT(processes, ::testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace ddp
