#include "worker_runtime/backends/cpu/arrivals/peer_watch.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <utility>
#include <vector>

#include "tests/descriptor_limit.hpp"
#include "tests/unit/worker_runtime/soon.hpp"

namespace ddp::cpu_backend {
namespace {

using test::kPatience;

TEST(PeerWatch, NoticesAnEndThoughTheLimitOfOpenFilesHasFallen) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // should the test die before it kills this child
    for (;;) ::pause();
  }
  std::vector<base::UniqueFd> pidfds(10'000);
  pidfds[7].reset(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  ASSERT_TRUE(pidfds[7]);
  std::promise<int> ended;
  auto answer = ended.get_future();
  {
    const testing::DescriptorLimit limit(2);
    PeerWatch watch(std::move(pidfds), [&](int rank) { ended.set_value(rank); });
    ::kill(child, SIGKILL);
    const bool has_come = answer.wait_for(kPatience) == std::future_status::ready;
    EXPECT_TRUE(has_come);
    if (has_come) {
      EXPECT_EQ(answer.get(), 7);
    }
  }
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace ddp::cpu_backend
