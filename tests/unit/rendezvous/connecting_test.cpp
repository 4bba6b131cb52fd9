// One attempt to reach the endpoint, on loopback: what its outcome says, its deadlines, and that it ends for good.
#include "rendezvous/link/connecting.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::rendezvous {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using How = Session::How;

constexpr auto kShort = 50ms;  // of a deadline that is to pass

class ConnectingTest : public ::testing::Test {
 protected:
  // Runs the loop until `condition`; false at the deadline.
  template <class Condition>
  bool run_until(Condition condition) {
    const auto deadline = store::patience();
    io.restart();
    while (!condition() && io.run_one_until(deadline) == 1) {
    }
    return condition();
  }

  static Connecting::Options options(std::chrono::milliseconds limit = store::kPatience) {
    Connecting::Options out;
    out.limit = limit;
    return out;
  }

  void connect(const Session::Target& to, Connecting::Options what = options()) {
    attempt.emplace(io, addresses, to, std::move(what),
                    [this](Connecting::Outcome outcome) { outcomes.push_back(std::move(outcome)); });
  }

  // The other side of the attempt's connection.
  store::RawSocket accept(store::RawListener& listener) {
    EXPECT_TRUE(run_until([&] {
      pollfd waiting{listener.fd(), POLLIN, 0};
      return ::poll(&waiting, 1, 0) == 1;
    }));
    return listener.accept();
  }

  // The outcome of the only attempt that has one, if it failed.
  const Unreached* failure() const {
    return outcomes.size() == 1 ? std::get_if<Unreached>(&outcomes.front()) : nullptr;
  }

  // Runs what is left of an attempt that has ended.
  void drain() {
    io.restart();
    io.poll();
  }

  void use(EndpointName name) {
    endpoint = std::move(name);
    attempt.reset();
    addresses_.emplace(io, endpoint);
  }

  asio::io_context io;
  EndpointName endpoint{"127.0.0.1", 29400};
  std::optional<EndpointAddresses> addresses_{std::in_place, io, endpoint};
  EndpointAddresses& addresses = *addresses_;
  std::optional<Connecting> attempt;
  std::vector<Connecting::Outcome> outcomes;
};

// Answers as an endpoint does. It hears nothing.
class Endpoint {
 public:
  Endpoint(asio::io_context& io, const store::RawSocket& socket)
      : channel_(io, base::UniqueFd(::fcntl(socket.fd(), F_DUPFD_CLOEXEC, 3)), Channel::Side::server, {},
                 {{}, {}, [this](const Channel::Closed&) { is_closed = true; }}) {}

  void send(const std::string& text) { channel_.send(text); }
  bool is_closed = false;

 private:
  Channel channel_;
};

