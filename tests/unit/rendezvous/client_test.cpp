// The client against a scripted peer; against the real server see server_test.cpp.
#include "rendezvous/store/client.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <future>
#include <thread>

#include "tests/no_threads.hpp"
#include "tests/unit/rendezvous/golden.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace {

std::atomic<int> signals_of_resolver{-1};  // whether the thread that looked up kNobodysHost takes SIGUSR1
const char* const kNobodysHost = "nobody.invalid";

}  // namespace

// Stands before the system's own, so that no test asks a name server.
extern "C" int getaddrinfo(const char* host, const char* port, const addrinfo* hints, addrinfo** list) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (std::string(host) != kNobodysHost || (hints->ai_flags & AI_NUMERICHOST) != 0)
    return real(host, port, hints, list);
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  signals_of_resolver = ::sigismember(&blocked, SIGUSR1) == 0 ? 1 : 0;
  return EAI_NONAME;
}

namespace ddp::store {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

TimePoint in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

std::string nonce() { return encode_nonce(static_cast<std::uint32_t>(::getpid())); }
const std::string kHandshakeEnd = kGoldenValidate + "\x0d" + nonce();

// Answers the handshake, as a server of PyTorch does.
void shake_hands(RawSocket& socket) {
  EXPECT_EQ(socket.receive(kHandshakeEnd.size()), kHandshakeEnd);
  socket.send(nonce());
}

// A peer in a thread of its own that runs a script for the first connection.
class Peer {
 public:
  explicit Peer(std::function<void(RawSocket&)> script)
      : thread_([this, script = std::move(script)] {
          auto socket = listener_.accept();
          shake_hands(socket);
          script(socket);
        }) {}
  ~Peer() { thread_.join(); }

  Client client() { return Client::connect({.host = "127.0.0.1", .port = listener_.port(), .deadline = patience()}); }

 private:
  RawListener listener_;
  std::thread thread_;
};

template <class Exception, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another exception: ") + error.what();
  }
  return "no exception";
}

TEST(StoreClient, SpeaksEachCommandAsPyTorchDoes) {
  const auto golden = [](const std::string& what) {
    for (const auto& exchange : golden_session()) {
      if (exchange.what == what) return exchange;
    }
    throw std::runtime_error("no such exchange: " + what);
  };
  const struct {
    std::vector<std::string> exchanges;
    std::function<void(Client&)> call;
  } cases[] = {
      {{"set"}, [](Client& c) { c.set("/k", "v", patience()); }},
      {{"wait, key is there", "get"}, [](Client& c) { EXPECT_EQ(c.get("/k", patience()), "v"); }},
      {{"add"}, [](Client& c) { EXPECT_EQ(c.add("/n", 5, patience()), 5); }},
      {{"check"},
       [](Client& c) {
         EXPECT_FALSE(c.check({"/k", "/zz"}, patience()));
       }},
      {{"wait for both"},
       [](Client& c) {
         c.wait({"/a", "/b"}, patience());
       }},
      {{"wait, key is missing", "cancel_wait"},
       [](Client& c) { EXPECT_THROW(c.wait({"/nope"}, in(20ms)), TimeoutError); }},
      {{"compare_set"}, [](Client& c) { EXPECT_EQ(c.compare_set("/k", "v", "w", patience()), "w"); }},
      {{"compare_set, key is missing"}, [](Client& c) { EXPECT_EQ(c.compare_set("/q2", "", "w", patience()), "w"); }},
      {{"num_keys"}, [](Client& c) { EXPECT_EQ(c.key_count(patience()), 3); }},
      {{"delete"}, [](Client& c) { EXPECT_TRUE(c.remove("/k", patience())); }},
      {{"append"}, [](Client& c) { c.append("/k", "abc", patience()); }},
      {{"multi_set"},
       [](Client& c) {
         c.multi_set({{"/a", "1"}, {"/b", "2"}}, patience());
       }},
      {{"wait for both", "multi_get"},
       [](Client& c) {
         EXPECT_EQ(c.multi_get({"/a", "/b"}, patience()), (std::vector<std::string>{"1", "2"}));
       }},
      {{"queue_push"}, [](Client& c) { c.queue_push("/Q", "x", patience()); }},
      {{"queue_len"}, [](Client& c) { EXPECT_EQ(c.queue_length("/Q", patience()), 1); }},
      {{"wait for the queue", "queue_pop"}, [](Client& c) { EXPECT_EQ(c.queue_pop("/Q", patience()), "x"); }},
      {{"list_keys"}, [](Client& c) { EXPECT_EQ(c.list_keys(patience()).size(), 5u); }},
      {{"barrier of one"}, [](Client& c) { c.barrier("/bb", 1, patience()); }},
      {{"barrier of two, one is missing", "cancel_wait of the barrier"},
       [](Client& c) { EXPECT_THROW(c.barrier("/bb2", 2, in(20ms)), TimeoutError); }},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.exchanges.front());
    Peer peer([&](RawSocket& socket) {
      for (const auto& what : c.exchanges) {
        const auto exchange = golden(what);
        EXPECT_EQ(socket.receive(exchange.sent.size()), exchange.sent);
        socket.send(exchange.answered);
      }
      EXPECT_TRUE(socket.is_hung_up());  // nothing more came
    });
    auto client = peer.client();
    c.call(client);
  }
}

