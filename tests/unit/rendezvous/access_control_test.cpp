#include "rendezvous/store/access_control.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "ddp/error.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::store {
namespace {

using base::Address;
using base::address_of;

using ::testing::HasSubstr;

constexpr uid_t kUs = 1000;

sockaddr_storage storage_of(const std::string& text, std::uint16_t port = 0) {
  sockaddr_storage storage{};
  if (text.find(':') == std::string::npos) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET, text.c_str(), &v4.sin_addr), 1) << text;
    std::memcpy(&storage, &v4, sizeof v4);
  } else {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    EXPECT_EQ(::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    std::memcpy(&storage, &v6, sizeof v6);
  }
  return storage;
}

Address address(const std::string& text) { return address_of(storage_of(text)); }

bool admits(const std::vector<std::string>& allow, const std::string& peer) {
  const Caller caller{.address = address(peer), .is_this_host = false, .owner = std::nullopt};
  return !refusal(caller, kUs, AllowList::parse(allow));
}

TEST(StoreAccess, AddressesCompareAcrossFamilies) {
  EXPECT_EQ(address("10.1.2.3"), address("::ffff:10.1.2.3"));
  EXPECT_EQ(address("::ffff:10.1.2.3").text(), "10.1.2.3");
  EXPECT_EQ(address("fd00:0::1").text(), "fd00::1");
  EXPECT_TRUE(address("127.8.9.10").is_loopback());
  EXPECT_TRUE(address("::1").is_loopback());
  EXPECT_TRUE(address("::ffff:127.0.0.1").is_loopback());
  EXPECT_FALSE(address("128.0.0.1").is_loopback());
  EXPECT_FALSE(address("::2").is_loopback());
}

TEST(StoreAccess, AllowListAdmitsItsBlocksOnly) {
  const struct {
    const char* block;
    const char* in;
    const char* out;
  } cases[] = {{"10.0.0.0/8", "10.255.0.1", "11.0.0.0"},
               {"10.1.2.3/8", "10.0.0.1", "9.255.255.255"},  // bits behind the prefix do not matter
               {"192.168.1.7", "192.168.1.7", "192.168.1.6"},
               {"192.168.1.128/25", "192.168.1.200", "192.168.1.127"},
               {"0.0.0.0/0", "8.8.8.8", "2001:db8::1"},
               {"fd00::/8", "fdff::1", "fc00::1"},
               {"2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::1"},
               {"2001:db8::5", "2001:db8::5", "2001:db8::4"},
               {"::/0", "2001:db8::1", "10.0.0.1"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.block);
    EXPECT_TRUE(admits({c.block}, c.in));
    EXPECT_FALSE(admits({c.block}, c.out));
    EXPECT_TRUE(admits({"172.16.0.0/12", c.block}, c.in));
    EXPECT_FALSE(admits({}, c.in));
  }
  EXPECT_TRUE(admits({"10.0.0.0/8"}, "::ffff:10.0.0.1"));
  EXPECT_TRUE(admits({"any"}, "8.8.8.8"));
}

TEST(StoreAccess, MalformedBlockIsNamed) {
  for (const char* text : {"", "10.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "10.0.0.0/ 8",
                           "fd00::/129", "node0", "Any", "10.0.0.0/8/8", "fe80::1%eth0"}) {
    SCOPED_TRACE(text);
    try {
      AllowList::parse({"10.0.0.0/8", text});
      ADD_FAILURE() << "taken";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"" + std::string(text) + "\" is no block of addresses: "));
    }
  }
}

TEST(StoreAccess, ThisHostsConnectionMustBeOurUsers) {
  const AllowList own_net = AllowList::parse({"10.0.0.0/8"});
  Caller caller{.address = address("10.0.0.5"), .is_this_host = true, .owner = kUs};
  EXPECT_EQ(refusal(caller, kUs, {}), std::nullopt);
  caller.owner = 65534;
  EXPECT_EQ(refusal(caller, kUs, own_net),  // an allowed address does not open this host to all its users
            "a connection of uid 65534 from this host (10.0.0.5): the store is for uid 1000; "
            "--store-allow=any admits everybody");
  caller.owner = std::nullopt;
  EXPECT_THAT(refusal(caller, kUs, own_net).value(), HasSubstr("whose process has closed it already"));
  EXPECT_EQ(refusal(caller, kUs, AllowList::parse({"any"})), std::nullopt);
}

TEST(StoreAccess, RefusalNamesTheOptionThatAdmits) {
  Caller caller{.address = address("10.0.0.5"), .is_this_host = false, .owner = std::nullopt};
  EXPECT_THAT(refusal(caller, kUs, {}).value(), HasSubstr("--store-allow=10.0.0.5/32 admits it"));
  caller.address = address("fd00::5");
  EXPECT_THAT(refusal(caller, kUs, {}).value(), HasSubstr("--store-allow=fd00::5/128 admits it"));
}

// A connection between two sockets of this process, seen from the accepting side.
struct Connected {
  base::UniqueFd listener, client, accepted;
  sockaddr_storage peer{}, local{};

