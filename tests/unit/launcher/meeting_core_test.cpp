#include "launcher/node/meeting_core.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/unit/actions_of.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using testing::all;
using ::testing::HasSubstr;

// One letter per action: "L" LookUp, "G" GiveUpLookUp, "O" OpenEndpoint, "J" Join, "H" Host, "N" Host as the next one,
// "S" StopHosting, "T" TellHost, "M" HandOn, "P" Print, "X" Lose.
std::string text_of(const MeetingCore::Actions& actions) {
  std::string out;
  for (const auto& action : actions) {
    if (const auto* host = std::get_if<MeetingCore::StartHosting>(&action))
      out += host->is_next ? 'N' : 'H';
    else
      out += "LGOJHSTMPX"[action.index()];
  }
  return out;
}

class Meet : public ::testing::Test {
 protected:
  static MeetingCore::Options options(std::optional<bool> serves) {
    MeetingCore::Options out;
    out.serves = serves;
    out.endpoint_host = "node0";
    out.host_name = "node1";
    out.own = {"10.0.0.2"};
    return out;
  }
  void begin(MeetingCore::Options options, const std::string& expected) {
    core.emplace(std::move(options));
    EXPECT_EQ(step(MeetingCore::Begin{}), expected);
  }
  std::string step(const MeetingCore::Event& event) {
    last = core->step(event, now);
    return text_of(last);
  }
  std::string tick_at(std::chrono::milliseconds later) {
    now += later;
    last = core->tick(now);
    return text_of(last);
  }
  std::string looked_up(const std::vector<std::string>& addresses) {
    return step(MeetingCore::LookedUp{
        addresses, {"10.0.0.2"}, "", addresses.empty() ? std::optional("no such host") : std::nullopt});
  }
  static rendezvous::StartRound start() {
    rendezvous::StartRound out;
    out.group_rank = 1;
    out.group_world_size = 2;
    return out;
  }

  std::optional<MeetingCore> core;
  MeetingCore::Actions last;
  MeetingCore::TimePoint now{100s};
};

TEST_F(Meet, WhoServesBySettingsOpensTheEndpointAndHosts) {
  begin(options(true), "O");
  EXPECT_FALSE(core->serves());
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  EXPECT_TRUE(core->serves());
  EXPECT_FALSE(core->next_deadline());
}

TEST_F(Meet, WhoDoesNotServeBySettingsJoins) {
  begin(options(false), "J");
  EXPECT_FALSE(core->next_deadline());
}

TEST_F(Meet, WhereAnotherHasTheEndpointsPortThisNodeIsLost) {
  begin(options(true), "O");
  EXPECT_EQ(step(MeetingCore::EndpointTaken{"port 29400 is taken", "another port"}), "X");
  EXPECT_EQ(all<MeetingCore::Lose>(last).front().what, "port 29400 is taken");
  EXPECT_FALSE(core->serves());
}

TEST_F(Meet, EndpointsPortInUseIsOpenedAgainForASecond) {
  const MeetingCore::EndpointTaken in_use{"port 29400 is in use", "another port", true};
  begin(options(true), "O");
  EXPECT_EQ(step(in_use), "");
  for (int i = 1; i < 10; ++i) {
    EXPECT_EQ(tick_at(99ms), "");
    EXPECT_EQ(tick_at(1ms), "O");
    EXPECT_EQ(step(in_use), "") << i;
  }
  const MeetingCore other = *core;
  EXPECT_EQ(tick_at(100ms), "O");
  EXPECT_EQ(step(in_use), "X") << "the second is over";
  EXPECT_FALSE(core->next_deadline());

  core.emplace(other);
  EXPECT_EQ(tick_at(0ms), "O");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H") << "whatever had the port has ended";
  EXPECT_FALSE(core->next_deadline());
}

