#include "rendezvous/io/host_addresses.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rendezvous/io/address.hpp"

namespace ddp::io {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostAddresses, AreThoseOfTheName) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  EXPECT_THAT(addresses_of_host("localhost", end, nullptr).addresses, Contains("127.0.0.1"));
  EXPECT_THAT(addresses_of_host("10.1.2.3", end, nullptr).addresses, ElementsAre("10.1.2.3"));
  EXPECT_THAT(addresses_of_host("fd00::1", end, nullptr).addresses, ElementsAre("fd00::1"));
  const auto none = addresses_of_host("", end, nullptr);
  EXPECT_THAT(none.addresses, IsEmpty());
  EXPECT_NE(none.error, "");
}

TEST(HostAddresses, AreNotWaitedForPastTheEnd) {
  const auto late = addresses_of_host("localhost", std::chrono::steady_clock::time_point{}, nullptr);
  EXPECT_THAT(late.addresses, IsEmpty());
  EXPECT_EQ(late.error, "the resolver has not answered");
  Cut cut;
  cut.cut("it is over");
  EXPECT_THROW(addresses_of_host("localhost", std::chrono::steady_clock::now() + 20s, &cut), AbortedError);
}

TEST(Addresses, HoldNothingBehindANulByte) {
  EXPECT_TRUE(parse_address("127.0.0.1"));
  EXPECT_FALSE(parse_address(std::string("127.0.0.1\0LD_PRELOAD=/tmp/evil.so", 33)));
  EXPECT_FALSE(parse_address(std::string("::1\0", 4)));
}

TEST(InterfaceAddresses, SayTheirNetworks) {
  const auto all = interface_addresses();
  const auto loopback = std::find_if(all.begin(), all.end(),
                                     [](const auto& each) { return each.address == *parse_address("127.0.0.1"); });
  ASSERT_NE(loopback, all.end());
  EXPECT_EQ(loopback->prefix_bits, 96 + 8);
  for (const auto& each : all) {
    if (each.address.is_v4()) {
      EXPECT_GE(each.prefix_bits, 96);
    }
    EXPECT_LE(each.prefix_bits, 128);
  }
}

}  // namespace
}  // namespace ddp::io
