#include "rendezvous/wire/message_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddp/error.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef0123456789abcdef", kNonce = "00112233445566778899aabbccddeeff";

FailureReport some_failure() {
  FailureReport out{
      5,     1,     "gpu17",           41822,      "./train",          {Ending::Kind::killed, 11, true, false}, 3,
      12min, 13min, "out of \"luck\"", {"a", "b"}, "logs/x/stderr.log"};
  out.accused = {7, 0};
  out.is_own_error = out.was_ending = true;
  out.killed_for = "it did not come";
  out.job_time_error = 3ms;
  out.was_ending_for = 2s;
  out.missed_a_peer = out.runs_python = true;
  out.stderr_lost = "No space left on device";
  return out;
}

TEST(MessageJson, EveryMessageComesBackAsItWas) {
  Hello plain;
  plain.node_key = kKey;
  plain.ended_nodes = {{kNonce, {1700000000, 0xabcdef, 4}, 1, 2, kKey}, {kKey, {1, 2, 3}, 0, 1, kNonce}};
  const ToMembership up[] = {Hello{{1, 3},
                                   "bert",
                                   kKey,
                                   "gpu17",
                                   3,
                                   2,
                                   4,
                                   8,
                                   "trainer",
                                   "10.0.0.1",
                                   {"10.0.0.1", "fd00::1"},
                                   29500,
                                   7,
                                   1700000017,
                                   Held{{1700000000, 0xabcdef, 4},
                                        1,
                                        2,
                                        3,
                                        true,
                                        true,
                                        {kKey, kNonce},
                                        7,
                                        {{{90s, 2}, {0s, 1}}},
                                        1,
                                        "10.0.0.1",
                                        1700000001},
                                   3,
                                   600s,
                                   90s,
                                   5s,
                                   3s,
                                   7s,
                                   true,
                                   true,
                                   false,
                                   "42.0"},
                             plain,
                             StoreOpened{4, 29400},
                             RoundStarted{4},
                             FirstStep{4},
                             RoundFailed{4, "rank 5 was killed", {3, 7}, 1234ms, true},
                             RoundEnded{4, {some_failure(), {}}, 7, true, 3, {12, {}, 17ms}},
                             RoundEnded{4, {}, 0, false, 8, {{}, 1'000'000'000'000}},
                             RoundEnded{4, {}, 2, false, 0, {}, 10, 1234ms, {3, 7}, true},
                             StopAsked{15, true},
                             StopAsked{15, false, true},
                             StopAsked{15, false, false, true},
                             StopAsked{15, false, false, false, 60'000ms},
                             Leaving{"its guardian process ended"},
                             Leaving{"its guardian process was killed by SIGKILL", 137},
                             TimeAsked{7},
                             LinksWork{},
                             StopReady{4, 1001},
                             StopReady{4, {}}};
  for (const auto& message : up) EXPECT_EQ(to_membership_of(to_json(message)), message) << to_json(message);
  StartRound start;
  start.round = {1700000000, 0xabcdef, 4};
  start.group_rank = 1;
  start.group_world_size = 4;
  start.rank_first = 8;
  start.world_size = 16;
  start.role_rank_first = 3;
  start.role_world_size = 5;
  start.restart_count = 1;
  start.restarts_max = 2;
  start.master_address = "gpu16";
  start.master_port = 29400;
  start.why = "rank 5 was killed";
  start.successors = {{1, "10.0.0.2", 29501}, {2, "fd00::3", 29502}};
  start.host_group_rank = 0;
  start.host_node_key = kNonce;
  start.nonce = kNonce;
  start.job_started = 1700000001;
  start.spent_restarts = {{1ms, 1}};
  start.round_before = RoundTimes{3, "rank 4 was killed", 2, 8, 1ms, 2ms, 3ms, 4ms, 5ms, 6ms, 7ms};
  FinishJob left;
  left.has_left = true;
  const ToAgent down[] = {
      Welcome{1234ms, true, 2, {1, 3}},
      Elsewhere{"10.0.0.2", 29501},
      CheckLinks{{{"10.0.0.2", 29501}, {"fd00::3", 29502}}},
      Refused{"no", "yes"},
      Refused{"no", "yes", false, true},
      OpenStore{{1700000000, 1, 4}, {"10.0.0.1"}, false},
      start,
      RoundEstablished{4},
      PrepareStop{4, true},
      PrepareStop{4, false},
      StopAt{4, 1002, 15},
      StopAt{4, 1, 0},
      StopRound{4, 15, true, true, "ctrl-c", {3}, true, true},
      FinishJob{137,
                some_failure(),
                {some_failure()},
                7,
                8,
                3,
                "what",
                "try",
                RunReport{60s, 50s, 33, {{3, "why", 2, 16, 1ms, 2ms, 3ms, 4ms, 5ms, 6s, 7ms}, {}}, 8ms},
                false,
                false,
                5},
      FinishJob{},
      left,
      HostLeaves{},
      HostLeaves{"its guardian process ended", {1, 2}, 137},
      TimeTold{7, 1234ms}};
  for (const auto& message : down) EXPECT_EQ(to_agent_of(to_json(message)), message) << to_json(message);
}

TEST(MessageJson, ANewerPeerMaySayMore) {
  EXPECT_EQ(to_membership_of(R"({"type":"stop_asked","signal_number":2,"is_warning":false,"mood":"sad"})"),
            ToMembership(StopAsked{2}));
}

// Older peers write an empty text where there is none, and do not read a message without the field.
TEST(MessageJson, ReasonThatIsNotThereIsAnEmptyTextForOlderPeers) {
  const ToAgent messages[] = {StopRound{.round = 4}, StartRound{}, FinishJob{}};
  const std::vector<std::string> fields[] = {{"why"}, {"why"}, {"what", "try"}};
  for (std::size_t i = 0; i < std::size(messages); ++i) {
    auto json = nlohmann::json::parse(to_json(messages[i]));
    if (json.contains("master_port")) json["master_port"] = 29400;  // 0 is no port
    for (const auto& field : fields[i]) {
      EXPECT_EQ(json.at(field), "") << json;
      auto without = json;
      without.erase(field);
      EXPECT_EQ(to_agent_of(without.dump()), to_agent_of(json.dump())) << field;
    }
  }
  const auto stop_with = [](const std::string& why) {
    const auto text =
        R"({"type":"stop_round","round":4,"signal_number":15,"kill":false,"reseat":false,"hung_ranks":[],)"
        R"("is_left_behind":false,"why":")" +
        why + "\"}";
    return std::get<StopRound>(to_agent_of(text).value()).why;
  };
  EXPECT_EQ(to_membership_of(R"({"type":"round_failed","round":4,"what":"","hung_ranks":[],"job_time_ms":0})"),
            ToMembership(RoundFailed{4}));
  EXPECT_EQ(stop_with(""), std::nullopt);
  EXPECT_EQ(stop_with("x"), "x");
}