TEST_F(Meet, NodeJoinsWhileItOpensAPortInUseAgain) {
  const MeetingCore::EndpointTaken in_use{"", "", true};
  begin(options({}), "L");
  EXPECT_EQ(looked_up({"10.0.0.2"}), "O");
  EXPECT_EQ(step(in_use), "J");
  EXPECT_EQ(tick_at(100ms), "O");
  EXPECT_EQ(step(in_use), "") << "it is joining already";
  const MeetingCore other = *core;
  EXPECT_EQ(step(MeetingCore::Heard{rendezvous::Welcome{}}), "M");
  EXPECT_FALSE(core->next_deadline()) << "the holder of the port serves the job";

  core.emplace(other);
  EXPECT_EQ(tick_at(100ms), "O");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H") << "in place of a connection to itself";
}

TEST_F(Meet, UnderSlurmTheAddressIsLookedUpWhileThePortIsInUse) {
  const MeetingCore::EndpointTaken in_use{"", "", true};
  auto its = options(true);
  its.may_be_slurm_node = true;
  begin(its, "LO");
  EXPECT_EQ(step(in_use), "");
  EXPECT_EQ(tick_at(100ms), "O");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  EXPECT_EQ(tick_at(14'900ms), "GP") << "15 s since it began";
  its.may_have_daemon = true;
  begin(its, "LO");
  EXPECT_EQ(step(in_use), "J");
  EXPECT_EQ(step(MeetingCore::Heard{rendezvous::Welcome{}}), "GM") << "the daemon's host has the address";
  EXPECT_FALSE(core->next_deadline());
}

TEST_F(Meet, WhereADaemonMayHaveThePortItIsJoined) {
  auto its = options(true);
  its.may_have_daemon = true;
  begin(its, "O");
  EXPECT_EQ(step(MeetingCore::EndpointTaken{"", ""}), "J");
}

TEST_F(Meet, WhoHasTheEndpointsAddressServesIt) {
  begin(options({}), "L");
  EXPECT_EQ(looked_up({"10.0.0.1", "10.0.0.2"}), "O");
  EXPECT_EQ(step(MeetingCore::EndpointTaken{"", ""}), "J") << "another ddprun of this host";
}

TEST_F(Meet, WhoHasNotJoinsAndLooksUpAgainWhereTheNameMayBecomeKnown) {
  begin(options({}), "L");
  EXPECT_EQ(looked_up({}), "J");
  EXPECT_EQ(tick_at(999ms), "");
  EXPECT_EQ(tick_at(1ms), "L");
  EXPECT_EQ(looked_up({"10.0.0.9"}), "") << "it has joined already";
  EXPECT_FALSE(core->next_deadline());
}

TEST_F(Meet, WhatIsFoundOnceItHasJoinedChangesNothing) {
  begin(options({}), "L");
  EXPECT_EQ(looked_up({}), "J");
  EXPECT_EQ(tick_at(1s), "L");
  EXPECT_EQ(step(MeetingCore::Heard{rendezvous::Welcome{}}), "M");
  EXPECT_EQ(looked_up({"10.0.0.2"}), "");
}

TEST_F(Meet, NodeRank0ServesAnAddressThatIsNobodysAfter5s) {
  auto its = options({});
  its.is_node_rank_0 = true;
  begin(its, "L");
  EXPECT_EQ(looked_up({"192.0.2.7"}), "J");
  EXPECT_EQ(tick_at(4999ms), "");
  EXPECT_EQ(tick_at(1ms), "PO");
  EXPECT_THAT(all<MeetingCore::Print>(last).front().line, HasSubstr("this is node rank 0"));
  begin(its, "L");
  EXPECT_EQ(looked_up({"192.0.2.7"}), "J");
  EXPECT_EQ(step(MeetingCore::Heard{rendezvous::Welcome{}}), "M");
  EXPECT_EQ(tick_at(5s), "") << "another one serves it";
}

TEST_F(Meet, UnderSlurmARoundWaitsForTheAddressOfTheEndpoint) {
  auto its = options(true);
  its.may_be_slurm_node = true;
  begin(its, "LO");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  EXPECT_EQ(step(MeetingCore::Heard{start()}), "");
  EXPECT_EQ(step(MeetingCore::LookedUp{{}, {"10.0.0.2"}, "10.0.0.1"}), "M");
  EXPECT_EQ(core->endpoint_host(""), "10.0.0.1");
  EXPECT_FALSE(core->next_deadline());
  EXPECT_EQ(step(MeetingCore::Heard{start()}), "M") << "it is known now";
}

TEST_F(Meet, UnderSlurmAnAddressOfThisHostDoesWhereTheNameStaysUnknown) {
  auto its = options(true);
  its.may_be_slurm_node = true;
  begin(its, "LO");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  EXPECT_EQ(step(MeetingCore::Heard{start()}), "");
  EXPECT_EQ(step(MeetingCore::Heard{rendezvous::Refused{}}), "MM") << "in their order";
  EXPECT_EQ(tick_at(15s), "GP");
  EXPECT_THAT(all<MeetingCore::Print>(last).front().line, HasSubstr("workers of this node reach it at 10.0.0.2"));
  EXPECT_EQ(core->endpoint_host(""), "10.0.0.2");
  EXPECT_EQ(step(MeetingCore::LookedUp{{}, {}, "10.0.0.1"}), "") << "too late";
}

TEST_F(Meet, UnderSlurmARoundThatWaitsIsHandedOnBeforeThisNodeServesNoLonger) {
  auto its = options(true);
  its.may_be_slurm_node = true;
  begin(its, "LO");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  EXPECT_EQ(step(MeetingCore::Heard{start()}), "");
  EXPECT_EQ(step(MeetingCore::SteppedDown{"host a serves the job already"}), "MPS");
}

TEST_F(Meet, OnceItHasFinishedNothingIsLookedUpOrHeldBack) {
  auto its = options(true);
  its.may_be_slurm_node = true;
  begin(its, "LO");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  core->finish();
  EXPECT_FALSE(core->next_deadline());
  EXPECT_EQ(step(MeetingCore::Heard{start()}), "M");
  EXPECT_EQ(step(MeetingCore::LookedUp{{}, {}, "10.0.0.1"}), "");
}

TEST_F(Meet, TheNextHostIsReachedWhereItStoodBy) {
  begin(options(false), "J");
  EXPECT_EQ(core->endpoint_host("10.0.0.1"), "10.0.0.1");
  auto round = start();
  round.successors = {{0, "10.0.0.1", 4001}, {1, "10.0.0.2", 4002}};
  EXPECT_EQ(step(MeetingCore::Heard{round}), "M");
  EXPECT_EQ(step(MeetingCore::ToServe{0}), "N");
  EXPECT_EQ(all<MeetingCore::StartHosting>(last).front().lost.group_rank, 0);
  EXPECT_TRUE(core->serves());
  EXPECT_EQ(core->endpoint_host(""), "10.0.0.2");
  EXPECT_EQ(step(MeetingCore::SteppedDown{"too few"}), "PS");
  EXPECT_FALSE(core->serves());
}

TEST_F(Meet, WhoHoldsTheEndpoint_JoinsAnotherHostAndServesAgainAtTheEndpoint) {
  begin(options(true), "O");
  EXPECT_EQ(step(MeetingCore::EndpointOpened{}), "H");
  const rendezvous::Session::Target there{"10.0.0.1", 4001};
  EXPECT_EQ(step(MeetingCore::SteppedDown{"host a serves the job already", there}), "PS");
  EXPECT_EQ(all<MeetingCore::StopHosting>(last).front().how.other_host, there);
  EXPECT_FALSE(core->serves());
  EXPECT_EQ(step(MeetingCore::ToServe{1}), "H") << "not in place of another";
  EXPECT_EQ(all<MeetingCore::StartHosting>(last).front().lost.group_rank, 1);
  EXPECT_EQ(core->endpoint_host(""), "node0");
}

TEST_F(Meet, AnEarlyFarewellOfTheEndpointsHostIsToldToTheMembershipThatFollowsIt) {
  begin(options(false), "J");
  EXPECT_EQ(step(MeetingCore::GuardianSaid{{"other", SIGKILL}, false}), "") << "of nobody who serves the job";
  EXPECT_EQ(step(MeetingCore::GuardianSaid{{"host", SIGKILL}, true}), "");
  EXPECT_EQ(step(MeetingCore::ToServe{0}), "NT");
  EXPECT_EQ(all<MeetingCore::TellHost>(last).front().node.node_key, "host");
  EXPECT_EQ(all<MeetingCore::TellHost>(last).front().node.signal_number, SIGKILL);
  EXPECT_EQ(step(MeetingCore::GuardianSaid{{"other"}, false}), "T") << "it serves the job by now";
  EXPECT_EQ(step(MeetingCore::SteppedDown{"too few"}), "PS");
  EXPECT_EQ(step(MeetingCore::ToServe{1}), "N") << "told once";
}

TEST(OwnEndpointAddress, IsTheNumericAddressOfThisHostAtOnePort) {
  const auto own = [] { return std::vector<std::string>{"10.0.0.2"}; };
  EXPECT_EQ(own_endpoint_address("10.0.0.2", 1, own), "10.0.0.2");
  EXPECT_EQ(own_endpoint_address("10.0.0.2", 2, own), "") << "another job may have had the port";
  EXPECT_EQ(own_endpoint_address("10.0.0.3", 1, own), "") << "a service's address";
  EXPECT_EQ(own_endpoint_address("node0", 1, own), "") << "a name may lead to another host now";
  EXPECT_EQ(own_endpoint_address("127.0.0.1", 1, own), "127.0.0.1");
}

TEST(IsThisHost, IsToldByNamesAndAddresses) {
  EXPECT_TRUE(is_this_host("localhost", {}, {}, "node1"));
  EXPECT_TRUE(is_this_host("node1", {"10.0.0.9"}, {}, "node1"));
  EXPECT_TRUE(is_this_host("node1.cluster", {}, {}, "node1")) << "a long name and a short one";
  EXPECT_FALSE(is_this_host("node1.cluster", {"10.0.0.9"}, {"10.0.0.2"}, "node1")) << "of another host";
  EXPECT_TRUE(is_this_host("head", {"10.0.0.9", "10.0.0.2"}, {"10.0.0.2"}, "node1"));
  EXPECT_FALSE(is_this_host("head", {"127.0.0.2"}, {"127.0.0.2"}, "node1")) << "every host has loopback addresses";
}

TEST_F(Meet, ANodeThatComesIsLedToTheMembershipOfItsJob_HereOrWhereThisNodeIsJoined) {
  const auto text = [&](const std::string& run_id, const std::optional<rendezvous::Session::Target>& joined) {
    const auto direction = core->direct(run_id, joined);
    if (const auto* elsewhere = std::get_if<rendezvous::Elsewhere>(&direction))
      return elsewhere->address + " " + std::to_string(elsewhere->port);
    return std::string(std::holds_alternative<MeetingCore::Here>(direction) ? "here" : "nowhere");
  };
  auto its = options(false);
  its.run_id = "bert";
  begin(its, "J");
  const rendezvous::Session::Target there{"10.0.0.1", 29400};
  EXPECT_EQ(text("bert", {}), "nowhere") << "it has joined nobody yet";
  EXPECT_EQ(text("bert", there), "10.0.0.1 29400");
  EXPECT_EQ(text("gpt", there), "nowhere") << "it says nothing about its own job to one of another";
  EXPECT_EQ(step(MeetingCore::ToServe{0}), "N");
  EXPECT_EQ(text("bert", {}), "here");
  EXPECT_EQ(text("gpt", {}), "here") << "membership says that it is another job";
  EXPECT_EQ(step(MeetingCore::SteppedDown{"others go on"}), "PS");
  EXPECT_EQ(text("bert", there), "10.0.0.1 29400");
}

}  // namespace
}  // namespace ddp::launcher
