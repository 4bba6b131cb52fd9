#include "worker_runtime/process_group/environment.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ddp::process_group {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_with(const Variables& variables) {
  return launch_from([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  });
}

const Variables kTwoRanks{{"RANK", "1"},          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "1"},    {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "::1"}, {"MASTER_PORT", "29400"}};

// kTwoRanks, but for some variables; an empty optional unsets one.
Variables two_ranks_but(const std::map<std::string, std::optional<std::string>>& changes) {
  Variables variables = kTwoRanks;
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (value) variables[name] = *value;
  }
  return variables;
}

TEST(Environment, SaysWhoThisProcessIs) {
  const Launch launch = launch_with(
      two_ranks_but({{"DDPRUN_ROUND_ID", "1763723112-9f3a17c2b4d8e6f0-3"}, {"TORCHELASTIC_RESTART_COUNT", "4"}}));
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
  ASSERT_TRUE(launch.store);
  EXPECT_EQ(launch.store->host, "::1");
  EXPECT_EQ(launch.store->port, 29400);
  EXPECT_EQ(launch.round, (RoundId{1763723112, 0x9f3a17c2b4d8e6f0, 3}));
  EXPECT_EQ(launch.restart_count, 4);
}

TEST(Environment, WithoutAnyOfItsVariablesIsAGroupOfOne) {
  const Launch launch = launch_with({{"PATH", "/bin"}, {"TORCHELASTIC_RESTART_COUNT", "nonsense"}});
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_FALSE(launch.store);
  EXPECT_FALSE(launch.round);
}

TEST(Environment, LocalVariablesDefaultToTheGlobalOnes) {
  const Launch launch = launch_with(two_ranks_but({{"LOCAL_RANK", {}}, {"LOCAL_WORLD_SIZE", {}}}));
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 2);
}

TEST(Environment, WhatIsWrongIsNamedWithItsValue) {
  const struct {
    const char* variable;
    std::optional<std::string> value;
    std::vector<std::string> told;
  } cases[] = {
      {"RANK", {}, {"RANK is not set", "WORLD_SIZE", "ddprun"}},
      {"WORLD_SIZE", {}, {"WORLD_SIZE is not set"}},
      {"MASTER_ADDR", {}, {"MASTER_ADDR is not set"}},
      {"MASTER_PORT", {}, {"MASTER_PORT is not set"}},
      {"RANK", "2", {"RANK is 2, but WORLD_SIZE is 2", "0 to WORLD_SIZE - 1"}},
      {"RANK", "-1", {"RANK is '-1'"}},
      {"RANK", "+1", {"RANK is '+1'"}},
      {"RANK", "", {"RANK is ''"}},
      {"RANK", " 1", {"RANK is ' 1'"}},
      {"RANK", "1 ", {"RANK is '1 '"}},
      {"RANK", "0x1", {"RANK is '0x1'"}},
      {"RANK", "-0", {"RANK is '-0'"}},
      {"RANK", "99999999999999999999", {"RANK is '99999999999999999999'"}},
      {"WORLD_SIZE", "0", {"WORLD_SIZE is '0'", "from 1 to"}},
      {"WORLD_SIZE", "two", {"WORLD_SIZE is 'two'"}},
      {"WORLD_SIZE", "1000001", {"from 1 to 1000000"}},
      {"LOCAL_RANK", "2", {"LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"}},
      {"LOCAL_RANK", "x", {"LOCAL_RANK is 'x'"}},
      {"LOCAL_WORLD_SIZE", "3", {"LOCAL_WORLD_SIZE is 3, but WORLD_SIZE is 2"}},
      {"MASTER_ADDR", "", {"MASTER_ADDR is empty"}},
      {"MASTER_PORT", "0", {"MASTER_PORT is '0'", "from 1 to 65535"}},
      {"MASTER_PORT", "65536", {"MASTER_PORT is '65536'"}},
      {"DDPRUN_ROUND_ID", "3", {"DDPRUN_ROUND_ID is '3'"}},
      {"TORCHELASTIC_RESTART_COUNT", "-1", {"TORCHELASTIC_RESTART_COUNT is '-1'"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.variable) + "=" + c.value.value_or("(unset)"));
    try {
      launch_with(two_ranks_but({{c.variable, c.value}}));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      for (const std::string& told : c.told) EXPECT_THAT(error.what(), ::testing::HasSubstr(told));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("\ntry:   "));
    }
  }
}

TEST(Environment, OfSeveralHostsSaysWhereToListen) {
  const auto of_two_hosts = [](const std::string& ports) {
    return launch_with(two_ranks_but(
        {{"LOCAL_WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"DDPRUN_PORT_RANGE", ports}, {"DDP_SOCKET_IFNAME", "eth1"}}));
  };
  const Launch launch = of_two_hosts("29500-29600");
  EXPECT_EQ(launch.local_size, 1);
  EXPECT_EQ(launch.ports.min, 29500);
  EXPECT_EQ(launch.ports.max, 29600);
  EXPECT_EQ(launch.interface, "eth1");
  for (const char* ports : {"", "29500", "29600-29500", "0-1", "1-65536", "a-b", "1-2-3"}) {
    SCOPED_TRACE(ports);
    EXPECT_THROW(of_two_hosts(ports), InvalidArgument);
  }
  EXPECT_EQ(launch_with(two_ranks_but({{"DDPRUN_PORT_RANGE", "unused"}})).ports.min, 0);
}

TEST(Environment, AnEarlierStartsKeysAreOutOfSight) {
  const auto prefix = [](const std::map<std::string, std::optional<std::string>>& changes) {
    return store_key_prefix(launch_with(two_ranks_but(changes)));
  };
  EXPECT_EQ(prefix({}), "ddp/restart_0/");
  EXPECT_EQ(prefix({{"TORCHELASTIC_RESTART_COUNT", "2"}}), "ddp/restart_2/");
  EXPECT_EQ(prefix({{"TORCHELASTIC_RESTART_COUNT", "2"}, {"DDPRUN_ROUND_ID", "7-00000000000000ff-1"}}),
            "ddp/round_7-00000000000000ff-1/");
}

}  // namespace
}  // namespace ddp::process_group