TEST(MessageJson, MessageOfAnUnknownTypeIsToBeIgnored) {
  EXPECT_EQ(to_membership_of(R"({"type":"sing","song":1})"), std::nullopt);
  EXPECT_EQ(to_agent_of(R"({"type":"sing"})"), std::nullopt);
  EXPECT_EQ(to_agent_of(R"({"type":"stop_asked"})"), std::nullopt) << "the other side's";
}

TEST(MessageJson, LastOfTwoFieldsOfOneNameCounts) {
  EXPECT_EQ(to_membership_of(R"({"type":"round_started","round":1,"round":2})"), ToMembership(RoundStarted{2}));
}

TEST(MessageJson, AWelcomeWithoutARangeIsFromAnEndpointOfTheChosenVersion) {
  const auto welcome_of = [](const nlohmann::json& json) {
    return std::get<Welcome>(to_agent_of(json.dump(), 1).value());
  };
  auto json = nlohmann::json::parse(to_json(ToAgent(Welcome{0ms, false, 7, {5, 9}})));
  EXPECT_EQ(welcome_of(json).versions, (VersionRange{5, 9}));
  json.erase("version_min");
  EXPECT_EQ(welcome_of(json).versions, (VersionRange{7, 9}));
  json.erase("version_max");
  EXPECT_EQ(welcome_of(json).versions, (VersionRange{7, 7}));
  json.erase("version");
  EXPECT_EQ(welcome_of(json), (Welcome{0ms, false, 1, {1, 1}}));
}

