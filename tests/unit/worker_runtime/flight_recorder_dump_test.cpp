#include "worker_runtime/flight_recorder/dump.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "tests/unit/worker_runtime/scratch_directory.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"
#include "worker_runtime/flight_recorder/group_log.hpp"
#include "worker_runtime/flight_recorder/json_writer.hpp"
#include "worker_runtime/flight_recorder/pickle_writer.hpp"
#include "tests/text.hpp"

namespace ddp::flight_recorder {
namespace {

using ddp::test::contents_of;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
namespace fs = std::filesystem;

// The same of either writer.
template <class Writer>
std::string a_bit_of_everything() {
  Writer writer;
  writer.begin_dict();
  writer.key("numbers");
  writer.begin_list();
  for (const std::int64_t value : {0L, 255L, 256L, -1L, 2147483647L, 2147483648L, -2147483649L, 1700000000000000000L})
    writer.integer(value);
  writer.number(1.5);
  writer.number(2);
  writer.end_list();
  writer.key("texts");
  writer.begin_list();
  for (const char* text : {"", "plain", "a \"quote\" \\ and\na line", "h\xc3\xa9", "broken \xff"}) writer.text(text);
  writer.end_list();
  writer.key("others");
  writer.begin_dict();
  writer.key("t");
  writer.boolean(true);
  writer.key("f");
  writer.boolean(false);
  writer.key("n");
  writer.none();
  writer.key("d");
  writer.begin_dict();
  writer.end_dict();
  writer.end_dict();
  writer.end_dict();
  return writer.finish();
}

TEST(JsonWriter, WritesWhatAReaderReads) {
  EXPECT_EQ(
      json::parse(a_bit_of_everything<JsonWriter>()),
      json::parse(R"({"numbers": [0, 255, 256, -1, 2147483647, 2147483648, -2147483649, 1700000000000000000, 1.5, 2.0],
                            "texts": ["", "plain", "a \"quote\" \\ and\na line", "h\u00e9", "broken \ufffd"],
                            "others": {"t": true, "f": false, "n": null, "d": {}}})"));
}

TEST(JsonWriter, KeepsFloatsFloats) {
  JsonWriter writer;
  writer.number(2);
  EXPECT_EQ(writer.finish(), "2.0\n");
}

// As `python3 -m pickletools` takes it apart; the interop test lets Python read such a file.
TEST(PickleWriter, WritesTheOpcodesOfProtocol2) {
  using namespace std::string_literals;
  EXPECT_EQ(a_bit_of_everything<PickleWriter>(),
            "\x80\x02}("
            "X\x07\0\0\0numbers"
            "](K\0K\xffJ\0\x01\0\0J\xff\xff\xff\xffJ\xff\xff\xff\x7f\x8a\x08\0\0\0\x80\0\0\0\0"
            "\x8a\x08\xff\xff\xff\x7f\xff\xff\xff\xff\x8a\x08\x00\x00\x2a\x36\xfe\x9c\x97\x17"
            "G\x3f\xf8\0\0\0\0\0\0G\x40\0\0\0\0\0\0\0e"
            "X\x05\0\0\0texts"
            "](X\0\0\0\0X\x05\0\0\0plainX\x16\0\0\0a \"quote\" \\ and\na lineX\x03\0\0\0h\xc3\xa9"
            "X\x0a\0\0\0broken \xef\xbf\xbd"
            "e"
            "X\x06\0\0\0others"
            "}(X\x01\0\0\0t\x88X\x01\0\0\0f\x89X\x01\0\0\0nNX\x01\0\0\0d}(uuu."s);
}

constexpr Operation kAllReduce{
    .name = "all_reduce", .reduce_op = "sum", .input_count = 4, .output_count = 4, .element_bytes = 4};

GroupFacts facts_of_rank(int rank) {
  return {.backend = "nccl",
          .name = "group_0",
          .description = "all ranks",
          .library = "2.28.9",
          .round = {.term = 7, .number = 2},
          .ranks = {4, 6},
          .rank = rank};
}

json dumped(Recorder& recorder, const DumpFacts& facts = {}) {
  return json::parse(to_json(recorder.snapshot(), facts));
}

TEST(Dump, HasTheFormThatPytorchsAnalyserReads) {
  Recorder recorder;
  const GroupId group = recorder.open(facts_of_rank(1));
  Operation operation = kAllReduce;
  operation.timeout = std::chrono::seconds(3);
  const Ticket ticket = recorder.record(group, operation);
  const TimePoint start = now();
  recorder.start(ticket, start);
  recorder.complete(ticket, start + std::chrono::microseconds(1500));
  recorder.record(group, Operation{.name = "barrier"});

  const json dump = dumped(recorder, {.rank = 6,
                                      .round = {.term = 7, .number = 2},
                                      .pid = 12,
                                      .host = "node1",
                                      .reason = "rank 4 \xff ended",
                                      .at = start});
  EXPECT_EQ(dump["version"], "2.10");
  EXPECT_EQ(dump["rank"], 6);
  EXPECT_EQ(dump["comm_lib_version"], "2.28.9");
  EXPECT_EQ(dump["libddp"]["round"], "7-0000000000000000-2");
  EXPECT_EQ(dump["libddp"]["reason"], "rank 4 \ufffd ended");
  EXPECT_EQ(dump["pg_config"],
            json::parse(R"({"nccl:group_0": {"name": "nccl:group_0", "desc": "all ranks", "ranks": "[4, 6]"}})"));
  EXPECT_EQ(dump["pg_status"], json::parse(R"({"0": {"last_enqueued_collective": 2, "last_started_collective": 1,
                                                      "last_completed_collective": 1}})"));
  ASSERT_EQ(dump["entries"].size(), 2U);
  json entry = dump["entries"][0];
  EXPECT_LE(entry["time_created_ns"], start.time_since_epoch().count());
  entry.erase("time_created_ns");
  const auto ns = std::to_string(start.time_since_epoch().count());
  const auto ended_ns = std::to_string(start.time_since_epoch().count() + 1'500'000);
  EXPECT_EQ(
      entry,
      json::parse(R"({"record_id": 0, "pg_id": 0, "process_group": ["nccl:group_0", "all ranks"],
      "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce", "duration_ms": 1.5,
      "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
      "state": "completed", "time_discovered_started_ns": )" +
                  ns + R"(, "time_discovered_completed_ns": )" + ended_ns +
                  R"(, "retired": true, "timeout_ms": 3000, "is_p2p": false, "frames": [],
      "operation": "all_reduce", "outcome": "completed", "time_ended_ns": )" +
                  ended_ns + R"(, "bytes_in": 16, "bytes_out": 16, "root": null, "peer": null, "reduce_op": "sum"})"));
  const json& barrier = dump["entries"][1];
  EXPECT_EQ(barrier["input_sizes"], json::array());
  EXPECT_EQ(barrier["state"], "scheduled");
  EXPECT_EQ(barrier["time_discovered_started_ns"], nullptr);
  EXPECT_FALSE(barrier.contains("duration_ms"));
}