// The kernel drops what comes: the queue is full.
class FullListener {
 public:
  FullListener() {
    store::require(::listen(listener_.fd(), 0) == 0, "listen");
    const auto address = store::loopback(port());
    for (auto& socket : queued_) {
      ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
      ::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
  }

  std::uint16_t port() const { return listener_.port(); }

 private:
  store::RawListener listener_;
  store::RawSocket queued_[2]{store::RawSocket::unconnected(), store::RawSocket::unconnected()};
};

TEST_F(ConnectingTest, HandsOverAnOpenChannel) {
  store::RawListener listener;
  connect({"127.0.0.1", listener.port()});
  Endpoint there(io, accept(listener));
  there.send("first");
  std::vector<std::string> heard;
  ASSERT_TRUE(run_until([&] { return !outcomes.empty(); }));
  auto* reached = std::get_if<Reached>(&outcomes.front());
  ASSERT_NE(reached, nullptr);
  EXPECT_EQ(reached->peer, "127.0.0.1");
  EXPECT_TRUE(reached->duplicate);
  reached->channel->hand_over({{}, [&](std::string_view text) { heard.emplace_back(text); }, {}});
  EXPECT_TRUE(run_until([&] { return !heard.empty(); }));
  EXPECT_EQ(heard.front(), "first");
}

TEST_F(ConnectingTest, SaysThatAPortRefuses) {
  store::RawListener nobody(false);
  connect({"127.0.0.1", nobody.port()});
  EXPECT_TRUE(outcomes.empty()) << "the outcome comes later";
  ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
  EXPECT_EQ(failure()->how, How::refused);
  EXPECT_EQ(failure()->why, "Connection refused (127.0.0.1)");
  EXPECT_FALSE(failure()->is_host_unknown);
}

TEST_F(ConnectingTest, FindsThePortOfANamedEndpoint) {
  store::RawListener listener;
  use({"localhost", static_cast<std::uint16_t>(listener.port() - 2), 3});
  connect({"", 2});
  Endpoint there(io, accept(listener));  // ::1 may refuse before
  EXPECT_THAT(addresses.texts(), ::testing::Contains("127.0.0.1"));
  ASSERT_TRUE(run_until([&] { return !outcomes.empty(); }));
  EXPECT_NE(std::get_if<Reached>(&outcomes.front()), nullptr);
}

TEST_F(ConnectingTest, SaysThatANameLeadsNowhere) {
  use({"name.invalid", 29400});
  connect({});
  ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
  EXPECT_TRUE(failure()->is_host_unknown);
  EXPECT_THAT(failure()->why, HasSubstr("name.invalid"));
}

TEST_F(ConnectingTest, AnswerOfALookUpThatWasGivenUpIsForTheNextAttempt) {
  store::RawListener listener;
  use({"127.0.0.1", listener.port()});
  connect({});
  // The answer is there, and the attempt ends before the attempt hears of that.
  ASSERT_TRUE(run_until([&] { return addresses.has_answer(); }));
  attempt.reset();
  drain();
  EXPECT_TRUE(addresses.has_answer());
  EXPECT_TRUE(outcomes.empty());
  connect({});
  Endpoint there(io, accept(listener));
  ASSERT_TRUE(run_until([&] { return !outcomes.empty(); }));
  EXPECT_NE(std::get_if<Reached>(&outcomes.front()), nullptr);
}

TEST_F(ConnectingTest, StopsWaitingForAnAddressAtTheDeadline) {
  const FullListener listener;
  connect({"127.0.0.1", listener.port()}, options(kShort));
  ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
  EXPECT_EQ(failure()->how, How::silent);
  EXPECT_EQ(failure()->why, "Connection timed out (127.0.0.1)");
}

TEST_F(ConnectingTest, StopsWaitingForTheHandshakesAtTheirDeadline) {
  store::RawListener listener;
  auto what = options();
  what.channel.handshake_timeout = kShort;
  connect({"127.0.0.1", listener.port()}, std::move(what));
  const auto mute = accept(listener);
  ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
  EXPECT_EQ(failure()->how, How::silent);
  EXPECT_EQ(failure()->why, "it has been silent for too long (127.0.0.1)");
}

TEST_F(ConnectingTest, TellsAStrangerFromAnEndpointThatHasGone) {
  for (const bool speaks : {true, false}) {
    SCOPED_TRACE(speaks);
    outcomes.clear();
    store::RawListener listener;
    connect({"127.0.0.1", listener.port()});
    {
      auto there = accept(listener);
      if (speaks) {
        there.send("220 mail.example.org\r\n\r\n");
        run_until([&] { return failure() != nullptr; });
      }
    }
    ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
    EXPECT_EQ(failure()->is_stranger, speaks);
    EXPECT_EQ(failure()->how, speaks ? How::silent : How::closed);
  }
}

// --- the end of an attempt ---

TEST_F(ConnectingTest, LeavesNothingInTheLoopIfItEndsWhileItConnects) {
  const FullListener listener;
  connect({"127.0.0.1", listener.port()});
  drain();
  EXPECT_FALSE(io.stopped()) << "it waits";
  attempt.reset();
  drain();
  EXPECT_TRUE(io.stopped());
  EXPECT_TRUE(outcomes.empty());
}

TEST_F(ConnectingTest, TriesNoOtherAddressAfterItsEnd) {
  const FullListener silent;
  auto other = store::loopback(silent.port(), INADDR_LOOPBACK + 1);
  const auto listener = store::RawSocket::unconnected();
  store::require(::bind(listener.fd(), reinterpret_cast<const sockaddr*>(&other), sizeof other) == 0, "bind");
  store::require(::listen(listener.fd(), 1) == 0, "listen");
  Resolved both;
  both.addresses.push_back(base::socket_address(base::parse_address("127.0.0.1").value(), silent.port()));
  both.addresses.push_back(base::socket_address(base::parse_address("127.0.0.2").value(), silent.port()));
  const auto resolve_at_once = [both](asio::io_context& loop, const Wanted&, const auto& done) {
    asio::post(loop, [both, done] { done(both); });
    return std::make_shared<int>();
  };
  addresses_.emplace(io, EndpointName{"endpoint", silent.port()}, resolve_at_once);
  connect({});
  drain();
  EXPECT_EQ(addresses.texts().size(), 2u);
  EXPECT_FALSE(io.stopped()) << "it waits for the first address";
  attempt.reset();
  drain();
  EXPECT_TRUE(io.stopped()) << "nothing of the attempt is left in the loop";
  pollfd came{listener.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&came, 1, 0), 0);
}

