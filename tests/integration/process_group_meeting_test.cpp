// How ranks meet, and what they hear where one does not come, dies on the way, or is one too many.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rendezvous/store/client.hpp"
#include "tests/descriptor_limit.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using testing::AllHere;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kNotForEver;
using testing::kPatience;
using testing::open_pidfds;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

TEST(Meeting, AtItsDeadlineNamesTheRankThatNeverCame) {
  const auto body = [](int) {
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(2'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    EXPECT_THAT(error->what(), HasSubstr("rank 1 did not join the process group of 3 ranks within 2000 ms"));
  };
  RankProcesses ranks(3, body, {1});
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Meeting, AtItsDeadlineNamesRank0) {
  const auto body = [](int) {
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(2'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(0));
  };
  RankProcesses ranks(2, body, {0});
  ranks.expect_success(1);
}

TEST(Meeting, ADeathDuringItIsNoticed) {
  const auto body = [](int rank) {
    if (rank == 1) {
      std::thread([] { init_process_group(); }).detach();
      wait_until([] { return open_pidfds() >= 2; });  // its own and rank 0's: it has been accepted
      ::raise(SIGKILL);
    }
    const auto error = thrown_by<RankFailure>([] { init_process_group(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
  };
  RankProcesses ranks(4, body, {3});  // without rank 3 the meeting goes on
  ranks.expect_killed(1);
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Meeting, TwoProcessesOfOneRankAreTold) {
  run_ranks(3, [](int rank) {
    if (rank == 2) ::setenv("RANK", "1", 1);
    const auto error = thrown_by<Error>([] { init_process_group(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("two processes say that they are rank 1: pids "));
  });
}

store::Client store_of_ranks() {
  const auto port = static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT")));
  return store::Client::connect(
      {.host = "127.0.0.1", .port = port, .deadline = std::chrono::steady_clock::now() + kPatience});
}

// In a process of its own.
void run_program(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Meeting, TwoProgramsOneAfterTheOtherInEveryWorkerMeetEach) {
  Shared<std::array<std::atomic<std::uint64_t>, 2>> terms;
  run_ranks(3, [&](int rank) {
    for (std::size_t program = 0; program < 2; ++program) {
      run_program([&] {
        // The second program's rank 0 comes last, so that the others could find what the first left.
        auto store = store_of_ranks();
        const auto end = std::chrono::steady_clock::now() + kPatience;
        const std::string here = "ddp/restart_0/group_0/here/";
        if (rank == 0) store.wait({here + "1", here + "2"}, end);
        auto group = init_process_group({.timeout = kNotForEver});
        if (rank == 0) (*terms)[program] = group.round().term_random;
        group.barrier();
        EXPECT_EQ(group.round().term_random, (*terms)[program]);
        EXPECT_FALSE(store.check({"ddp/restart_0/group_0/socket"}, end));
        EXPECT_FALSE(store.check({here + std::to_string(rank)}, end));
        group.barrier();
      });
    }
  });
  EXPECT_NE((*terms)[0], (*terms)[1]);
}

TEST(Meeting, AFollowerThatIsRefusedReadsTheNextEndpoint) {
  run_ranks(2, [](int rank) {
    auto store = store_of_ranks();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    if (rank == 0) {
      const core::CoordinatorEndpoint of_the_dead{"ddp-of-a-program-that-was-killed", core::host_identity(), "", {}};
      store.set("ddp/restart_0/group_0/socket", core::encode(of_the_dead), end);
      store.set("stale", "", end);
      store.wait({"ddp/restart_0/group_0/here/1"}, end);
    } else {
      store.wait({"stale"}, end);
    }
    init_process_group({.timeout = kNotForEver}).barrier();
  });
}

TEST(Meeting, ARetryAfterAFailureIsInStepWithTheOthers) {
  const AllHere all_have_failed;  // else the first attempt of one rank could meet the second of the other
  run_ranks(2, [&](int rank) {
    const std::string port = ::getenv("MASTER_PORT");
    if (rank == 0) ::setenv("MASTER_PORT", "1", 1);
    thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(200)}); });
    all_have_failed.wait(2);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    init_process_group({.timeout = kNotForEver}).barrier();
  });
}

TEST(Meeting, WhatRank0CanNotOpenAllAreTold) {
  run_ranks(2, [](int rank) {
    std::optional<testing::DescriptorLimit> limit;
    if (rank == 0) limit.emplace(1);  // for the connection to the store
    const auto error = thrown_by<Error>([] { init_process_group({.timeout = kNotForEver}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("Too many open files"));
  });
}

TEST(Meeting, WhatRank0CanNotWatchAllAreTold) {
  const auto body = [](int rank) {
    std::optional<testing::DescriptorLimit> limit;
    if (rank == 0) limit.emplace(10);
    const auto error = thrown_by<Error>([] { init_process_group({.timeout = kNotForEver}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the system refuses to watch"));
  };
  std::vector<int> absent;
  for (int rank = 2; rank < 100; ++rank) absent.push_back(rank);
  RankProcesses ranks(100, body, absent);
  ranks.expect_success(0);
  ranks.expect_success(1);
}

bool is_stopped(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string stat;
  std::getline(file, stat);
  return stat.find(") T ") != std::string::npos;
}

TEST(Meeting, AFollowerThatIsGoneWhenItsGreetingComesIsNamed) {
  Shared<std::atomic<pid_t>> coordinator;
  RankProcesses ranks(3, [&](int rank) {
    if (rank == 0) *coordinator = ::getpid();
    if (rank != 1) {
      const auto error = thrown_by<RankFailure>([] { init_process_group(); });
      ASSERT_TRUE(error);
      EXPECT_THAT(error->ranks(), ElementsAre(1));
      return;
    }
    auto store = store_of_ranks();
    const auto end = std::chrono::steady_clock::now() + kPatience;
    const std::string endpoint = core::decode_endpoint(store.get("ddp/restart_0/group_0/socket", end)).socket;
    ::kill(*coordinator, SIGSTOP);
    wait_until([&] { return is_stopped(*coordinator); });
    {
      const auto follower = core::connect_locally(endpoint);
      base::Deadline deadline(std::chrono::steady_clock::now(), end);
      const auto own_end = core::own_end();
      core::send_message(follower.get(), {core::Message::Kind::hello, 1, ::getpid(), {}}, own_end.get(), deadline);
    }
    ::kill(*coordinator, SIGCONT);
  });
  for (int rank = 0; rank < 3; ++rank) ranks.expect_success(rank);
}

TEST(Meeting, ForeignConnectionsDoNotDisturb) {
  run_ranks(2, [](int rank) {
    if (rank == 0) {
      init_process_group().barrier();
      return;
    }
    const auto end = std::chrono::steady_clock::now() + kPatience;
    auto store = store_of_ranks();
    const std::string endpoint = core::decode_endpoint(store.get("ddp/restart_0/group_0/socket", end)).socket;
    const auto silent = core::connect_locally(endpoint);
    { const auto gone = core::connect_locally(endpoint); }
    const auto http_client = core::connect_locally(endpoint);
    ASSERT_EQ(::write(http_client.get(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
    const auto nobody = core::connect_locally(endpoint);  // a greeting without a pidfd, of a rank that is not
    base::Deadline deadline(std::chrono::steady_clock::now(), end);
    core::send_message(nobody.get(), {core::Message::Kind::hello, 7, 1, {}}, -1, deadline);
    init_process_group().barrier();
  });
}

}  // namespace
}  // namespace ddp