TEST(Dump, KnowsPytorchsThreeStatesAndOurs) {
  Recorder recorder;
  const GroupId group = recorder.open(facts_of_rank(0));
  std::vector<Ticket> tickets;
  for (int i = 0; i < 5; ++i) tickets.push_back(recorder.record(group, kAllReduce));
  recorder.start(tickets[1]);
  recorder.start(tickets[2]);
  recorder.fail(tickets[2]);
  recorder.fail(tickets[3]);
  recorder.refuse(tickets[4]);
  std::vector<std::string> states, outcomes;
  const json dump = dumped(recorder);
  for (const json& entry : dump["entries"]) {
    states.push_back(entry["state"]);
    outcomes.push_back(entry["outcome"]);
  }
  EXPECT_THAT(states, ElementsAre("scheduled", "started", "started", "scheduled"));
  EXPECT_THAT(outcomes, ElementsAre("scheduled", "started", "failed", "failed"));
  ASSERT_EQ(dump["refused"].size(), 1U);
  EXPECT_EQ(dump["refused"][0]["collective_seq_id"], 5);
}

TEST(Dump, SpeaksOfOperationsAsPytorchDoes) {
  Recorder recorder;
  const GroupId group = recorder.open(facts_of_rank(1));
  const std::vector<Operation> operations{
      {.name = "send", .input_count = 2, .element_bytes = 4, .peer = 0},
      {.name = "receive", .output_count = 2, .element_bytes = 4, .peer = 0},
      {.name = "reduce",
       .reduce_op = "sum",
       .type = DataType::float64,
       .input_count = 3,
       .element_bytes = 8,
       .root = 0},
      {.name = "allocate", .input_count = 100, .output_count = 100, .element_bytes = 1},
      {.name = "gather", .type = DataType::int64, .input_count = 3, .element_bytes = 8, .root = 0},
      {.name = "all_to_all_v", .input_count = 3, .output_count = 5, .element_bytes = 4},
      {.name = "barrier"},
  };
  for (const Operation& operation : operations) recorder.record(group, operation);
  const json entries = dumped(recorder)["entries"];
  std::vector<std::string> names;
  for (const json& entry : entries) names.push_back(entry["profiling_name"]);
  EXPECT_THAT(names, ElementsAre("nccl:send 1->0", "nccl:recv 1<-0", "nccl:reduce", "nccl:new_window", "nccl:gather",
                                 "nccl:all_to_all", "nccl:all_reduce_barrier"));
  EXPECT_EQ(entries[0]["is_p2p"], true);
  EXPECT_EQ(entries[0]["output_sizes"], json::parse("[[2]]"));
  EXPECT_EQ(entries[1]["input_sizes"], json::parse("[[2]]"));
  EXPECT_EQ(entries[2]["output_sizes"], json::parse("[[3]]"));
  EXPECT_EQ(entries[2]["input_dtypes"], json::parse(R"(["Double"])"));
  EXPECT_EQ(entries[2]["root"], 0);
  EXPECT_EQ(entries[2]["bytes_out"], 0);
  EXPECT_EQ(entries[3]["input_dtypes"], json::parse(R"(["Byte"])"));
  EXPECT_EQ(entries[4]["output_sizes"], json::parse("[[0]]"));
}