TEST_F(ConnectingTest, ClosesItsSocketIfItEndsDuringTheHandshakes) {
  store::RawListener listener;
  connect({"127.0.0.1", listener.port()});
  auto there = accept(listener);
  drain();
  attempt.reset();
  drain();
  EXPECT_TRUE(io.stopped()) << "nothing of the attempt is left in the loop";
  there.receive(1u << 16);  // until the other side hangs up
  EXPECT_TRUE(there.is_hung_up());
  EXPECT_TRUE(outcomes.empty());
}

TEST_F(ConnectingTest, SaysNothingIfItEndsWhereverItWaits) {
  store::RawListener listener;
  use({"127.0.0.1", listener.port()});
  for (std::size_t steps = 0;; ++steps) {  // of the loop, before the end
    SCOPED_TRACE(steps);
    ASSERT_LT(steps, 100u);
    connect({});
    std::optional<Endpoint> there;
    for (std::size_t i = 0; i < steps && outcomes.empty(); ++i) {
      io.restart();
      ASSERT_EQ(io.run_one_for(store::kPatience), 1u);
      if (pollfd came{listener.fd(), POLLIN, 0}; ::poll(&came, 1, 0) == 1) there.emplace(io, listener.accept());
    }
    attempt.reset();
    if (!outcomes.empty()) break;
    there.reset();
    drain();
    EXPECT_TRUE(outcomes.empty());
    addresses.forget();
  }
  EXPECT_EQ(outcomes.size(), 1u);
}

TEST_F(ConnectingTest, OnlyTheAttemptThatIsMadeLastHasAnOutcome) {
  store::RawListener mute, nobody(false);
  for (int i = 0; i < 3; ++i) connect({"127.0.0.1", mute.port()});
  connect({"127.0.0.1", nobody.port()});
  ASSERT_TRUE(run_until([&] { return failure() != nullptr; }));
  EXPECT_EQ(failure()->how, How::refused);
  drain();
  EXPECT_EQ(outcomes.size(), 1u);
}

TEST_F(ConnectingTest, MayEndWithItsLoop) {
  store::RawListener listener;
  for (int steps = 0; steps < 4; ++steps) {
    SCOPED_TRACE(steps);
    asio::io_context loop;
    EndpointAddresses there(loop, {"127.0.0.1", listener.port()});
    const Connecting last(loop, there, {"127.0.0.1", listener.port()}, options(), [](const auto&) { FAIL(); });
    for (int i = 0; i < steps; ++i) loop.poll_one();
  }
}

}  // namespace
}  // namespace ddp::rendezvous
