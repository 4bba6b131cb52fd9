#include "rendezvous/worker_link/message.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ddp::worker_link {
namespace {

TEST(WorkerMessage, WhatAWorkerSaysComesBackTheSame) {
  for (const FromWorker& message :
       {FromWorker(LinkHello{kVersion, true, false}), FromWorker(LinkHello{kVersion, false, true}),
        FromWorker(LinkHello{kVersion, true, true, Departure{7, Departure::Kind::in_order, {}, ""}}),
        FromWorker(LinkHello{kVersion, true, true, Departure{7, Departure::Kind::for_others, {0, 1'000'000}, "why"}}),
        FromWorker(
            LinkHello{kVersion, true, true, Departure{7, Departure::Kind::for_others, {1}, "why", {1, 2}, true, {2}}}),
        FromWorker(LinkLeft{7, {1, 63}, "rank 1 is missing"}), FromWorker(LinkLeft{7, {}, "", true}),
        FromWorker(LinkProgress{7, true, 12, {}}), FromWorker(LinkProgress{7, false, {}, 4'503'599'627'370'496}),
        FromWorker(LinkStopReady{7, 1001}), FromWorker(LinkStopping{7})}) {
    const auto packet = encode(message);
    EXPECT_EQ(parse_from_worker(packet), message) << packet;
    EXPECT_FALSE(parse_to_worker(packet)) << "it goes the other way";
  }
}

TEST(WorkerMessage, DepartureOfALaterKindIsPassedOver) {
  const std::string hello = R"({"type":"hello","version":1,"takes_seats":true,"takes_stops":false,"departure":)";
  EXPECT_EQ(parse_from_worker(hello + R"({"round":7,"kind":"by_magic","ranks":[],"why":""}})"),
            FromWorker(LinkHello{kVersion, true, false}));
  for (const auto* departure :
       {"7", R"({"round":7,"kind":"own_error"})", R"({"round":-1,"kind":"own_error","ranks":[],"why":""})",
        R"({"round":7,"kind":"own_error","ranks":[-1],"why":""})"})
    EXPECT_FALSE(parse_from_worker(hello + departure + "}")) << departure;
}

TEST(WorkerMessage, WhatAnOlderWorkerDoesNotSayIsPassedOver) {
  const std::string hello = R"({"type":"hello","version":1,"takes_seats":true,"takes_stops":false,"departure":)";
  const std::string departure = R"({"round":7,"kind":"for_others","ranks":[3],"why":"")";
  EXPECT_EQ(parse_from_worker(hello + departure + "}}"),
            FromWorker(LinkHello{kVersion, true, false, Departure{7, Departure::Kind::for_others, {3}, ""}}));
  EXPECT_EQ(parse_from_worker(R"({"type":"left","round":7,"hung_ranks":[],"why":""})"),
            FromWorker(LinkLeft{7, {}, ""}));
  for (const auto* field : {R"("unreached":[-1])", R"("unreached":7)", R"("was_in_call":1)", R"("hung_ranks":[-1])"})
    EXPECT_FALSE(parse_from_worker(hello + departure + "," + field + "}}")) << field;
}

TEST(WorkerMessage, WhatAWorkerIsToldComesBackTheSame) {
  const LinkSeat seat{{{"RANK", "3"}, {"MASTER_ADDR", "node0"}, {"EMPTY", ""}}};
  for (const ToWorker& message :
       {ToWorker(LinkRoundOver{4294967295, "rank 2 ended"}), ToWorker(seat), ToWorker(LinkStop{"budget"}),
        ToWorker(LinkPrepareStop{3}), ToWorker(LinkStopAt{3, 1002})}) {
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
  for (const auto& packet : cases) EXPECT_FALSE(parse_from_worker(packet)) << packet;
  EXPECT_FALSE(parse_from_worker(R"({"type":"left","round":1,"hung_ranks":[],"why":"a\u0000b"})"));
  EXPECT_FALSE(
      parse_from_worker(R"({"type":"left","round":1,"hung_ranks":[],"why":")" + std::string(3073, 'x') + "\"}"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK":"1\u0000LD_PRELOAD=x"}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK\u0000":"1"}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":{"RANK":1}})"));
  EXPECT_FALSE(parse_to_worker(R"({"type":"seat","variables":["RANK"]})"));
}

TEST(WorkerMessage, LimitsHold) {
  std::string ranks;
  for (std::size_t i = 0; i <= kRanksMax; ++i) ranks += (i == 0 ? "" : ",") + std::to_string(i);
  EXPECT_FALSE(parse_from_worker(R"({"type":"left","round":1,"why":"","hung_ranks":[)" + ranks + "]}"));
  const auto padded = R"({"type":"hello","version":1,"takes_seats":true,"takes_stops":true,"more":")" +
                      std::string(kPacketBytesMax, 'x') + "\"}";
  EXPECT_FALSE(parse_from_worker(padded));
  LinkSeat many;
  for (std::size_t i = 0; i <= kVariablesMax; ++i) many.variables["V" + std::to_string(i)] = "";
  EXPECT_FALSE(parse_to_worker(encode(ToWorker(many))));
}

TEST(WorkerMessage, WhatIsNotKnownIsIgnoredAndNoTextCanMakeAMessageFail) {
  EXPECT_TRUE(parse_from_worker(R"({"type":"hello","version":2,"takes_seats":true,"takes_stops":false,"mood":[1]})"));
  const auto packet = encode(FromWorker(LinkLeft{1, {}, "\xff\xfe" + std::string(100'000, 'y')}));
  EXPECT_LE(packet.size(), kPacketBytesMax);
  const auto left = parse_from_worker(packet);
  ASSERT_TRUE(left);
  EXPECT_LE(std::get<LinkLeft>(*left).why.size(), kWhyBytesMax + 8);
  const auto bytes =
      parse_from_worker(encode(FromWorker(LinkLeft{1, {}, std::string("a\0", 2) + std::string(2000, '\xff')})));
  ASSERT_TRUE(bytes);
  EXPECT_EQ(std::get<LinkLeft>(*bytes).why.substr(0, 2), "a ");
}

}  // namespace
}  // namespace ddp::worker_link
