#include "ddp/trace.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"
#include "worker_runtime/trace/timeline.hpp"

namespace ddp {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using trace::Event;
using trace::Timeline;
using trace::TimePoint;

TimePoint at(std::int64_t nanoseconds) { return TimePoint(std::chrono::nanoseconds(nanoseconds)); }

json written(const Timeline& timeline, const trace::ProcessFacts& process = {}) {
  std::string text;
  timeline.write(process, [&](std::string_view piece) { text += piece; });
  return json::parse(text);
}

// Those of the timeline proper; the others give names.
std::vector<json> spans_of(const json& file) {
  std::vector<json> spans;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "X") spans.push_back(event);
  }
  return spans;
}

std::vector<std::string> names_of(const std::vector<json>& spans) {
  std::vector<std::string> names;
  for (const json& span : spans) names.push_back(span["name"]);
  return names;
}

std::map<int, std::string> tracks_of(const json& file) {
  std::map<int, std::string> tracks;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
  }
  return tracks;
}

json file_at(const std::filesystem::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

TEST(Timeline, IsChromesTraceFormat) {
  constexpr std::int64_t kBase = 1'704'075'408'000'000'000;  // 216 periods
  Timeline timeline(10);
  const auto track = timeline.text("nccl \"group_0\"");
  timeline.add({track, timeline.text("forward"), at(kBase + 1'000), at(kBase + 3'500), {}});
  timeline.add({track, timeline.text("all_reduce"), at(kBase + 4'001), at(kBase + 5'000),
                trace::CollectiveFacts{.sequence = 7, .bytes = 64, .called = at(kBase + 3'000), .has_failed = true}});
  const json file = written(timeline, {.rank = 3, .pid = 99, .host = "node1"});
  EXPECT_EQ(file["baseTimeNanoseconds"], kBase);
  EXPECT_EQ(file["otherData"], json::parse(R"({"rank": 3, "process": 99, "host": "node1", "dropped_events": 0})"));
  const auto spans = spans_of(file);
  ASSERT_THAT(spans, SizeIs(2));
  const json tid = spans[0]["tid"];
  EXPECT_EQ(
      spans[0],
      json(
          {{"ph", "X"}, {"pid", 3}, {"tid", tid}, {"name", "forward"}, {"cat", "program"}, {"ts", 1.0}, {"dur", 2.5}}));
  EXPECT_EQ(spans[1], json({{"ph", "X"},
                            {"pid", 3},
                            {"tid", tid},
                            {"name", "all_reduce"},
                            {"cat", "collective"},
                            {"ts", 4.001},
                            {"dur", 0.999},
                            {"args", {{"sequence", 7}, {"bytes", 64}, {"waited_us", 1.001}, {"failed", true}}}}));
  EXPECT_THAT(tracks_of(file), ElementsAre(std::pair(tid.get<int>(), "nccl \"group_0\"")));
  EXPECT_EQ(file["traceEvents"][0]["name"], "process_name");
  EXPECT_EQ(file["traceEvents"][0]["args"]["name"], "rank 3 (node1)");
}

TEST(Timeline, WithoutEventsIsOneToo) { EXPECT_THAT(spans_of(written(Timeline(1))), SizeIs(0)); }

TEST(Timeline, DropsTheOldestAndSaysHowMany) {
  Timeline timeline(3);
  for (int i = 0; i < 8; ++i)
    timeline.add({timeline.text("t"), timeline.text(std::to_string(i)), at(i), at(i + 1), {}});
  const json file = written(timeline);
  EXPECT_THAT(names_of(spans_of(file)), ElementsAre("5", "6", "7"));
  EXPECT_EQ(file["otherData"]["dropped_events"], 5);
}

TEST(Timeline, BoundsItsTexts) {
  Timeline timeline(2);
  EXPECT_EQ(timeline.text(std::string(5'000, 'x')), timeline.text(std::string(Timeline::kTextBytesMax, 'x')));
  for (std::size_t i = 0; i < Timeline::kTextsMax; ++i) timeline.text(std::to_string(i));
  const auto last = timeline.text("one more");
  EXPECT_EQ(last, timeline.text("and another"));
  EXPECT_EQ(timeline.text("0"), 1U);
  timeline.add({last, last, at(0), at(1), {}});
  EXPECT_THAT(names_of(spans_of(written(timeline))), ElementsAre("..."));
}

TEST(Timeline, CountsFromABaseThatRanksShare) {
  const auto day = std::chrono::hours(24);
  const TimePoint some = at(1'763'800'000'000'000'000);
  EXPECT_EQ(trace::base_of(some), trace::base_of(some + day));
  EXPECT_LE(trace::base_of(some), some);
  EXPECT_LT(some - trace::base_of(some), 100 * day);
}

class TraceTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name = "trace.json") const { return scratch_.path() / name; }

  // How a process of its own ends that runs this.
  static int status_of(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      body();
      std::exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }

  test::ScratchDirectory scratch_;
};

TEST_F(TraceTest, HasTheSpansOfEachThread) {
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  {
    Trace trace(path());
    EXPECT_TRUE(is_tracing());
    const TraceSpan outer("outer");
    { const TraceSpan inner("inner \xff"); }
    std::thread([] { const TraceSpan other("other"); }).join();
    trace_span("stream 7", "kernel", at(1'763'800'000'000'000'000), at(1'763'800'000'000'001'000));
    { const TraceSpan last("last"); }
    trace.finish();  // `outer` has not ended
    trace.finish();
  }
  EXPECT_FALSE(is_tracing());
  const json file = file_at(path());
  const auto spans = spans_of(file);
  EXPECT_THAT(names_of(spans), ElementsAre("inner \ufffd", "other", "kernel", "last"));
  const auto tracks = tracks_of(file);
  EXPECT_THAT(tracks, SizeIs(3));
  EXPECT_EQ(spans[0]["tid"], spans[3]["tid"]);
  EXPECT_NE(spans[0]["tid"], spans[1]["tid"]);
  EXPECT_THAT(tracks.at(spans[0]["tid"]), HasSubstr(std::to_string(::gettid())));
  EXPECT_EQ(tracks.at(spans[2]["tid"]), "stream 7");
  const double first = spans[0]["ts"].get<double>() * 1000 + file["baseTimeNanoseconds"].get<double>();
  EXPECT_GE(first, static_cast<double>(std::chrono::nanoseconds(before).count()) - 1e6);
}

TEST_F(TraceTest, ASpanBelongsToTheTraceItBeganIn) {
  std::optional<TraceSpan> early;
  early.emplace("before the trace");
  Trace first(path("first.json"));
  std::optional<TraceSpan> open;
  open.emplace("of the first");
  first.finish();
  Trace second(path("second.json"));
  early.reset();
  open.reset();
  { const TraceSpan span("of the second"); }
  second.finish();
  EXPECT_THAT(spans_of(file_at(path("first.json"))), SizeIs(0));
  EXPECT_THAT(names_of(spans_of(file_at(path("second.json")))), ElementsAre("of the second"));
}

TEST_F(TraceTest, RefusesWhatCanNotBe) {
  EXPECT_THROW(Trace(path("no/such/folder/trace.json")), Error);
  EXPECT_THROW(Trace(path(), TraceOptions{0}), InvalidArgument);
  const Trace trace(path());
  EXPECT_THROW(Trace(path("other.json")), InvalidArgument);
  EXPECT_TRUE(is_tracing());
}

TEST_F(TraceTest, IsWrittenHoweverTheProgramEnds) {
  const std::pair<const char*, std::function<void()>> ends[] = {
      {"exit", [] { std::exit(3); }},
      {"an exception that nobody catches", [] { throw std::runtime_error("nobody catches it"); }},
      {"one in another thread", [] { std::thread([] { throw std::runtime_error("nor this"); }).join(); }},
      {"terminate", [] { std::terminate(); }},
  };
  for (const auto& [what, end] : ends) {
    SCOPED_TRACE(what);
    ::unlink(path().c_str());
    status_of([&, &end = end]() noexcept {  // noexcept: nothing of the test's catches it
      const Trace trace(path());
      { const TraceSpan span("all but the last"); }
      end();
    });
    EXPECT_THAT(names_of(spans_of(file_at(path()))), ElementsAre("all but the last"));
  }
}

TEST_F(TraceTest, AKilledProgramLeavesNoHalfFile) {
  EXPECT_EQ(status_of([&] {
              const Trace trace(path());
              const TraceSpan span("lost");
              ::raise(SIGKILL);
            }),
            SIGKILL);
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

TEST_F(TraceTest, AForkedChildTakesNoPartInIt) {
  Trace trace(path());
  EXPECT_EQ(status_of([&] {
              const TraceSpan span("of the child");
              trace_span("track", "of the child", at(1), at(2));
            }),
            0);
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(status_of([&] {
              Trace own(path("child.json"));
              const TraceSpan span("its own");
            }),
            0);
  { const TraceSpan span("of the parent"); }
  trace.finish();
  EXPECT_THAT(names_of(spans_of(file_at(path()))), ElementsAre("of the parent"));
  EXPECT_THAT(names_of(spans_of(file_at(path("child.json")))), SizeIs(1));
}

TEST_F(TraceTest, ThreadsMayAddAtOnce) {
  constexpr int kThreads = 4, kSpans = 500;
  Trace trace(path(), TraceOptions{1'500});
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([i] {
      for (int span = 0; span < kSpans; ++span) const TraceSpan of_thread("thread " + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  trace.finish();
  const json file = file_at(path());
  EXPECT_THAT(spans_of(file), SizeIs(1'500));
  EXPECT_EQ(file["otherData"]["dropped_events"], kThreads * kSpans - 1'500);
}

TEST_F(TraceTest, TheEnvironmentStartsOneThatHasTheCollectives) {
  ::setenv("DDP_TRACE", path("trace_").c_str(), 1);
  EXPECT_EQ(status_of([] {
              auto group = init_process_group();
              std::vector<float> values(1000);
              group.all_reduce(values);
              group.barrier();
              const TraceSpan span("the program's");
            }),
            0);
  ::unsetenv("DDP_TRACE");
  const json file = file_at(path("trace_0.json"));
  const auto spans = spans_of(file);
  EXPECT_THAT(names_of(spans), ElementsAre("all_reduce", "barrier", "the program's"));
  EXPECT_EQ(tracks_of(file).at(spans[0]["tid"]), "cpu group_0");
  EXPECT_EQ(spans[0]["args"]["bytes"], 4000);
  EXPECT_EQ(spans[1]["args"]["sequence"], 2);
}

TEST_F(TraceTest, TheProgramsOwnTakesThePlaceOfThatOfTheEnvironment) {
  ::setenv("DDP_TRACE", path("trace_").c_str(), 1);
  EXPECT_EQ(status_of([&] {
              auto group = init_process_group();
              Trace own(path());
              init_process_group().barrier();
            }),
            0);
  ::setenv("DDP_TRACE", path("no/such/folder/trace_").c_str(), 1);
  EXPECT_EQ(status_of([] { init_process_group().barrier(); }), 0);  // it is said on stderr, and the program goes on
  ::unsetenv("DDP_TRACE");
  EXPECT_FALSE(std::filesystem::exists(path("trace_0.json")));
  EXPECT_THAT(names_of(spans_of(file_at(path()))), ElementsAre("barrier"));
}

}  // namespace
}  // namespace ddp
