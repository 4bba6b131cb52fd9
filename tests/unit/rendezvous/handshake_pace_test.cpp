// A simulation: what attackers and honest nodes are let begin, in virtual time.
#include "rendezvous/control/handshake_pace.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::microseconds kHandshake{1'000}, kBetween{250};  // without a delay: 4,000 a second

class HandshakePaceSimulation : public ::testing::Test {
 protected:
  // 4,000 connections a second from one source, whose handshakes all fail.
  void attack(const base::Address& source, HandshakePace::Milliseconds time) {
    for (const auto end = now + time; now < end; now += kBetween) {
      while (!failures.empty() && failures.begin()->first <= now) {
        pace.failed(failures.begin()->second, now);
        failures.erase(failures.begin());
      }
      const auto start = pace.begin(source, now);
      if (!start) continue;
      ++begun;
      failures.emplace(*start + kHandshake, source);
    }
  }

  static base::Address host(std::uint8_t number) { return *base::parse_address("10.0.0." + std::to_string(number)); }

  HandshakePace pace{{}};
  HandshakePace::TimePoint now{1h};
  std::multimap<HandshakePace::TimePoint, base::Address> failures;
  int begun = 0;
};

TEST_F(HandshakePaceSimulation, AttackerGetsAboutAHundredASecond) {
  attack(host(1), 60s);
  EXPECT_GT(begun, 60 * 90);
  EXPECT_LT(begun, 60 * 110);
  EXPECT_LE(failures.size(), 250u) << "those that wait have a bound";
}

TEST_F(HandshakePaceSimulation, OtherSourcesAreNotDelayed) {
  attack(host(1), 10s);
  EXPECT_EQ(pace.begin(host(2), now), now);
}

TEST_F(HandshakePaceSimulation, AddressesOfOneIpv6NetworkAreOneSource) {
  for (int i = 0; i < 100; ++i) attack(*base::parse_address("2001:db8::" + std::to_string(i)), 100ms);
  EXPECT_LT(begun, 10 * 110 + 250) << "those that wait begin too";
  EXPECT_EQ(pace.begin(*base::parse_address("2001:db8:0:1::1"), now), now);
  const auto node = *base::parse_address("2001:db8::abcd");
  EXPECT_NE(pace.begin(node, now), now);
  pace.joined(node);
  EXPECT_EQ(pace.begin(node, now), now);
}

TEST_F(HandshakePaceSimulation, SourceWithALiveSessionIsNeverDelayed) {
  attack(host(1), 10s);
  pace.joined(host(1));
  pace.joined(host(1));
  EXPECT_EQ(pace.begin(host(1), now), now);
  pace.left(host(1));
  EXPECT_EQ(pace.begin(host(1), now), now);
  begun = 0;
  attack(host(1), 1s);
  EXPECT_EQ(begun, 4'000);
  pace.left(host(1));
  attack(host(1), 10s);
  EXPECT_NE(pace.begin(host(1), now), now);
}

TEST_F(HandshakePaceSimulation, NodeThatSharesAnAttackersAddressGetsInWhenItTriesAgain) {
  attack(host(1), 10s);
  int attempts = 1;
  while (!pace.begin(host(1), now)) {
    ASSERT_LT(++attempts, 200);
    attack(host(1), 37ms);  // not in step with what the attacker does
  }
  attack(host(2), 5s);  // once the attack is over
  EXPECT_EQ(pace.begin(host(1), now), now);
}

TEST_F(HandshakePaceSimulation, FewFailuresCostNoDelay) {
  for (int i = 0; i < 100; ++i) {  // a node that was given a wrong token, and tries again and again
    EXPECT_EQ(pace.begin(host(1), now), now);
    pace.failed(host(1), now);
    now += 50ms;
  }
}

TEST_F(HandshakePaceSimulation, ManyThatBeginTogetherAndFailAreForgivenSoon) {
  for (int i = 0; i < 10'000; ++i) pace.failed(host(1), now);
  EXPECT_EQ(pace.begin(host(1), now), std::nullopt);
  EXPECT_TRUE(pace.begin(host(1), now + 10ms));
  EXPECT_EQ(pace.begin(host(1), now + 2s), now + 2s);
}

TEST_F(HandshakePaceSimulation, SourcesThatAreRememberedHaveABound) {
  HandshakePace few({.sources_max = 2});
  const auto floods = [&](const base::Address& source) {
    for (int i = 0; i < 10'000; ++i) few.failed(source, now);
    return few.begin(source, now) != now;
  };
  EXPECT_TRUE(floods(host(1)));
  EXPECT_TRUE(floods(host(2)));
  EXPECT_FALSE(floods(host(3)));
  now += 10s;
  EXPECT_TRUE(floods(host(3))) << "the others' debts are over";
}

}  // namespace
}  // namespace ddp::rendezvous