TEST(Dump, NamesTypesAsPytorchDoes) {
  Recorder recorder;
  const GroupId group = recorder.open(facts_of_rank(0));
  const std::pair<DataType, std::string> names[] = {{DataType::uint8, "Byte"},
                                                    {DataType::int8, "Char"},
                                                    {DataType::boolean, "Bool"},
                                                    {DataType::float8_e4m3fn, "Float8_e4m3fn"},
                                                    {DataType::float8_e5m2, "Float8_e5m2"}};
  for (const auto& [type, name] : names) {
    recorder.record(group, {.name = "broadcast", .type = type, .input_count = 1, .element_bytes = 1});
    EXPECT_EQ(dumped(recorder)["entries"].back()["input_dtypes"], json::array({name}));
  }
}

TEST(Dump, HasOnlyItsRoundAndCountsRecordsFromThere) {
  Recorder recorder;
  recorder.record(recorder.open(facts_of_rank(0)), kAllReduce);
  recorder.begin_round("second");
  recorder.record(recorder.open(facts_of_rank(0)), kAllReduce);
  const Snapshot snapshot = of_round(recorder.snapshot(), 1);
  const json dump = json::parse(to_json(snapshot, {}));
  ASSERT_EQ(dump["entries"].size(), 1U);
  EXPECT_EQ(dump["entries"][0]["record_id"], 0);
  EXPECT_EQ(dump["pg_config"].size(), 1U);
}

struct Where {
  const char* what;
  Place place;
  std::string pickle;
  std::string json;
};

