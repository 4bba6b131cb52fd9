#include "rendezvous/port/port.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <cerrno>
#include <map>

#include <boost/asio/io_context.hpp>

#include "base/address.hpp"
#include "ddp/error.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace {

bool next_accept_is_aborted = false;
int lost_races = 0;  // that listen() is still to lose

}  // namespace

// Stands before the system's own: a peer that is gone before it is accepted can't be had on loopback.
extern "C" int accept4(int fd, sockaddr* address, socklen_t* length, int flags) {
  using Function = int (*)(int, sockaddr*, socklen_t*, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "accept4"));
  if (!std::exchange(next_accept_is_aborted, false)) return real(fd, address, length, flags);
  errno = ECONNABORTED;
  return -1;
}

// So do two that listen on one port at the same moment and are both refused.
extern "C" int listen(int fd, int backlog) {
  using Function = int (*)(int, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "listen"));
  if (lost_races == 0) return real(fd, backlog);
  --lost_races;
  errno = EADDRINUSE;
  return -1;
}

namespace ddp::port {
namespace {

using namespace std::chrono_literals;
using store::kPatience;
using store::RawListener;
using store::RawSocket;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kLocal = "127.0.0.1";

// A port whose loop runs in steps, and what came to its handlers.
class PortTest : public ::testing::Test {
 protected:
  void listen(PortOptions options = {}, const std::string& served = "store http tls") {
    if (options.addresses.empty()) options.addresses = {kLocal};
    options.warn = [this](const base::Warning& warning) { warnings_.push_back(warning.text); };
    const auto handler = [&](const std::string& name) -> Handler {
      if (served.find(name) == std::string::npos) return {};
      return [this, name](base::UniqueFd socket, const sockaddr_storage& peer) {
        came_.push_back(name + " from " + base::address_of(peer).text());
        sockets_.push_back(std::move(socket));
      };
    };
    port_ = std::make_unique<Port>(io_, options, Handlers{handler("store"), handler("http"), handler("tls")});
  }

  // Runs the loop until this is so.
  template <class Condition>
  bool run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!condition() && std::chrono::steady_clock::now() < end) io_.run_one_until(end);
    return condition();
  }
  bool run_until_came(std::size_t count) {
    return run_until([&] { return came_.size() == count; });
  }
  bool run_until_warned(std::size_t count) {
    return run_until([&] { return warnings_.size() == count; });
  }

  RawSocket client(const std::string& bytes = "") {
    auto socket = RawSocket::connected(port_->number());
    socket.send(bytes);
    return socket;
  }

  // As many at once as the port doesn't take in in one turn.
  std::vector<RawSocket> burst() {
    std::vector<RawSocket> out;
    for (int i = 0; i < 100; ++i) out.push_back(client("G"));
    return out;
  }

  void run_one_turn() {
    EXPECT_TRUE(run_until([this] { return !came_.empty(); }));
  }

  // In the kernel's queue.
  bool is_anyone_queued() const {
    pollfd listener{port_->descriptors().front(), POLLIN, 0};
    return ::poll(&listener, 1, 0) == 1;
  }

  boost::asio::io_context io_;
  std::vector<std::string> warnings_, came_;
  std::vector<base::UniqueFd> sockets_;  // handed over
  std::unique_ptr<Port> port_;
};

std::string peek(const base::UniqueFd& socket) {
  char bytes[16];
  const auto count = ::recv(socket.get(), bytes, sizeof bytes, MSG_PEEK);
  return count < 0 ? "" : std::string(bytes, static_cast<std::size_t>(count));
}

