#include "rendezvous/worker_link/message.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ddp::worker_link {
namespace {

TEST(WorkerMessage, WhatAWorkerSaysComesBackTheSame) {
  for (const ToAgent& message :
       {ToAgent(Hello{kVersion, true, false}), ToAgent(Hello{kVersion, false, true}),
        ToAgent(Left{7, {1, 63}, "rank 1 is missing"}), ToAgent(Progress{7, true, 12, {}}),
        ToAgent(Progress{7, false, {}, 4'503'599'627'370'496}), ToAgent(StopReady{7, 1001}), ToAgent(Stopping{7})}) {
    const auto packet = encode(message);
    EXPECT_EQ(parse_to_agent(packet), message) << packet;
    EXPECT_FALSE(parse_to_worker(packet)) << "it goes the other way";
  }
}

TEST(WorkerMessage, WhatAWorkerIsToldComesBackTheSame) {
  const Seat seat{{{"RANK", "3"}, {"MASTER_ADDR", "node0"}, {"EMPTY", ""}}};
  for (const ToWorker& message : {ToWorker(RoundOver{4294967295, "rank 2 ended"}), ToWorker(seat),
                                  ToWorker(Stop{"budget"}), ToWorker(PrepareStop{3}), ToWorker(StopAt{3, 1002})}) {
    const auto packet = encode(message);
    EXPECT_EQ(parse_to_worker(packet), message) << packet;
  }
}

TEST(WorkerMessage, WhatIsNoMessageIsRefused) {
  const std::string cases[] = {"",
                               "hello",
                               "[]",
                               "null",
                               "{}",
                               R"({"type":"hello"})",
                               R"({"type":"hello","version":-1,"takes_seats":true,"takes_stops":true})",
                               R"({"type":"hello","version":1,"takes_seats":1,"takes_stops":true})",
                               R"({"type":"left","round":4294967296,"hung_ranks":[],"why":""})",
                               R"({"type":"left","round":1,"hung_ranks":[-1],"why":""})",
                               R"({"type":"left","round":1,"hung_ranks":["1"],"why":""})",
                               R"({"type":"left","round":1,"hung_ranks":[],"why":7})",
                               R"({"type":"left","round":1,"why":""})",
                               R"({"type":"progress","round":1,"has_stepped":true,"commits":-1})",
                               R"({"type":"stop_ready","round":1})",
                               R"({"type":"progress","round":1,"has_stepped":true,"checkpoint_step":4503599627370497})",
                               R"({"type":7})",
                               R"({"type":"seat","variables":{"RANK":"1"}})"};
  for (const auto& packet : cases) EXPECT_FALSE(parse_to_agent(packet)) << packet;
  EXPECT_FALSE(parse_to_agent(R"({"type":"left","round":1,"hung_ranks":[],"why":"a\u0000b"})"));
  EXPECT_FALSE(parse_to_agent(R"({"type":"left","round":1,"hung_ranks":[],"why":")" + std::string(3073, 'x') + "\"}"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK":"1\u0000LD_PRELOAD=x"}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK\u0000":"1"}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK":1}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":["RANK"]})"));
}

TEST(WorkerMessage, LimitsHold) {
  std::string ranks;
  for (std::size_t i = 0; i <= kRanksMax; ++i) ranks += (i == 0 ? "" : ",") + std::to_string(i);
  EXPECT_FALSE(parse_to_agent(R"({"type":"left","round":1,"why":"","hung_ranks":[)" + ranks + "]}"));
  const auto padded = R"({"type":"hello","version":1,"takes_seats":true,"takes_stops":true,"more":")" +
                      std::string(kPacketBytesMax, 'x') + "\"}";
  EXPECT_FALSE(parse_to_agent(padded));
  Seat many;
  for (std::size_t i = 0; i <= kVariablesMax; ++i) many.variables["V" + std::to_string(i)] = "";
  EXPECT_FALSE(parse_to_worker(encode(ToWorker(many))));
}

TEST(WorkerMessage, WhatIsNotKnownIsIgnoredAndNoTextCanMakeAMessageFail) {
  EXPECT_TRUE(parse_to_agent(R"({"type":"hello","version":2,"takes_seats":true,"takes_stops":false,"mood":[1]})"));
  const auto packet = encode(ToAgent(Left{1, {}, "\xff\xfe" + std::string(100'000, 'y')}));
  EXPECT_LE(packet.size(), kPacketBytesMax);
  const auto left = parse_to_agent(packet);
  ASSERT_TRUE(left);
  EXPECT_LE(std::get<Left>(*left).why.size(), kWhyBytesMax + 8);
  const auto bytes = parse_to_agent(encode(ToAgent(Left{1, {}, std::string("a\0", 2) + std::string(2000, '\xff')})));
  ASSERT_TRUE(bytes);
  EXPECT_EQ(std::get<Left>(*bytes).why.substr(0, 2), "a ");
}

}  // namespace
}  // namespace ddp::worker_link
