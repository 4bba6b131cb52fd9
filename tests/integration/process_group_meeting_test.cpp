// How ranks meet, and what they hear where one does not come, dies on the way, or is one too many.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "rendezvous/store/client.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "worker_runtime/cpu_backend/local_socket.hpp"

namespace ddp {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kPatience;
using testing::RankProcesses;
using testing::run_ranks;
using testing::thrown_by;
using testing::wait_until;

TEST(Meeting, AtItsDeadlineNamesTheRankThatNeverCame) {
  const auto body = [](int) {
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(500)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    EXPECT_THAT(error->what(), HasSubstr("rank 1 did not come within 500 ms"));
  };
  RankProcesses ranks(3, body, {1});
  ranks.expect_success(0);
  ranks.expect_success(2);
}

TEST(Meeting, AtItsDeadlineNamesRank0) {
  const auto body = [](int) {
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(200)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(0));
  };
  RankProcesses ranks(2, body, {0});
  ranks.expect_success(1);
}

std::size_t open_pidfds() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone).string().find("pidfd") != std::string::npos) ++count;
  }
  return count;
}

TEST(Meeting, ADeathDuringItIsNoticed) {
  const auto body = [](int rank) {
    if (rank == 1) {
      std::thread([] { init_process_group(); }).detach();
      wait_until([] { return open_pidfds() >= 2; });  // its own and rank 0's: it has been welcomed
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

TEST(Meeting, StrangersAtTheDoorDoNotDisturb) {
  run_ranks(2, [](int rank) {
    if (rank == 0) {
      init_process_group().barrier();
      return;
    }
    const auto port = static_cast<std::uint16_t>(std::stoi(::getenv("MASTER_PORT")));
    const auto end = std::chrono::steady_clock::now() + kPatience;
    auto store = store::Client::connect({.host = "127.0.0.1", .port = port, .deadline = end});
    const std::string door = store.get("ddp/restart_0/group_0/socket", end);
    const auto silent = cpu_backend::connect_locally(door);
    { const auto gone = cpu_backend::connect_locally(door); }
    const auto babbler = cpu_backend::connect_locally(door);
    ASSERT_EQ(::write(babbler.get(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
    const auto nobody = cpu_backend::connect_locally(door);  // a greeting without a pidfd, of a rank that is not
    io::Deadline deadline(std::chrono::steady_clock::now(), end);
    cpu_backend::send_message(nobody.get(), {cpu_backend::Message::Kind::hello, 7, 1, {}}, -1, deadline);
    init_process_group().barrier();
  });
}

}  // namespace
}  // namespace ddp
