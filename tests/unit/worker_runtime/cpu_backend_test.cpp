#include "worker_runtime/cpu_backend/cpu_backend.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "ddp/error.hpp"
#include "tests/descriptor_limit.hpp"
#include "worker_runtime/cpu_backend/local_socket.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"

namespace ddp::cpu_backend {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

io::Deadline soon() { return {Clock::now(), Clock::now() + std::chrono::seconds(20)}; }

// What rank `rank` of two gets from the meeting; both are this process.
Meeting meeting_of(int rank, int shared_file) {
  Meeting meeting{io::UniqueFd(::fcntl(shared_file, F_DUPFD_CLOEXEC, 0)), {}, HostLayout::one_host(2), {}};
  meeting.peers.resize(2);
  for (Peer& peer : meeting.peers) peer.pid = ::getpid();
  meeting.peers[static_cast<std::size_t>(1 - rank)].pidfd = own_pidfd();
  return meeting;
}

TEST(CpuBackend, ARankThatCanNotStartTellsTheOthers) {
  const auto file = SharedMemory::make_file(HostLayout::one_host(2), 0);
  auto deadline = soon();
  try {
    auto meeting = meeting_of(0, file.get());
    const testing::DescriptorLimit limit(0);
    make_cpu_backend({.rank = 0, .size = 2, .local_rank = 0, .local_size = 2, .round = {}}, std::move(meeting),
                     deadline);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Too many open files"));
  }
  try {
    make_cpu_backend({.rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .round = {}}, meeting_of(1, file.get()),
                     deadline);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const RankFailure& failure) {
    EXPECT_THAT(failure.ranks(), ElementsAre(0));
    EXPECT_THAT(failure.what(), HasSubstr("gave up"));
  }
}

TEST(CpuBackend, AGroupOfOneThatCanNotStartSaysWhy) {
  const testing::DescriptorLimit limit(0);
  EXPECT_THROW(meet_alone(), Error);
}

}  // namespace
}  // namespace ddp::cpu_backend