TEST(StoreClient, AnswersMayComeByteByByte) {
  Peer peer([](RawSocket& socket) {
    socket.receive(encode(command::Wait{{"k"}}).size());
    socket.send("\0"s);
    socket.receive(encode(command::Get{"k"}).size());
    for (const char byte : encode_value("some value")) socket.send({byte});
  });
  auto client = peer.client();
  EXPECT_EQ(client.get("k", patience()), "some value");
}

TEST(StoreClient, ConnectTriesAgainAfterRefusalAndHangUp) {
  RawListener listener;
  std::thread peer([&listener] {
    for (int i = 0; i < 3; ++i) listener.accept().close();
    auto socket = listener.accept();
    shake_hands(socket);
    EXPECT_EQ(socket.receive(1), "\x07");
    socket.send(encode_integer(42));
  });
  auto client = Client::connect({.host = "localhost", .port = listener.port(), .deadline = patience()});
  EXPECT_EQ(client.key_count(patience()), 42);
  peer.join();
}

TEST(StoreClient, ConnectGivesUpAtItsDeadlineWithTheLastReason) {
  const RawListener deaf(false);
  EXPECT_THAT(message_of<TimeoutError>(
                  [&] { Client::connect({.host = "127.0.0.1", .port = deaf.port(), .deadline = in(500ms)}); }),
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(deaf.port())), HasSubstr("Connection refused")));
  const RawListener silent;  // the kernel connects, nobody answers
  EXPECT_THAT(message_of<TimeoutError>(
                  [&] { Client::connect({.host = "127.0.0.1", .port = silent.port(), .deadline = in(500ms)}); }),
              HasSubstr("no answer from the store"));
  EXPECT_THAT(
      message_of<TimeoutError>([&] { Client::connect({.host = "::1", .port = deaf.port(), .deadline = TimePoint{}}); }),
      HasSubstr("[::1]:"));
}

TEST(StoreClient, ConnectTriesOnceWhereItIsToldSo) {
  const RawListener deaf(false);
  const auto connect_to = [](std::uint16_t port) {
    Client::connect({.host = "127.0.0.1", .port = port, .deadline = patience(), .tries_once = true});
  };
  EXPECT_EQ(message_of<StoreError>([&] { connect_to(deaf.port()); }), "Connection refused");
  RawListener listener;
  std::thread peer([&listener] { listener.accept().close(); });
  EXPECT_THAT(message_of<StoreError>([&] { connect_to(listener.port()); }), HasSubstr("hung up during the handshake"));
  peer.join();
}

