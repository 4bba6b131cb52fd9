#include "worker_runtime/core/bootstrap/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/thrown_by.hpp"

namespace ddp::core {
namespace {

using ::testing::HasSubstr;
using testing::thrown_by;

// Holds nothing; nobody asks it.
class NoStore : public Store {
 public:
  void set(const std::string&, const std::string&, TimePoint) override {}
  std::string get(const std::string&, TimePoint) override { return ""; }
  std::int64_t add(const std::string&, std::int64_t, TimePoint) override { return 0; }
  void wait(const std::vector<std::string>&, TimePoint) override {}
};

const auto kStore = std::make_shared<NoStore>();

TEST(Launch, TakesWhatTheProgramSays) {
  const Launch launch = launch_from({.rank = 2,
                                     .size = 4,
                                     .local_rank = 1,
                                     .local_size = 2,
                                     .store_host = "node0",
                                     .store_port = 29500,
                                     .name = "mine",
                                     .round = RoundId{7, 8, 9},
                                     .interface = "eth1",
                                     .port_min = 30'000,
                                     .port_max = 30'100});
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  ASSERT_TRUE(launch.store);
  EXPECT_EQ(launch.store->host, "node0");
  EXPECT_EQ(launch.store->port, 29500);
  EXPECT_EQ(store_key_prefix(launch), "ddp/given/mine/");
  EXPECT_EQ(launch.round, (RoundId{7, 8, 9}));
  EXPECT_EQ(launch.interface, "eth1");
  EXPECT_EQ(launch.ports.min, 30'000);
  EXPECT_EQ(launch.ports.max, 30'100);
}

TEST(Launch, LeavesTheHostsToTheMeetingUnlessTheProgramKnows) {
  const Launch launch = launch_from({.rank = 1, .size = 2, .store = kStore});
  EXPECT_EQ(launch.local_rank, -1);
  EXPECT_EQ(launch.local_size, 0);
  EXPECT_EQ(launch.given_store, kStore);
  EXPECT_FALSE(launch.store);
}

TEST(Launch, AGroupOfOneNeedsNoStore) {
  const Launch launch = launch_from({});
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_FALSE(launch_from({.store = kStore}).given_store) << "nobody is there to meet";
}

TEST(Launch, IsOfTheLauncherIfItHasItsRound) {
  EXPECT_TRUE(Launch().is_of_launcher()) << "the environment says who this is";
  EXPECT_FALSE(launch_from({.name = "a part of the ranks"}).is_of_launcher());
  EXPECT_TRUE(launch_from({.name = "all ranks", .round = RoundId{7, 8, 9}}).is_of_launcher());
}

TEST(Launch, RefusesWrongOptionsAndNamesThem) {
  const struct {
    BootstrapOptions options;
    const char* what;
  } cases[] = {
      {{.size = 0, .store = kStore}, "a size of 0"},
      {{.size = -3, .store = kStore}, "a size of -3"},
      {{.size = kSizeMax + 1, .store = kStore}, "a size of 1000001"},
      {{.rank = 2, .size = 2, .store = kStore}, "rank 2 of 2"},
      {{.rank = -1, .size = 2, .store = kStore}, "rank -1 of 2"},
      {{.rank = 1}, "rank 1 of 1"},
      {{.rank = 1, .size = 2, .local_rank = 0, .store = kStore}, "local_rank 0, local_size missing for rank 1 of 2"},
      {{.rank = 1, .size = 2, .local_size = 2, .store = kStore}, "local_rank missing, local_size 2"},
      {{.rank = 1, .size = 2, .local_rank = 2, .local_size = 2, .store = kStore}, "local_rank 2, local_size 2"},
      {{.rank = 1, .size = 2, .local_rank = -1, .local_size = 2, .store = kStore}, "local_rank -1, local_size 2"},
      {{.rank = 1, .size = 2, .local_rank = 1, .local_size = 3, .store = kStore}, "local_rank 1, local_size 3"},
      {{.rank = 0, .size = 2, .local_rank = 1, .local_size = 2, .store = kStore}, "local_rank 1, local_size 2"},
      {{.size = 2}, "no store for 2 ranks"},
      {{.size = 2, .store_host = "node0"}, "a store at host 'node0', port 0"},
      {{.size = 2, .store_port = 29500}, "a store at host '', port 29500"},
      {{.size = 2, .store_host = "node0", .store_port = 29500, .store = kStore}, "two stores"},
      {{.size = 2, .store = kStore, .port_min = 5, .port_max = 4}, "ports from 5 to 4"},
      {{.size = 2, .store = kStore, .port_max = 4}, "ports from 0 to 4"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto error = thrown_by<InvalidArgument>([&] { launch_from(c.options); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr(std::string("init_process_group: ") + c.what));
    EXPECT_THAT(error->what(), HasSubstr("where: BootstrapOptions\ntry:   "));
  }
}

}  // namespace
}  // namespace ddp::core
