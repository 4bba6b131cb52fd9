#include "rendezvous/store/store_thread.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "ddp/error.hpp"
#include "rendezvous/store/client.hpp"
#include "tests/unit/rendezvous/loopback.hpp"

namespace ddp::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Client client_of(std::uint16_t port) {
  return Client::connect({.host = "127.0.0.1", .port = port, .deadline = patience(), .tries_once = true});
}

TEST(StoreThread, ServesFromTheStartWithWhatItWasGiven) {
  const StoreThread store({.addresses = {"127.0.0.1"}, .entries = {{"a", "1"}, {"b", "2"}}});
  auto client = client_of(store.port());
  EXPECT_TRUE(client.check({"a", "b"}, patience()));
  EXPECT_EQ(client.get("a", patience()), "1");
  client.set("a", "3", patience());
  EXPECT_EQ(client_of(store.port()).get("a", patience()), "3");
  EXPECT_THAT(store.refusals(), ElementsAre());
}

TEST(StoreThread, TakesTheFirstPortThatIsFree) {
  const StoreThread first({.addresses = {"127.0.0.1"}});
  const auto port = first.port();
  try {
    const StoreThread second({.addresses = {"127.0.0.1"}, .first_port = port, .last_port = port});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Address already in use"));
  }
  const auto last = static_cast<std::uint16_t>(port > 65'000 ? 65'535 : port + 100);
  const StoreThread next({.addresses = {"127.0.0.1"}, .first_port = port, .last_port = last});
  EXPECT_GT(next.port(), port);
}

TEST(StoreThread, ItsEndIsTheEndOfItsPort) {
  std::uint16_t port = 0;
  {
    const StoreThread store({.addresses = {"127.0.0.1"}});
    port = store.port();
    client_of(port);
  }
  EXPECT_THROW(client_of(port), StoreError);
  EXPECT_NO_THROW(StoreThread({.addresses = {"127.0.0.1"}, .first_port = port, .last_port = port}));
}

TEST(StoreThread, WhoMayComeInIsCheckedAtOnce) {
  EXPECT_THROW(StoreThread({.addresses = {"127.0.0.1"}, .allow = {"10.0.0.0/33"}}), InvalidArgument);
  StoreThread store({.addresses = {"127.0.0.1"}});
  EXPECT_THROW(store.allow({"10.0.0.1", "node1"}), InvalidArgument);
  EXPECT_NO_THROW(store.allow({"10.0.0.1", "fd00::/8"}));
  client_of(store.port());
}

TEST(StoreThread, SaysWhomItHasTurnedAway) {
  const StoreThread store({.addresses = {"127.0.0.1"}});
  auto browser = RawSocket::connected(store.port());
  browser.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(browser.receive(1), "");
  EXPECT_THAT(store.refusals(), ElementsAre(HasSubstr("an HTTP client")));
}

TEST(StoreThread, TakesNoneOfTheProgramsSignals) {
  const StoreThread store({.addresses = {"127.0.0.1"}});
  client_of(store.port());  // it runs
  int threads_that_block_all = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with("SigBlk:") && line.find("fffffffe7ffbfeff") != std::string::npos) ++threads_that_block_all;
    }
  }
  EXPECT_GE(threads_that_block_all, 1);  // a sanitizer may have one too
}

TEST(StoreThread, AForkedChildDoesNotHoldThePort) {
  std::uint16_t port = 0;
  pid_t child = 0;
  {
    const StoreThread store({.addresses = {"127.0.0.1"}});
    port = store.port();
    child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
  }
  EXPECT_THROW(client_of(port), StoreError);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ddp::store