TEST(StoreClient, PeerThatIsNoStoreEndsConnectAtOnce) {
  RawListener listener;
  std::thread peer([&listener] {
    auto socket = listener.accept();
    socket.receive(kHandshakeEnd.size());
    socket.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    EXPECT_TRUE(socket.is_hung_up());
  });
  EXPECT_THAT(message_of<StoreError>(
                  [&] { Client::connect({.host = "127.0.0.1", .port = listener.port(), .deadline = in(1h)}); }),
              HasSubstr("no PyTorch-compatible store"));
  peer.join();
}

TEST(StoreClient, WaitThatIsFulfilledTooLateStillTimesOut) {
  Peer peer([](RawSocket& socket) {
    socket.receive(encode(command::Wait{{"k"}}).size());
    EXPECT_EQ(socket.receive(1), "\x0c");
    socket.send("\0\x01"s);
    EXPECT_EQ(socket.receive(1), "\x07");
    socket.send(encode_integer(7));
  });
  auto client = peer.client();
  EXPECT_THAT(message_of<TimeoutError>([&] { client.wait({"k"}, in(20ms)); }),
              AllOf(HasSubstr("\"k\""), HasSubstr(" ms")));
  EXPECT_EQ(client.key_count(patience()), 7);
}

TEST(StoreClient, TimeoutNamesEightKeysAndCountsTheRest) {
  Peer peer([](RawSocket& socket) {
    socket.receive(encode(command::Wait{std::vector<std::string>(10, "k0")}).size());
    EXPECT_EQ(socket.receive(1), "\x0c");
    socket.send("\x01");
  });
  auto client = peer.client();
  const std::vector<std::string> keys = {"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "k8", "k9"};
  EXPECT_THAT(message_of<TimeoutError>([&] { client.wait(keys, in(20ms)); }), HasSubstr("\"k7\" and 2 more"));
}

TEST(StoreClient, BrokenConnectionIsReportedAndStaysClosed) {
  const struct {
    const char* what;
    std::string answer;
    const char* want;
  } cases[] = {{"closed before the answer", "", "closed the connection"},
               {"closed inside it", encode_value("12345").substr(0, 10), "closed the connection"},
               {"too long", encode_integer(std::int64_t{1} << 40), "announced a value of 1099511627776 bytes"},
               {"negative", encode_integer(-1), "announced a value of 18446744073709551615 bytes"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    Peer peer([&c](RawSocket& socket) {
      socket.receive(encode(command::CompareSet{"k", "", ""}).size());
      socket.send(c.answer);
    });
    auto client = peer.client();
    EXPECT_THAT(message_of<StoreError>([&] { client.compare_set("k", "", "", patience()); }), HasSubstr(c.want));
    EXPECT_THAT(message_of<StoreError>([&] { client.set("k", "", patience()); }), HasSubstr("earlier error"));
  }
}

TEST(StoreClient, WritingToADeadPeerRaisesNoSignal) {
  auto client = std::invoke([] {
    Peer peer([](RawSocket&) {});
    return peer.client();
  });
  const std::string value(1 << 20, 'v');
  EXPECT_THROW(while (true) client.set("k", value, patience()), StoreError);
}

TEST(StoreClient, SilentPeerEndsTheCallAtItsDeadline) {
  std::promise<void> done;
  Peer peer([finished = done.get_future().share()](RawSocket&) { finished.wait_for(kPatience); });
  auto client = peer.client();
  EXPECT_THAT(message_of<TimeoutError>([&] { client.key_count(in(20ms)); }), HasSubstr("no answer from the store"));
  EXPECT_THAT(message_of<StoreError>([&] { client.key_count(patience()); }), HasSubstr("earlier error"));
  done.set_value();
}

TEST(StoreClient, WrongUseIsFoundBeforeAnythingIsSent) {
  Peer peer([](RawSocket& socket) { EXPECT_TRUE(socket.is_hung_up()); });
  auto client = peer.client();
  const std::string key(kKeyBytesMax + 1, 'k'), value(kValueBytesMax + 1, 'v');
  EXPECT_THROW(client.set(key, "", patience()), InvalidArgument);
  EXPECT_THROW(client.set("k", value, patience()), InvalidArgument);
  EXPECT_THROW(client.get(key, patience()), InvalidArgument);
  EXPECT_THROW(client.add(key, 1, patience()), InvalidArgument);
  EXPECT_THROW(client.wait({"k", key}, patience()), InvalidArgument);
  EXPECT_THROW(client.check(std::vector<std::string>(kListCountMax + 1), patience()), InvalidArgument);
  EXPECT_THROW(client.check(std::vector<std::string>(9000, key.substr(1)), patience()), InvalidArgument);
  EXPECT_THROW(client.compare_set("k", value, "", patience()), InvalidArgument);
  EXPECT_THROW(client.compare_set("k", "", value, patience()), InvalidArgument);
  EXPECT_THROW(client.remove(key, patience()), InvalidArgument);
  EXPECT_THROW(client.append("k", value, patience()), InvalidArgument);
  EXPECT_THROW(client.multi_get({"k", key}, patience()), InvalidArgument);
  EXPECT_THROW(client.multi_set({{"k", value}}, patience()), InvalidArgument);
  EXPECT_THROW(client.multi_set(std::vector<KeyValue>(9, {"k", value.substr(1)}), patience()), InvalidArgument);
  EXPECT_THROW(client.queue_push("k", value, patience()), InvalidArgument);
  EXPECT_THROW(client.queue_pop(key, patience()), InvalidArgument);
  EXPECT_THROW(client.queue_length(key, patience()), InvalidArgument);
  EXPECT_THROW(client.barrier(key, 1, patience()), InvalidArgument);
  EXPECT_THROW(Client::connect({.host = "", .port = 1, .deadline = patience()}), InvalidArgument);
  EXPECT_THROW(Client::connect({.host = "127.0.0.1", .port = 0, .deadline = patience()}), InvalidArgument);
  client.wait({}, patience());
  EXPECT_TRUE(client.check({}, patience()));
  client.multi_set({}, patience());
  EXPECT_TRUE(client.multi_get({}, patience()).empty());
}

TEST(StoreClient, SignalsDoNotDisturbAWait) {
  static std::atomic<int> signals_taken{0};
  struct sigaction action {};
  action.sa_handler = [](int) { ++signals_taken; };  // no SA_RESTART: poll() ends with EINTR anyway
  struct sigaction before;
  require(::sigaction(SIGUSR1, &action, &before) == 0, "sigaction");
  const auto waiting_thread = ::pthread_self();
  Peer peer([waiting_thread](RawSocket& socket) {
    socket.receive(encode(command::Wait{{"k"}}).size());
    const auto until = patience();
    for (int sent = 1; sent <= 5; ++sent) {
      ::pthread_kill(waiting_thread, SIGUSR1);
      while (signals_taken < sent && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    }
    socket.send("\0"s);
  });
  auto client = peer.client();
  client.wait({"k"}, patience());
  EXPECT_EQ(signals_taken, 5);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(StoreClient, TheResolversThreadTakesNoSignals) {
  const auto patience = in(60s);
  while (signals_of_resolver < 0 && in(0s) < patience)  // until the thread has been given a core
    EXPECT_THROW(Client::connect({.host = kNobodysHost, .port = 1, .deadline = in(100ms)}), TimeoutError);
  EXPECT_EQ(signals_of_resolver, 0);
}

TEST(StoreClient, WithoutAThreadForTheResolverItSaysSo) {
  const ddp::testing::NoThreads no_threads;
  const auto call = [] { Client::connect({.host = kNobodysHost, .port = 1, .deadline = in(100ms)}); };
  EXPECT_THAT(message_of<TimeoutError>(call), HasSubstr("no thread to look up the host in"));
}

}  // namespace
}  // namespace ddp::store