TEST(FailureFiles, GoWhereTheEnvironmentSays) {
  const RoundId round{.term = 5, .number = 3};
  const std::string own = "/tmp/ddp_flight_77/";
  const Where cases[] = {
      {"a prefix", {.prefix = "/d/trace_"}, "/d/trace_2", "/d/trace.2.json"},
      {"without a separator", {.prefix = "/d/trace"}, "/d/trace_2", "/d/trace.2.json"},
      {"with several", {.prefix = "/d/rank-_"}, "/d/rank-_2", "/d/rank.2.json"},
      {"a folder", {.prefix = "/d/"}, "/d/flight_recorder_2", "/d/flight_recorder.2.json"},
      {"here", {.prefix = "trace_"}, "./trace_2", "./trace.2.json"},
      {"the prefix goes first", {.prefix = "/d/a_", .round_directory = "/e"}, "/d/a_2", "/d/a.2.json"},
      {"ddprun's",
       {.round_directory = "/logs/round_3"},
       "/logs/round_3/flight_recorder_2",
       "/logs/round_3/flight_recorder.2.json"},
      {"an empty prefix is none",
       {.prefix = "", .round_directory = "/e"},
       "/e/flight_recorder_2",
       "/e/flight_recorder.2.json"},
      {"none at all", {.prefix = "/dev/null", .round_directory = "/e"}, "", ""},
      {"none of ddprun's", {.round_directory = "/dev/null"}, "", ""},
      {"nothing said",
       {.run_id = "a/b"},
       own + "a_b/round_5-0000000000000000-3/flight_recorder_2",
       own + "a_b/round_5-0000000000000000-3/flight_recorder.2.json"},
      {"a run id that is no name",
       {.run_id = ".."},
       own + "_/round_5-0000000000000000-3/flight_recorder_2",
       own + "_/round_5-0000000000000000-3/flight_recorder.2.json"},
  };
  for (const Where& c : cases) {
    SCOPED_TRACE(c.what);
    const Files files = files_of(c.place, round, 2, 77);
    EXPECT_EQ(files.pickle, c.pickle);
    EXPECT_EQ(files.json, c.json);
    EXPECT_EQ(files.log, files.json.empty() ? "" : fs::path(c.json).replace_extension(".events.log").string());
    // torchfrtrace takes every file whose name contains the prefix for a pickle.
    const std::string prefix =
        fs::path(files.pickle.substr(0, files.pickle.size() > 0 ? files.pickle.size() - 1 : 0)).filename();
    if (!files.pickle.empty()) {
      EXPECT_THAT(fs::path(files.json).filename().string(), Not(HasSubstr(prefix)));
    }
  }
}

