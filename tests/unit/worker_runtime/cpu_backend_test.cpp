#include "worker_runtime/backends/cpu/cpu_backend.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "tests/descriptor_limit.hpp"
#include "tests/unit/worker_runtime/soon.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {
namespace {

using namespace core;

using Clock = std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using process_group::Collective;
using test::soon;

// What rank `rank` of two gets from the meeting; both are this process.
Meeting meeting_of(int rank, int shared_file) {
  Meeting meeting{base::UniqueFd(::fcntl(shared_file, F_DUPFD_CLOEXEC, 0)), {}, HostLayout::one_host(2), {}};
  meeting.peers.resize(2);
  for (Peer& peer : meeting.peers) peer.pid = ::getpid();
  meeting.peers[static_cast<std::size_t>(1 - rank)].pidfd = own_end();
  return meeting;
}

std::unique_ptr<process_group::Backend> make_rank(int rank, Meeting meeting, base::Deadline& deadline) {
  core::Bootstrap bootstrap{.who = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .round = {}},
                            .meeting = std::move(meeting)};
  return make_cpu_backend(bootstrap, {}, deadline);
}

TEST(CpuBackend, ARankThatCanNotStartTellsTheOthers) {
  const auto file = SharedMemory::make_file(HostLayout::one_host(2), 0);
  auto deadline = soon();
  try {
    auto meeting = meeting_of(0, file.get());
    const testing::DescriptorLimit limit(0);
    make_rank(0, std::move(meeting), deadline);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Too many open files"));
  }
  try {
    make_rank(1, meeting_of(1, file.get()), deadline);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const RankFailure& failure) {
    EXPECT_THAT(failure.ranks(), ElementsAre(0));
    EXPECT_THAT(failure.what(), HasSubstr("gave up"));
  }
}

// Two ranks, each on a thread of its own while they begin.
struct Pair {
  base::UniqueFd file = SharedMemory::make_file(HostLayout::one_host(2), 0);
  std::unique_ptr<process_group::Backend> ranks[2];

  Pair() {
    const auto begin = [this](int rank) {
      auto deadline = soon();
      ranks[rank] = make_rank(rank, meeting_of(rank, file.get()), deadline);
    };
    std::thread other([&] { begin(1); });
    begin(0);
    other.join();
  }
};

const Collective kBarrier{.kind = CollectiveKind::barrier, .timeout = std::chrono::seconds(20)};

TEST(CpuBackend, TellsItsListenerOnceWhyItFailed) {
  Pair pair;
  std::vector<std::string> heard;
  pair.ranks[0]->set_failure_listener([&](const std::string& reason) { heard.push_back(reason); });
  pair.ranks[1].reset();
  EXPECT_THROW(pair.ranks[0]->run(kBarrier), RankFailure);
  EXPECT_THROW(pair.ranks[0]->run(kBarrier), AbortedError);
  ASSERT_EQ(heard.size(), 1u);
  EXPECT_THAT(heard[0], HasSubstr("rank 1"));
  pair.ranks[0]->set_failure_listener([&](const std::string& reason) { heard.push_back(reason); });
  ASSERT_EQ(heard.size(), 2u) << "one that comes later hears it at once";
  EXPECT_EQ(heard[1], heard[0]);
}

TEST(CpuBackend, TellsNoListenerOfAnAbortOrOfItsEnd) {
  Pair pair;
  bool heard = false;
  for (auto& rank : pair.ranks) rank->set_failure_listener([&](const std::string&) { heard = true; });
  std::thread waiting([&] { EXPECT_THROW(pair.ranks[0]->run(kBarrier), RoundOver); });
  const auto memory = std::make_shared<SharedMemory>(base::UniqueFd(::fcntl(pair.file.get(), F_DUPFD_CLOEXEC, 0)),
                                                     HostLayout::one_host(2), 1);
  while (memory->control()[1].sleepers.load() == 0) std::this_thread::yield();  // rank 0 waits for rank 1
  pair.ranks[0]->abort("enough", process_group::AbortCause::round_over);
  waiting.join();
  pair.ranks[1]->set_failure_listener({});
  EXPECT_THROW(pair.ranks[1]->run(kBarrier), RankFailure);
  pair.ranks[0].reset();
  pair.ranks[1].reset();
  EXPECT_FALSE(heard);
}

TEST(SharedMemory, ReservesAllButWholePagesOfAGap) {
  const auto layout = HostLayout::one_host(2);
  const auto file = SharedMemory::make_file(layout, 0);
  const auto bytes = [&] {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return static_cast<std::size_t>(status.st_blocks) * 512;
  };
  const auto memory =
      std::make_shared<SharedMemory>(base::UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)), layout, 1);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t before = bytes();
  const auto with_gap = memory->reserve(10 * page, {page + 1, 9 * page - 1});
  EXPECT_EQ(bytes() - before, 4 * page) << "two pages at each end";
  before = bytes();
  const auto without = memory->reserve(10 * page);
  EXPECT_EQ(bytes() - before, 10 * page);
}

TEST(CpuBackend, AGroupOfOneThatCanNotStartSaysWhy) {
  const testing::DescriptorLimit limit(0);
  EXPECT_THROW(meet_alone(SharedMemory::make_file), Error);
}

}  // namespace
}  // namespace ddp::cpu_backend