  Connected(const std::string& listen_address, const std::string& connect_address,
            const std::string& client_address = "") {
    auto bound = storage_of(listen_address);
    listener.reset(::socket(bound.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listener || ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&bound), sizeof bound) != 0) return;
    require(::listen(listener.get(), 1) == 0, "listen");
    socklen_t length = sizeof bound;
    ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    sockaddr_in v4;
    std::memcpy(&v4, &bound, sizeof v4);  // the port is at the same place in both families
    const auto target = storage_of(connect_address, ntohs(v4.sin_port));
    client.reset(::socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!client_address.empty()) {
      const auto own = storage_of(client_address);
      require(::bind(client.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) == 0, "bind");
    }
    require(::connect(client.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0, "connect");
    length = sizeof peer;
    accepted.reset(::accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC));
    length = sizeof local;
    ::getsockname(accepted.get(), reinterpret_cast<sockaddr*>(&local), &length);
  }
};

TEST(StoreAccess, FindsOurOwnConnectionsInEveryFamily) {
  const AccessControl access({});
  const struct {
    const char *listen, *connect;
  } cases[] = {{"127.0.0.1", "127.0.0.1"}, {"0.0.0.0", "127.3.4.5"},   {"::1", "::1"},
               {"::", "127.0.0.1"},        {"::", "::ffff:127.0.0.1"}, {"127.0.0.1", "::ffff:127.0.0.1"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.listen) + " from " + c.connect);
    const Connected connected(c.listen, c.connect);
    if (!connected.accepted) continue;  // a host without IPv6
    EXPECT_EQ(access.refusal(connected.peer, connected.local), std::nullopt);
  }
}

// The kernel reports such a socket as root's, whoever it was.
TEST(StoreAccess, ClosedConnectionBelongsToNobody) {
  Connected connected("127.0.0.1", "127.0.0.1");
  connected.client.reset();
  EXPECT_THAT(AccessControl({}).refusal(connected.peer, connected.local).value(),
              HasSubstr("whose process has closed it already"));
  EXPECT_EQ(AccessControl(AllowList::parse({"any"})).refusal(connected.peer, connected.local), std::nullopt);
}

// The kernel's look-up falls back to a listening socket on the port of the connection that is gone.
TEST(StoreAccess, OurListenerOnThePeersPortAdmitsNobody) {
  Connected connected("127.0.0.1", "127.0.0.1", "127.7.7.7");  // an address that nobody else takes the port on
  sockaddr_in peer;
  std::memcpy(&peer, &connected.peer, sizeof peer);
  const linger reset{1, 0};
  ::setsockopt(connected.client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  connected.client.reset();
  base::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  require(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0, "bind");
  require(::listen(listener.get(), 1) == 0, "listen");
  EXPECT_THAT(AccessControl({}).refusal(connected.peer, connected.local).value(),
              HasSubstr("whose process has closed it already"));
}

TEST(StoreAccess, StrangerFromElsewhereIsRefused) {
  EXPECT_THAT(AccessControl({}).refusal(storage_of("192.0.2.1", 999), storage_of("127.0.0.1", 29400)).value(),
              HasSubstr("neither this host"));
  EXPECT_EQ(AccessControl(AllowList::parse({"192.0.2.0/24"})).refusal(storage_of("192.0.2.1"), storage_of("127.0.0.1")),
            std::nullopt);
}

TEST(StoreAccess, AddressesOfARoundAreForgottenWithIt) {
  const auto here = storage_of("192.0.2.1", 29400);
  const auto first = storage_of("192.0.2.7", 4000), second = storage_of("192.0.2.8", 4000);
  AccessControl access(AllowList::parse({"198.51.100.0/24"}));
  EXPECT_TRUE(access.refusal(first, here));
  access.begin_round({base::address_of(first)});
  EXPECT_EQ(access.refusal(first, here), std::nullopt);
  EXPECT_TRUE(access.refusal(second, here));
  access.begin_round({base::address_of(second)});
  EXPECT_TRUE(access.refusal(first, here));
  EXPECT_EQ(access.refusal(second, here), std::nullopt);
  EXPECT_EQ(access.refusal(storage_of("198.51.100.9", 4000), here), std::nullopt) << "the user's stay";
}

TEST(StoreAccess, AddressesOfARoundDoNotAdmitOtherUsersOfThisHost) {
  const auto stranger = storage_of("127.0.0.1", 999);
  AccessControl access({});
  access.begin_round({base::address_of(stranger)});
  EXPECT_TRUE(access.refusal(stranger, storage_of("127.0.0.1", 29400)));
}

TEST(StoreAccess, AddressesAnnouncedLaterMayConnect) {
  const auto peer = storage_of("192.0.2.7", 4000), local = storage_of("192.0.2.1", 29400);
  AccessControl access(AllowList::parse({}));
  EXPECT_TRUE(access.refusal(peer, local));
  access.allow(AllowList::parse({"192.0.2.7", "192.0.2.7"}));
  EXPECT_EQ(access.refusal(peer, local), std::nullopt);
  EXPECT_TRUE(access.refusal(storage_of("192.0.2.8", 4000), local));
}

}  // namespace
}  // namespace ddp::store