TEST_F(PortTest, FirstByteSaysWhoServes) {
  listen();
  const auto store = client(std::string("\0\xce", 2));
  EXPECT_TRUE(run_until_came(1));
  const auto tls = client("\x16\x03\x01");
  EXPECT_TRUE(run_until_came(2));
  const auto http = client("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(run_until_came(3));
  EXPECT_THAT(came_, ElementsAre("store from 127.0.0.1", "tls from 127.0.0.1", "http from 127.0.0.1"));
  EXPECT_EQ(peek(sockets_[0]), std::string("\0\xce", 2));  // nothing was taken
  EXPECT_EQ(peek(sockets_[2]), "GET / HTTP/1.1\r\n");
  for (const auto& socket : sockets_) {
    EXPECT_TRUE(::fcntl(socket.get(), F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(::fcntl(socket.get(), F_GETFD) & FD_CLOEXEC);
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PortTest, FirstByteMayComeLater) {
  listen();
  auto late = client();
  const auto quick = client("G");  // accepted after the other
  EXPECT_TRUE(run_until_came(1));
  EXPECT_THAT(came_, ElementsAre("http from 127.0.0.1"));
  late.send(std::string(1, '\0'));
  EXPECT_TRUE(run_until_came(2));
  EXPECT_EQ(came_.back(), "store from 127.0.0.1");
}

TEST_F(PortTest, UnservedProtocolsAreTurnedAwayByName) {
  listen({}, "store");
  const struct {
    const char* what;
    std::string bytes;
    const char* want;
  } cases[] = {{"TLS", "\x16", "turned away a TLS client from 127.0.0.1"},
               {"HTTP", "POST", "turned away an HTTP client from 127.0.0.1"},
               {"older store", "\x07", "(its first byte is 0x07)"}};
  std::size_t count = 0;
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    auto socket = client(c.bytes);
    EXPECT_TRUE(run_until_warned(++count));
    EXPECT_THAT(warnings_.back(), AllOf(HasSubstr(c.want), HasSubstr("port " + std::to_string(port_->number()))));
    EXPECT_TRUE(socket.is_hung_up());
  }
  EXPECT_THAT(came_, IsEmpty());
}

TEST_F(PortTest, SilentPeerIsCutOff) {
  listen({.first_byte_limit = 1ms});
  auto silent = client();
  EXPECT_TRUE(run_until_warned(1));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("from 127.0.0.1: it said nothing for too long")));
  EXPECT_TRUE(silent.is_hung_up());
}

TEST_F(PortTest, SomebodyWhoOnlyTriesThePortIsNoNews) {
  listen();
  client().close();  // before the port looks
  auto watched = client();
  const auto speaks = client("G");
  EXPECT_TRUE(run_until_came(1));
  watched.close();
  const auto again = client("G");
  EXPECT_TRUE(run_until_came(2));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PortTest, SilentPeersBeyondTheBoundMakeRoomOldestFirst) {
  listen({.silent_count_max = 2});
  auto first = client();
  auto second = client();
  auto third = client();
  EXPECT_TRUE(run_until_warned(1));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("2 connections have not said")));
  EXPECT_TRUE(first.is_hung_up());
  second.send("G");
  third.send("G");
  EXPECT_TRUE(run_until_came(2));
}

TEST_F(PortTest, DropPendingClosesWhatNobodyHasYet) {
  listen();
  auto silent = client();
  const auto served = client("G");
  EXPECT_TRUE(run_until_came(1));
  next_accept_is_aborted = true;  // one that has gone stands before it
  auto queued = client(std::string(1, '\0'));
  port_->drop_pending();
  EXPECT_TRUE(silent.is_hung_up());
  EXPECT_TRUE(queued.is_hung_up());
  const auto next = client("G");
  EXPECT_TRUE(run_until_came(2));
  EXPECT_THAT(came_, ElementsAre("http from 127.0.0.1", "http from 127.0.0.1"));
}

TEST_F(PortTest, KernelQueueIsEmptiedBeforeOthersGetTheirTurn) {
  listen();
  const auto clients = burst();
  run_one_turn();
  EXPECT_LT(came_.size(), clients.size());
  EXPECT_FALSE(is_anyone_queued());
  EXPECT_TRUE(run_until_came(clients.size()));
}

TEST_F(PortTest, AcceptedConnectionsAreBounded) {
  listen({.accepted_count_max = 2});
  const auto clients = burst();
  run_one_turn();
  EXPECT_EQ(came_.size(), 2u);
  EXPECT_TRUE(is_anyone_queued());
  EXPECT_TRUE(run_until_came(clients.size()));
}

TEST_F(PortTest, DropPendingClosesAcceptedConnectionsToo) {
  listen();
  auto clients = burst();
  run_one_turn();
  port_->drop_pending();
  EXPECT_TRUE(clients.back().is_hung_up());
  const auto served = came_.size();
  const auto next = client("G");
  EXPECT_TRUE(run_until_came(served + 1));
}

