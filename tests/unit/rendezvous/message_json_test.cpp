#include "rendezvous/control/message_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddp/error.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef0123456789abcdef";

FailureReport some_failure() {
  return {5,     1,     "gpu17",           41822,      "./train",          {Ending::Kind::killed, 11, true}, 3,
          12min, 13min, "out of \"luck\"", {"a", "b"}, "logs/x/stderr.log"};
}

TEST(MessageJson, EveryMessageComesBackAsItWas) {
  Hello plain;
  plain.node_key = kKey;
  const ToMembership up[] = {Hello{1,
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
                                   Held{{1700000000, 0xabcdef, 4}, 1, 2, 3, true, true},
                                   3,
                                   600s,
                                   90s,
                                   5s,
                                   7s,
                                   true,
                                   true,
                                   false,
                                   "42.0"},
                             plain,
                             StoreOpened{4, 29400},
                             RoundStarted{4},
                             FirstStep{4},
                             RoundFailed{4, "rank 5 was killed", {3, 7}, 1234ms},
                             RoundEnded{4, {some_failure(), {}}, 7, true, 3, {12, {}}},
                             RoundEnded{4, {}, 0, false, 8, {{}, 1'000'000'000'000}},
                             RoundEnded{4, {}, 2, false, 0, {}, 10, 1234ms},
                             StopAsked{15, true},
                             StopReady{4, 1001},
                             StopReady{4, {}}};
  for (const auto& message : up) EXPECT_EQ(to_membership_of(to_json(message)), message) << to_json(message);
  StartRound start;
  start.round = {1700000000, 0xabcdef, 4};
  start.group_rank = 1;
  start.group_world_size = 2;
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
  const ToAgent down[] = {Welcome{1234ms, true},
                          Elsewhere{"10.0.0.2", 29501},
                          Refused{"no", "yes"},
                          OpenStore{{1700000000, 1, 4}, {"10.0.0.1"}, false},
                          start,
                          RoundEstablished{4},
                          PrepareStop{4, true},
                          StopAt{4, 1002, 15},
                          StopAt{4, 1, 0},
                          StopRound{4, 15, true, true, "ctrl-c", {3}, true},
                          FinishJob{137,
                                    some_failure(),
                                    {some_failure()},
                                    7,
                                    8,
                                    3,
                                    "what",
                                    "try",
                                    RunReport{60s, 50s, 33, {{3, "why", 2, 16, 1ms, 2ms, 3ms, 4ms, 5ms, 6s}, {}}}},
                          FinishJob{}};
  for (const auto& message : down) EXPECT_EQ(to_agent_of(to_json(message)), message) << to_json(message);
}

TEST(MessageJson, ANewerPeerMaySayMore) {
  EXPECT_EQ(to_membership_of(R"({"type":"stop_asked","signal_number":2,"is_warning":false,"mood":"sad"})"),
            ToMembership(StopAsked{2}));
}

TEST(MessageJson, WhatWorkersPrintNeedNotBeUtf8) {
  EXPECT_THAT(to_json(ToMembership(RoundFailed{1, "caf\xe9"})), HasSubstr("caf"));
}

TEST(MessageJson, WhatOthersComputeWithIsInRange) {
  const auto refused = [](const ToMembership& message) {
    EXPECT_THROW(to_membership_of(to_json(message)), Error) << to_json(message);
  };
  Hello whole;
  whole.node_key = kKey;
  auto hello = whole;
  for (const int workers : {0, -1, 1'000'000'000}) {
    hello.workers = workers;
    refused(hello);
  }
  hello = whole;
  hello.node_rank = -1;
  refused(hello);
  for (const auto& [low, high] : {std::pair{0, 1}, {2, 1}, {1, 1'000'000}}) {
    hello = whole;
    hello.nodes_min = low;
    hello.nodes_max = high;
    refused(hello);
  }
  hello = whole;
  hello.join_timeout = -1ms;
  refused(hello);
  for (const auto& name : {std::string("a\nb"), std::string(300, 'x')}) {
    hello = whole;
    hello.run_id = name;
    refused(hello);
    hello = whole;
    hello.host_name = name;
    refused(hello);
    hello = whole;
    hello.slurm_run = name;
    refused(hello);
  }
  hello = whole;
  hello.restart_window = -1ms;
  refused(hello);
  hello = whole;
  hello.last_call_timeout = std::chrono::years(2);
  refused(hello);
  hello = whole;
  hello.restarts_max = -1;
  refused(hello);
  for (const auto* address : {"any", "0.0.0.0/0", "gpu17", ""}) {
    hello = whole;
    hello.addresses = {"10.0.0.1", address};
    refused(hello);
  }
  for (const auto& key : {std::string(), std::string(31, 'a'), std::string(32, 'A')}) {
    hello = whole;
    hello.node_key = key;
    refused(hello);
  }
  hello = whole;
  hello.held = Held{{1, 1, 1}, 2, 2, 0};
  refused(hello);
  auto failure = some_failure();
  for (const Ending ending : {Ending{Ending::Kind::killed, 0, false}, Ending{Ending::Kind::killed, 65, false},
                              Ending{Ending::Kind::exited, 256, false}, Ending{Ending::Kind::exited, -1, false}}) {
    failure.ending = ending;
    refused(RoundEnded{4, {failure}, 7, false});
  }
  for (const int number : {0, 65}) refused(RoundEnded{4, {}, 2, false, 0, {}, number, 1234ms});
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
      {R"({"type":"sing"})", "no such type"},
      {R"({"type":"stop_asked"})", "\"signal_number\" is missing"},
      {R"({"type":"stop_asked","signal_number":"2"})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":2.5})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":1e30})", "no whole number"},
      {R"({"type":"stop_asked","signal_number":18446744073709551615})", "too large"},
      {R"({"type":"stop_asked","signal_number":0,"is_warning":false})", "out of range"},
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
