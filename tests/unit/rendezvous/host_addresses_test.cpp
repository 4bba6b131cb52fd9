#include "base/host_addresses.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/address.hpp"

namespace ddp::base {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HostAddresses, AreThoseOfTheName) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  EXPECT_THAT(addresses_of_host("localhost", end, nullptr).addresses, Contains("127.0.0.1"));
  EXPECT_THAT(addresses_of_host("10.1.2.3", end, nullptr).addresses, ElementsAre("10.1.2.3"));
  EXPECT_THAT(addresses_of_host("fd00::1", end, nullptr).addresses, ElementsAre("fd00::1"));
  const auto none = addresses_of_host("", end, nullptr);
  EXPECT_THAT(none.addresses, IsEmpty());
  EXPECT_NE(none.error, "");
}

TEST(HostAddresses, NameOfBothLoopbackAddressesIsTheIpv4OneAlone) {
  const auto left_of = [](const std::vector<std::string>& texts) {
    std::vector<sockaddr_storage> addresses;
    for (const auto& text : texts) addresses.push_back(socket_address(*parse_address(text), 29400));
    keep_one_loopback(addresses);
    std::vector<std::string> out;
    for (const auto& address : addresses) out.push_back(address_of(address).text());
    return out;
  };
  EXPECT_THAT(left_of({"::1", "127.0.0.1"}), ElementsAre("127.0.0.1"));
  EXPECT_THAT(left_of({"127.0.1.1", "::1"}), ElementsAre("127.0.1.1"));
  EXPECT_THAT(left_of({"::1"}), ElementsAre("::1"));
  EXPECT_THAT(left_of({"::1", "10.0.0.1"}), ElementsAre("::1", "10.0.0.1"));
  EXPECT_THAT(left_of({"fd00::1", "127.0.0.1"}), ElementsAre("fd00::1", "127.0.0.1"));
}

TEST(HostAddresses, AreNotWaitedForPastTheEnd) {
  const auto late = addresses_of_host("localhost", std::chrono::steady_clock::time_point{}, nullptr);
  EXPECT_THAT(late.addresses, IsEmpty());
  EXPECT_EQ(late.error, "the resolver has not answered");
  Cut cut;
  cut.cut("it is over");
  EXPECT_THROW(addresses_of_host("localhost", std::chrono::steady_clock::now() + 60s, &cut), AbortedError);
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
}  // namespace ddp::base