TEST_F(PortTest, StoppedPortClosesAcceptedConnections) {
  listen();
  auto clients = burst();
  run_one_turn();
  port_->stop();
  EXPECT_TRUE(clients.back().is_hung_up());
}

TEST_F(PortTest, HandlerMayStopThePort) {
  Port* port = nullptr;
  Port stopping(io_, {.addresses = {kLocal}},
                {.http = [&port](base::UniqueFd, const sockaddr_storage&) { port->stop(); }});
  port = &stopping;
  const auto silent = RawSocket::connected(stopping.number());
  auto speaks = RawSocket::connected(stopping.number());
  speaks.send("G");
  EXPECT_TRUE((io_.run_for(kPatience), io_.stopped()));  // it has no work left
}

TEST_F(PortTest, TakenPortIsNamed) {
  listen();
  try {
    const Port second(io_, {.addresses = {kLocal}, .first = port_->number(), .last = port_->number()}, {});
    ADD_FAILURE() << "bound twice";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(port_->number()) + ": "),
                                    HasSubstr("Address already in use")));
  }
  EXPECT_THROW(Port(io_, {.addresses = {"localhost"}}, {}), InvalidArgument);
  EXPECT_THROW(Port(io_, {.first = 2, .last = 1}, {}), InvalidArgument);
  EXPECT_THROW(Port(io_, {.addresses = {"192.0.2.1"}}, {}), Error);  // an address of nobody's
}

TEST_F(PortTest, ARaceForItIsRunAgain) {
  lost_races = 3;
  listen();
  EXPECT_EQ(lost_races, 0);
  const auto client = this->client(std::string(1, '\0'));
  EXPECT_TRUE(run_until_came(1));
}

TEST_F(PortTest, RangeTakesTheFirstFreeOne) {
  listen();
  const auto taken = port_->number();
  if (taken > 65'000) GTEST_SKIP() << "no room above port " << taken;
  const Port next(io_, {.addresses = {kLocal}, .first = taken, .last = static_cast<std::uint16_t>(taken + 500)}, {});
  EXPECT_GT(next.number(), taken);
  EXPECT_LE(next.number(), taken + 500);
}

TEST_F(PortTest, SeveralAddressesShareOnePort) {
  listen({.addresses = {kLocal, "127.0.0.2"}});
  auto first = client("G");
  auto second = RawSocket::unconnected();
  const auto other = store::loopback(port_->number(), 0x7f000002);
  EXPECT_EQ(::connect(second.fd(), reinterpret_cast<const sockaddr*>(&other), sizeof other), 0);
  second.send("G");
  EXPECT_TRUE(run_until_came(2));
}

TEST_F(PortTest, WithoutAnAddressItListensOnAllOfBothFamilies) {
  port_ =
      std::make_unique<Port>(io_, PortOptions{}, Handlers{.http = [this](base::UniqueFd, const sockaddr_storage& peer) {
                               came_.push_back(base::address_of(peer).text());
                             }});
  const auto v4 = client("G");
  EXPECT_TRUE(run_until_came(1));
  EXPECT_THAT(came_, ElementsAre("127.0.0.1"));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = IN6ADDR_LOOPBACK_INIT;
  address.sin6_port = htons(port_->number());
  RawSocket v6(base::UniqueFd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  if (::connect(v6.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    GTEST_SKIP() << "no IPv6 here, errno " << errno;
  v6.send("G");
  EXPECT_TRUE(run_until_came(2));
  EXPECT_EQ(came_.back(), "::1");
}

TEST_F(PortTest, DoesNotSpinWhenDescriptorsRunOut) {
  listen();
  auto socket = RawSocket::unconnected();
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit none{1, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &none);
  socket.connect(port_->number());
  const auto handlers_run = io_.run_for(350ms);
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(warnings_, AllOf(Not(IsEmpty()), Each(HasSubstr("Too many open files"))));
  EXPECT_GE(handlers_run, 1u);
  EXPECT_LE(handlers_run, 10u);
  socket.send("G");
  EXPECT_TRUE(run_until_came(1));
}

}  // namespace
}  // namespace ddp::port
