#include "worker_runtime/core/bootstrap/host_layout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ddp/error.hpp"

namespace ddp::core {
namespace {

using ::testing::ElementsAre;

TEST(HostLayout, CountsHostsByTheirLowestRanks) {
  const auto layout = HostLayout::from_identities({"b", "a", "b", "c", "a"});
  ASSERT_EQ(layout.host_count(), 3);
  EXPECT_THAT(layout.ranks_of(0), ElementsAre(0, 2));
  EXPECT_THAT(layout.ranks_of(1), ElementsAre(1, 4));
  EXPECT_THAT(layout.ranks_of(2), ElementsAre(3));
  EXPECT_EQ(layout.leader_of(1), 1);
  EXPECT_EQ(layout.index_of(4), 1);
}

TEST(HostLayout, PlacesKeepTheRanksOfAHostTogether) {
  const HostLayout layout({0, 1, 0, 2, 1});
  const int by_place[] = {0, 2, 1, 4, 3};
  for (std::size_t place = 0; place < 5; ++place) {
    EXPECT_EQ(layout.rank_at(place), by_place[place]);
    EXPECT_EQ(layout.place_of(by_place[place]), place);
  }
  EXPECT_EQ(layout.first_place(2), 4u);
}

TEST(HostLayout, NumbersThatAreNoLayoutAreRefused) {
  EXPECT_THROW(HostLayout({1, 0}), InvalidArgument);
  EXPECT_THROW(HostLayout({0, 2}), InvalidArgument);
  EXPECT_THROW(HostLayout({0, -1}), InvalidArgument);
}

TEST(HostIdentity, IsTheSameForAProcessOfThisHostAndAnotherBeyondItsNetwork) {
  const auto identity_is_kept_by_child = [](int unshared) {
    const std::string own = host_identity();
    const pid_t child = ::fork();
    if (child == 0) {
      if (unshared != 0 && ::unshare(unshared) != 0) ::_exit(2);
      ::_exit(host_identity() == own ? 1 : 0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(identity_is_kept_by_child(0), 1);
  const int in_other_network = identity_is_kept_by_child(CLONE_NEWNET);
  if (in_other_network == 2) GTEST_SKIP() << "this user may not make a network namespace";
  EXPECT_EQ(in_other_network, 0);
}

}  // namespace
}  // namespace ddp::core