TEST(MessageJson, HelloHasTheRangeOfVersionsOrOneVersion) {
  Hello hello;
  hello.node_key = kKey;
  const auto versions_of = [](const nlohmann::json& json) {
    return std::get<Hello>(to_membership_of(json.dump()).value()).versions;
  };
  for (const int version : {1, 2, 7}) {
    auto json = nlohmann::json::parse(to_json(ToMembership(hello)));
    json["version"] = version;
    json.erase("version_max");
    EXPECT_EQ(versions_of(json), (VersionRange{version, version})) << "as older ddpruns say it";
    json["version_max"] = 7;
    EXPECT_EQ(versions_of(json), (VersionRange{version, 7}));
    json["version_max"] = version - 1;
    EXPECT_THROW(versions_of(json), Error);
  }
}

TEST(MessageJson, TextsAreMadePrintableAndCutWhereTheyAreWritten) {
  auto failure = some_failure();
  failure.message = "caf\xe9\n" + std::string(100'000, 'x');
  failure.stderr_tail = {std::string("\x1b[2J\0", 5)};
  const auto back = std::get<RoundEnded>(to_membership_of(to_json(ToMembership(RoundEnded{1, {failure}}))).value());
  EXPECT_THAT(back.failures.front().message, ::testing::StartsWith("caf\\xe9\\nxxx"));
  EXPECT_EQ(back.failures.front().message.size(), 2048u);
  EXPECT_THAT(back.failures.front().stderr_tail, ::testing::ElementsAre("\\x1b[2J\\x00"));
}

TEST(MessageJson, LongestMessageFitsIntoTheChannel) {
  auto failure = some_failure();
  const std::string longest(100'000, '"');  // JSON doubles it
  failure.host = std::string(256, '"');
  failure.message = failure.program = failure.stderr_file = failure.gpu_faults = longest;
  failure.stderr_tail.assign(kStderrLinesMax, std::string(kStderrLineBytesMax, '"'));
  RoundEnded ended{4, {failure}, 0, false};
  failure.killed_for = std::string(512, 'x');
  failure.accused.assign(kAccusedMax, 1'000'000'000);
  ended.failures.resize(kFailuresMax, failure);
  const auto text = to_json(ToMembership(ended));
  EXPECT_LE(text.size(), kControlMessageBytesMax);
  EXPECT_NO_THROW(to_membership_of(text));
  Hello hello;
  hello.node_key = kKey;
  hello.addresses.assign(kAddressesMax, "fd00:1111:2222:3333:4444:5555:6666:7777");
  const auto greeting = to_json(ToMembership(hello));
  EXPECT_LE(greeting.size(), 16u << 10);
  EXPECT_NO_THROW(to_membership_of(greeting));
}

using Json = nlohmann::json;

// The message with another value in one field, as a peer that keeps to no rule would write it.
std::string with(const std::string& message, const std::string& pointer, const Json& value) {
  auto json = Json::parse(message);
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

template <class Parse>
void expect_refused(const std::string& text, const std::string& field, Parse parse) {
  try {
    (void)parse(text);
    ADD_FAILURE() << "accepted: " << text;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"" + field + "\"")) << text;
  }
}

constexpr std::int64_t kDay = 24 * 3600 * 1000;
const std::string kNul("a\0b", 3);
const std::vector<std::string> kNoTexts{kNul, "a\nb", "\x1b[2J", "\x7f", "\xc2\x9b", "\xe2\x80\xa8", "\xe2\x80\xae"};
const std::vector<Json> kNoAddresses{
    "", "any", "0.0.0.0/0", "gpu17", std::string("10.0.0.1\0LD_PRELOAD=/x.so", 25), "1.2", "1.2.3.4 ", 7};
const std::vector<Json> kNoHosts{std::string("127.0.0.1\0LD_PRELOAD=/x.so", 26),
                                 "a b",
                                 "a/b",
                                 "-oProxyCommand",
                                 "a..b",
                                 ".a",
                                 "gpu17:29400",
                                 "fe80::1%",
                                 std::string(64, 'a'),
                                 std::string(126, 'a') + "." + std::string(127, 'a')};

struct Values {
  const char* pointer;
  std::vector<Json> refused, taken{};
};

// Of "/held/round": round. Of "/addresses/0": addresses.
std::string field_of(std::string pointer) {
  if (std::isdigit(static_cast<unsigned char>(pointer.back())) != 0) pointer.resize(pointer.rfind('/'));
  return pointer.substr(pointer.rfind('/') + 1);
}

template <class Parse>
void expect_checked(const std::string& message, const std::vector<Values>& fields, Parse parse) {
  for (const auto& field : fields) {
    for (const auto& value : field.refused)
      expect_refused(with(message, field.pointer, value), field_of(field.pointer), parse);
    for (const auto& value : field.taken)
      EXPECT_NO_THROW(parse(with(message, field.pointer, value))) << field.pointer << " " << value;
  }
}

TEST(MessageJson, FieldsToMembershipAreWithinTheirRanges) {
  const auto parse = [](const std::string& text) { return to_membership_of(text); };
  Hello hello;
  hello.node_key = kKey;
  hello.nodes_max = 4;
  hello.node_rank = 0;
  hello.held = Held{{1, 1, 1}, 1, 2, 0, false, false, {kNonce}};
  hello.addresses = {"10.0.0.1"};
  hello.ended_nodes = {{kKey, {1, 1, 1}, 3, 4, kNonce}};
  expect_checked(
      to_json(ToMembership(hello)),
      {{"/version", {0, -1, 1'000'001, "1", 1.5}, {1}},
       {"/version_max", {0, -1, 1'000'001, std::int64_t{1} << 62, "1"}, {1, 1'000'000}},
       {"/workers", {0, -1, 16'385, 1'000'000'000}, {1, 16'384}},
       {"/node_rank", {-1, 65'536}, {65'535}},
       {"/nodes_min", {0, 5}, {4}},
       {"/nodes_max", {0, 65'537}, {65'536}},
       {"/run_id", {std::string(257, 'x')}, {std::string(256, 'x'), "caf\xc3\xa9"}},
       {"/host_name", {std::string(257, 'x')}},
       {"/role", {std::string(257, 'x')}},
       {"/slurm_run", {std::string(257, 'x')}},
       {"/local_address", kNoHosts, {"", "10.0.0.1", "fd00::1", "fe80::1%eth0", "gpu17.cluster.local", "a_b-1."}},
       {"/addresses/0", kNoAddresses, {"::1"}},
       {"/addresses", {Json(std::vector<std::string>(257, "10.0.0.1"))}},
       {"/standby_port", {-1, 65'536}, {0}},
       {"/highest_round", {-2, 1'000'000'001}, {-1, 1'000'000'000}},
       {"/started", {-1, 253'402'300'800, "1"}, {0, 253'402'300'799}},
       {"/held/job_started", {-1, 253'402'300'800}, {0}},
       {"/node_key", {"", std::string(31, 'a'), std::string(32, 'A'), std::string(33, 'a')}},
       {"/held/group_rank", {-1, 2}, {0}},
       {"/held/group_world_size", {0, 65'537}},
       {"/held/restart_count", {-1}},
       {"/held/stop_call", {0, -1, (std::int64_t{1} << 52) + 1}, {1, std::int64_t{1} << 52}},
       {"/held/nonces", {Json(std::vector<std::string>(kNoncesMax + 1, kNonce))}, {Json::array()}},
       {"/held/nonces/0", {"", std::string(31, 'a'), std::string(32, 'A'), std::string(33, 'a'), 7}, {kKey}},
       {"/ended_nodes", {Json(std::vector<Json>(kEndedNodesMax + 1, Json::object()))}, {Json::array()}},
       {"/ended_nodes/0/node_key", {"", std::string(31, 'a'), std::string(33, 'a'), 7}, {kNonce}},
       {"/ended_nodes/0/nonce", {"", std::string(31, 'a'), std::string(33, 'a'), 7}, {kKey}},
       {"/ended_nodes/0/group_rank", {-1, 4}, {0, 3}},
       {"/ended_nodes/0/group_world_size", {0, 65'537}, {4, 65'536}},
       {"/ended_nodes/0/round", {"", 7}},
       {"/restarts_max", {-1}},
       {"/restart_window_ms", {-1, 400 * kDay}},
       {"/join_timeout_ms", {-1, 400 * kDay}},
       {"/last_call_timeout_ms", {-1, 400 * kDay}},
       {"/heartbeat_timeout_ms", {-1, 400 * kDay}},
       {"/grace_ms", {-1, 400 * kDay}}},
      parse);
  for (const auto* name : {"/run_id", "/node_key", "/host_name", "/role", "/local_address", "/slurm_run"})
    for (const auto& text : kNoTexts)
      expect_refused(with(to_json(ToMembership(hello)), name, text), std::string(name).substr(1), parse);

  expect_checked(to_json(ToMembership(StoreOpened{1, 29400})), {{"/port", {0, 65'536}}}, parse);
  expect_checked(to_json(ToMembership(RoundFailed{1, "", {3}})),
                 {{"/what", {std::string(2049, 'x'), kNul, "a\nb"}, {std::string(2048, 'x')}},
                  {"/hung_ranks/0", {-1, 2'000'000'000}},
                  {"/hung_ranks", {Json(std::vector<int>(65, 1))}, {Json(std::vector<int>(64, 1))}},
                  {"/job_time_ms", {101 * 366 * kDay, -101 * 366 * kDay}, {-1}}},
                 parse);
  RoundEnded ended{4, {some_failure()}, 0, false, 0, {1, 1}, 15, 1ms, {3}, true};
  expect_checked(to_json(ToMembership(ended)),
                 {{"/stopped", {-1, 16'385}},
                  {"/stopped_at_step", {-1, 16'385}},
                  {"/commits", {-1, std::int64_t{1} << 53}},
                  {"/signal_number", {0, 65}},
                  {"/signalled_at_ms", {101 * 366 * kDay}},
                  {"/kept_at_ms", {-1, 101 * 366 * kDay}, {0}},
                  {"/unreached",
                   {Json(std::vector<int>(1025, 1)), Json(std::vector<int>{-1})},
                   {Json(std::vector<int>(65, 1)), Json(std::vector<int>(1024, 1))}},
                  {"/failures/0/rank", {-1, 2'000'000'000}},
                  {"/failures/0/local_rank", {-1, 16'384}},
                  {"/failures/0/pid", {-1, std::int64_t{1} << 31}},
                  {"/failures/0/host", {std::string(257, 'x')}},
                  {"/failures/0/after_ms", {-1, 101 * 366 * kDay}},
                  {"/failures/0/ending_value", {0, 65}},
                  {"/failures/0/ending", {-1, 4}},
                  {"/failures/0/accused", {Json(std::vector<int>(17, 1)), Json(std::vector<int>{-2})}},
                  {"/failures/0/killed_for", {std::string(513, 'x')}},
                  {"/failures/0/stderr_lost", {std::string(257, 'x')}},
                  {"/failures/0/stderr_tail", {Json(std::vector<std::string>(17, "x"))}}},
                 parse);
  for (const auto* name : {"host", "program", "message", "stderr_file", "stderr_lost", "gpu_faults"})
    for (const auto& text : kNoTexts)
      expect_refused(with(to_json(ToMembership(ended)), std::string("/failures/0/") + name, text), name, parse);
  for (const auto& text : kNoTexts)
    expect_refused(with(to_json(ToMembership(ended)), "/failures/0/stderr_tail/0", text), "stderr_tail", parse);
  for (const Ending ending : {Ending{Ending::Kind::exited, 256, false}, Ending{Ending::Kind::exited, -1, false}}) {
    ended.failures.front().ending = ending;
    expect_refused(to_json(ToMembership(ended)), "ending_value", parse);
  }
  expect_checked(to_json(ToMembership(StopReady{1, 1})), {{"/call", {-1, std::int64_t{1} << 53}}}, parse);
  expect_checked(to_json(ToMembership(Leaving{"", 137})), {{"/exit_code", {0, -1, 256}, {1, 255}}}, parse);
}

TEST(MessageJson, FieldsToAnAgentAreWithinTheirRanges) {
  const auto parse = [](const std::string& text) { return to_agent_of(text, 4); };
  StartRound start;
  start.round = {1, 1, 1};
  start.group_world_size = 2;
  start.rank_first = 4;
  start.world_size = 8;
  start.role_world_size = 4;
  start.master_address = "10.0.0.1";
  start.master_port = 29400;
  start.successors = {{1, "10.0.0.2", 29400}};
  start.host_group_rank = 0;
  start.nonce = kNonce;
  expect_checked(to_json(ToAgent(start)),
                 {{"/group_rank", {-1, 2}, {1}},
                  {"/group_world_size", {0, 65'537}},
                  {"/rank_first", {-1, 5, 8, 1'000'000'000}, {0}},  // this agent has four workers
                  {"/world_size", {1, 2'000'000'000}},
                  {"/role_rank_first", {-1, 1}},
                  {"/role_world_size", {0, 9}},
                  {"/restart_count", {-1}},
                  {"/restarts_max", {-1}},
                  {"/master_address", kNoHosts, {"", "gpu17", "fd00::1"}},
                  {"/master_port", {0, 65'536}},
                  {"/job_started", {-1, 253'402'300'800}, {0, 253'402'300'799}},
                  {"/why", {std::string(2049, 'x'), kNul, "a\nddprun: b"}},
                  {"/successors/0/address", kNoAddresses},
                  {"/successors/0/port", {0, 65'536}},
                  {"/successors/0/group_rank", {-1, 2}},
                  {"/host_group_rank", {-1, 2}},
                  {"/nonce", {std::string(31, 'a'), std::string(32, 'A'), std::string(33, 'a')}, {""}},
                  {"/round", {"1-0000000000000001", "-1-0000000000000001-1", "1-0000000000000001-4294967296"}}},
                 parse);
  expect_checked(to_json(ToAgent(Elsewhere{"10.0.0.1", 1})), {{"/address", kNoAddresses}, {"/port", {0}}}, parse);
  expect_checked(to_json(ToAgent(OpenStore{{1, 1, 1}, {"10.0.0.1"}, true})),
                 {{"/allow/0", kNoAddresses}, {"/allow", {Json(std::vector<std::string>(257, "10.0.0.1"))}}}, parse);
  expect_checked(to_json(ToAgent(Welcome{})),
                 {{"/job_time_ms", {-1, 101 * 366 * kDay}},
                  {"/version", {0, -1, 2}, {1}},
                  {"/version_min", {0}, {1}},
                  {"/version_max", {0, 1'000'001}, {1, 1'000'000}}},
                 parse);
  expect_checked(to_json(ToAgent(StopAt{1, 1, 0})), {{"/call", {0}}, {"/signal_number", {-1, 65}}}, parse);
  expect_checked(to_json(ToAgent(StopRound{1, 15, false, false, "", {1}})),
                 {{"/signal_number", {0, 65}}, {"/hung_ranks/0", {-1}}, {"/why", {kNul}}}, parse);
  expect_checked(to_json(ToAgent(HostLeaves{{}, {1}, 137})),
                 {{"/exit_code", {0, -1, 256}, {1, 255}}, {"/gone/0", {-1, 65'536}}}, parse);
  expect_checked(to_json(ToAgent(Refused{})), {{"/what", {"a\nb"}}, {"/try", {"\xc2\x9b"}}}, parse);
  FinishJob verdict{1, some_failure(), {some_failure()}, 1, 8, 0, "", "", RunReport{1s, 1s, 1, {{}}}};
  expect_checked(to_json(ToAgent(verdict)),
                 {{"/exit_code", {-1, 256}},
                  {"/stopped", {-1}},
                  {"/world_size", {-1}, {0}},
                  {"/restarts_max", {-1}},
                  {"/what", {"a\nb"}},
                  {"/try", {"a\nb"}},
                  {"/cause/local_rank", {-1, 16'384}},
                  {"/cause/host", {"\xe2\x80\xae"}},
                  {"/consequences/0/message", {"a\nwhere: b"}},
                  {"/report/total_ms", {-1}},
                  {"/report/rounds_count", {-1}},
                  {"/report/rounds/0/why", {"a\nb"}},
                  {"/report/rounds/0/nodes", {-1}},
                  {"/report/rounds/0/world_size", {-1}},
                  {"/report/rounds/0/detect_ms", {-1}},
                  {"/report/rounds/0/worked_ms", {-1}}},
                 parse);
}

// What the parser makes of it would take more stack than there is to copy.
TEST(MessageJson, DeepNestingIsRefused) {
  const std::size_t depth = 120'000;
  const auto lists = std::string(depth, '[') + std::string(depth, ']');
  const auto failed = R"({"type":"round_failed","round":1,"what":"x","job_time_ms":1,"hung_ranks":)" + lists + "}";
  const auto stop = R"({"type":"stop_round","round":1,"signal_number":15,"hung_ranks":)" + lists + "}";
  for (const auto& read :
       std::vector<std::function<void()>>{[&] { to_membership_of(failed); }, [&] { to_agent_of(stop, 1); }}) {
    try {
      read();
      ADD_FAILURE() << "it is taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("nested too deep"));
    }
  }
}

TEST(MessageJson, ListsAndObjectsCountTogetherForTheDepth) {
  const auto nested = [](int depth) {  // lists and objects by turns, within the object of the message
    std::string inner = "1";
    for (int i = depth; i > 1; --i) inner = i % 2 == 0 ? "[" + inner + "]" : R"({"a":)" + inner + "}";
    return R"({"type":"first_step","round":1,"more":)" + inner + "}";
  };
  EXPECT_EQ(to_membership_of(nested(8)), ToMembership(FirstStep{1}));
  EXPECT_THROW(to_membership_of(nested(9)), Error);
  const auto side_by_side = R"({"type":"first_step","round":1,"more":[[],{},[],{},[],{},[],{},[],{},[],{}]})";
  EXPECT_EQ(to_membership_of(side_by_side), ToMembership(FirstStep{1}));
}

TEST(MessageJson, BracketsInTextsAreNoNesting) {
  const RoundFailed failed{1, "[[[[[[[[[[[[\\\"{{{{{{{{{{{{"};
  EXPECT_EQ(to_membership_of(to_json(ToMembership(failed))), ToMembership(failed));
}

TEST(MessageJson, WhatIsMalformedIsRefusedByName) {
  const struct {
    const char *text, *why;
  } cases[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{\"type\":\"stop_asked\"", "no JSON object"},
      {"{}", "\"type\" is missing"},
      {R"({"type":7})", "\"type\" is no text"},
      {R"({"type":"stop_asked"})", "\"signal_number\" is missing"},
      {R"({"type":"stop_asked","signal_number":"2"})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":2.5})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":1e30})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":18446744073709551615})", "too large"},
      {R"({"type":"stop_asked","signal_number":0,"is_warning":false})", "out of range"},
      {R"({"type":"stop_asked","signal_number":15,"is_warning":false,"time_limit_ms":-1})", "out of range"},
      {R"({"type":"stop_asked","signal_number":1000,"is_warning":false})", "out of range"},
      {R"({"type":"store_opened","round":1,"port":65536})", "too large"},
      {R"({"type":"store_opened","round":-1,"port":1})", "out of range"},
      {R"({"type":"round_ended","round":1,"failures":{},"stopped":0,"tree_survived":false})", "no list"},
      {R"({"type":"round_ended","round":1,"failures":[7],"stopped":0,"tree_survived":false})", "no object"},
      {R"({"type":"round_ended","round":1,"failures":[],"stopped":0,"tree_survived":0})", "neither true nor false"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    try {
      (void)to_membership_of(c.text);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.why));
    }
  }
  FinishJob cut_to_success;
  cut_to_success.exit_code = 256;
  EXPECT_THROW(to_agent_of(to_json(ToAgent(cut_to_success))), Error);
  EXPECT_THROW(to_agent_of(R"({"type":"open_store","round":"x","allow":[],"is_last":true})"), Error);
  EXPECT_THROW(to_membership_of(std::string(100'000, '[')), Error);
}

}  // namespace
}  // namespace ddp::rendezvous