TEST(FailureFiles, ReadTheirPlaceFromTheEnvironment) {
  const Place place = place_from([](const char* name) -> std::optional<std::string> {
    const std::string asked = name;
    if (asked == "DDP_FLIGHT_RECORDER") return "/d/p_";
    if (asked == "DDPRUN_ROUND_DIRECTORY") return "/logs";
    if (asked == "TMPDIR") return "/scratch";
    if (asked == "TORCHELASTIC_RUN_ID") return "bert";
    return std::nullopt;
  });
  EXPECT_EQ(place.prefix, "/d/p_");
  EXPECT_EQ(place.round_directory, "/logs");
  EXPECT_EQ(place.temporary_directory, "/scratch");
  EXPECT_EQ(place.run_id, "bert");
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(FailureFiles, AreThereWholeInFoldersThatAreMade) {
  const test::ScratchDirectory scratch;
  const Files files = files_of({.prefix = scratch.path() / "some/new/trace_"}, {}, 1, 0);
  write_files(files, "first", "one", "");
  write_files(files, "json", "pickle", "");
  EXPECT_EQ(contents_of(scratch.path() / "some/new/trace_1"), "pickle");
  EXPECT_EQ(contents_of(scratch.path() / "some/new/trace.1.json"), "json");
  EXPECT_THAT(names_in(scratch.path() / "some/new"), ElementsAre("trace.1.json", "trace_1"));
  write_files(files, "json", "pickle", "lines");
  EXPECT_EQ(contents_of(scratch.path() / "some/new/trace.1.events.log"), "lines");
}

TEST(FailureFiles, OfTheNewestRoundsOfATermAreKept) {
  const test::ScratchDirectory scratch;
  const Place place{.temporary_directory = scratch.path(), .run_id = "bert"};
  const auto parent = fs::path(files_of(place, {5, 7, 0}, 0, ::geteuid()).directory).parent_path();
  const auto write = [&](const RoundId& round) {
    for (const int rank : {0, 1}) write_files(files_of(place, round, rank, ::geteuid()), "json", "pickle", "lines");
  };
  write({4, 7, 1});
  for (const std::uint32_t number : {1U, 2U, 3U, 8U, 9U, 10U, 11U}) write({5, 7, number});
  EXPECT_THAT(names_in(parent),
              ElementsAre("round_4-0000000000000007-1", "round_5-0000000000000007-10", "round_5-0000000000000007-11",
                          "round_5-0000000000000007-8", "round_5-0000000000000007-9"));
  for (const auto& round : fs::directory_iterator(parent)) EXPECT_EQ(names_in(round).size(), 6U);
}

TEST(FailureFiles, DoNotGoToAFolderThatOthersCanWriteTo) {
  const test::ScratchDirectory scratch;
  const Files files = files_of({.temporary_directory = scratch.path()}, {}, 0, 5);
  write_files(files, "json", "pickle", "");
  EXPECT_EQ(contents_of(files.pickle), "pickle");
  struct stat status {};
  ASSERT_EQ(::stat(files.private_part.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700U);
  ::chmod(files.private_part.c_str(), 0777);
  EXPECT_THROW(write_files(files, "json", "pickle", ""), std::system_error);

  const Files other = files_of({.temporary_directory = scratch.path()}, {}, 0, 6);
  fs::create_directory_symlink(scratch.path(), other.private_part);
  EXPECT_THROW(write_files(other, "json", "pickle", ""), std::system_error);
}

TEST(GroupLog, OfAProcessThatEndsIsThatOfItsNewestGroup) {
  const test::ScratchDirectory scratch;
  GroupLog older(facts_of_rank(0));
  GroupLog log(facts_of_rank(1));
  log.record(kAllReduce);
  set_place({.prefix = scratch.path() / "trace_"});
  EXPECT_EQ(write_process_failure("it went wrong"), "\nlook:  " + (scratch.path() / "trace.6.json").string());
  EXPECT_EQ(json::parse(contents_of(scratch.path() / "trace.6.json"))["libddp"]["reason"], "it went wrong");
}

TEST(GroupLog, WritesAFailureAndSaysWhere) {
  const test::ScratchDirectory scratch;
  Recorder recorder;
  GroupLog log(facts_of_rank(1), recorder);
  log.record(kAllReduce);
  set_place({.prefix = scratch.path() / "trace_"});
  EXPECT_EQ(log.write_failure("it went wrong"), "\nlook:  " + (scratch.path() / "trace.6.json").string());
  const json dump = json::parse(contents_of(scratch.path() / "trace.6.json"));
  EXPECT_EQ(dump["rank"], 6);
  EXPECT_EQ(dump["libddp"]["pid"], ::getpid());
  EXPECT_EQ(dump["libddp"]["reason"], "it went wrong");
  EXPECT_THAT(contents_of(scratch.path() / "trace_6"), StartsWith("\x80\x02"));

  set_place({.prefix = "/dev/null"});
  EXPECT_EQ(log.write_failure("it went wrong"), "");
  std::ofstream(scratch.path() / "file") << "";
  set_place({.prefix = scratch.path() / "file/trace_"});
  EXPECT_THAT(log.write_failure("it went wrong"),
              StartsWith("\nlook:  nothing: the flight recorder's file is missing ("));
}

}  // namespace
}  // namespace ddp::flight_recorder
