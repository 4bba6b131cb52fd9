// Ranks on several hosts that no launcher of ours started, and that rank 0 serves the store for.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "rendezvous/slurm/step.hpp"
#include "rendezvous/store/client.hpp"
#include "tests/integration/as_task.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using test::Hosts;
using ::testing::HasSubstr;
using testing::RankProcesses;
using testing::run_ranks;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

class Rank0StoreOverHosts : public test::Multihost {
 protected:
  void SetUp() override { hosts_ = make_hosts({.count = 3}); }

  static void expect_sum(ProcessGroup world) {
    float value = static_cast<float>(world.rank() + 1);
    world.all_reduce(MemoryRange(&value, 1));
    EXPECT_EQ(value, static_cast<float>(world.size() * (world.size() + 1) / 2));
  }

  Hosts* hosts_ = nullptr;
};

testing::Step step_of(const std::string& nodes, const std::vector<int>& node_of) {
  return {.job = std::to_string(::getpid()), .nodes = nodes, .node_of = node_of};
}

TEST_F(Rank0StoreOverHosts, TasksOfAStepMeetAtItsFirstNode) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 0, 1, 2};
  const auto step = step_of("node[0-2]", host_of);
  run_ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::become_task(step, rank);
    expect_sum(init_process_group());
  });
}

TEST_F(Rank0StoreOverHosts, NodesWhoseNamesDoNotResolveAreThoseOfSlurmsConfiguration) {
  if (hosts_ == nullptr) return;
  const auto folder = std::filesystem::temp_directory_path() / ("ddp_scontrol_" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "scontrol") << "#!/bin/sh\n"
                                     << "echo 'NodeName=x0 Arch=x86_64 NodeAddr=" << Hosts::ipv4(0) << " Port=1'\n"
                                     << "[ \"$4\" = x0 ] || echo 'NodeName=x1 NodeAddr=" << Hosts::ipv4(1) << "'\n";
  std::filesystem::permissions(folder / "scontrol", std::filesystem::perms::owner_all);
  const std::vector<int> host_of{0, 1};
  const auto step = step_of("x[0-1]", host_of);
  run_ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::become_task(step, rank);
    ::setenv("PATH", (folder.string() + ":" + ::getenv("PATH")).c_str(), 1);
    expect_sum(init_process_group());
  });
  std::filesystem::remove_all(folder);
}

TEST_F(Rank0StoreOverHosts, ANodeThatNobodyKnowsIsNamed) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 1};
  const auto step = step_of("x[0-1]", host_of);
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    ::setenv("PATH", "/nowhere", 1);
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(3'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("the name x0 can't be resolved"));
    EXPECT_THAT(error->what(), HasSubstr("`scontrol -o show node x0` can't be run"));
  };
  RankProcesses ranks({*hosts_, host_of, ""}, body, {0});
  ranks.expect_success(1);
}

TEST_F(Rank0StoreOverHosts, AHostThatIsNoNodeOfTheStepIsTurnedAway) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 1};
  const auto step = step_of("node[0-1]", host_of);
  const Shared<std::atomic<bool>> has_tried;
  RankProcesses ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::become_task(step, rank);
    const ProcessGroup world = init_process_group();
    wait_until([&] { return has_tried->load(); });
  });
  const auto port = slurm::ports_of({.job = step.job, .step = "0"}).first;
  RankProcesses strangers(
      {*hosts_, {0, 2}, ""},
      [&](int) {
        // As long as nobody listens yet it is refused in another way.
        const auto until = [](std::chrono::milliseconds limit) { return std::chrono::steady_clock::now() + limit; };
        std::string last;
        wait_until([&] {
          try {
            store::Client::connect({.host = Hosts::ipv4(0), .port = port, .deadline = until(10s), .tries_once = true});
            last = "let in";
          } catch (const StoreError& error) {
            last = error.what();
          }
          return last != "Connection refused";
        });
        EXPECT_THAT(last, HasSubstr("it hung up during the handshake"));
      },
      {0});
  strangers.expect_success(1);
  has_tried->store(true);
  for (const int rank : {0, 1}) ranks.expect_success(rank);
}

TEST_F(Rank0StoreOverHosts, TasksMeetOverTheNetworkOfMasterAddr) {
  hosts_ = make_hosts({.count = 2, .interfaces = 2});
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 1};
  const auto step = step_of("node[0-1]", host_of);  // which are names of the first network's addresses
  run_ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::become_task(step, rank);
    ::setenv("MASTER_ADDR", Hosts::ipv4(0, 1).c_str(), 1);
    ::setenv("MASTER_PORT", "29500", 1);
    expect_sum(init_process_group({.timeout = testing::kNotForEver}));
  });
}

void set_variable(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

TEST_F(Rank0StoreOverHosts, RanksOfMpirunMeetAtMasterAddrAndMasterPort) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 0, 1, 2};
  run_ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::forget_launcher();
    set_variable("OMPI_COMM_WORLD_RANK", std::to_string(rank));
    set_variable("OMPI_COMM_WORLD_SIZE", "4");
    set_variable("OMPI_COMM_WORLD_LOCAL_RANK", rank == 1 ? "1" : "0");
    set_variable("OMPI_COMM_WORLD_LOCAL_SIZE", rank < 2 ? "2" : "1");
    set_variable("PMIX_NAMESPACE", "1490092033");
    set_variable("MASTER_ADDR", "node0");
    set_variable("MASTER_PORT", "29500");
    expect_sum(init_process_group());
  });
}

TEST_F(Rank0StoreOverHosts, RanksByHandFindOutWhoIsOnTheirHost) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 1, 0, 2, 1}, local_rank{0, 0, 1, 0, 1}, local_size{2, 2, 2, 1, 2};
  run_ranks({*hosts_, host_of, ""}, [&](int rank) {
    testing::forget_launcher();
    set_variable("RANK", std::to_string(rank));
    set_variable("WORLD_SIZE", "5");
    set_variable("MASTER_ADDR", "node0");
    set_variable("MASTER_PORT", "29500");
    const auto world = init_process_group();
    EXPECT_EQ(world.local_rank(), local_rank[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(world.local_size(), local_size[static_cast<std::size_t>(rank)]);
    expect_sum(world);
  });
}

TEST_F(Rank0StoreOverHosts, RanksByHandThatDoNotComeAreNamed) {
  if (hosts_ == nullptr) return;
  const std::vector<int> host_of{0, 1, 2, 2};
  const std::vector<int> absent{1, 3};
  RankProcesses ranks(
      {*hosts_, host_of, ""},
      [&](int rank) {
        testing::forget_launcher();
        set_variable("RANK", std::to_string(rank));
        set_variable("WORLD_SIZE", "4");
        set_variable("MASTER_ADDR", "node0");
        set_variable("MASTER_PORT", "29500");
        const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = 5s}); });
        ASSERT_TRUE(error);
        EXPECT_EQ(error->ranks(), absent) << error->what();
      },
      absent);
  for (const int rank : {0, 2}) ranks.expect_success(rank);
}

// As Debian has a host's own name in /etc/hosts.
TEST_F(Rank0StoreOverHosts, AMasterAddrThatIsLoopbackThereLetsNobodyIn) {
  if (hosts_ == nullptr) return;
  const auto become_rank = [](int rank) {
    testing::forget_launcher();
    set_variable("OMPI_COMM_WORLD_RANK", std::to_string(rank));
    set_variable("OMPI_COMM_WORLD_SIZE", "2");
    set_variable("OMPI_COMM_WORLD_LOCAL_RANK", "0");
    set_variable("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
    set_variable("PMIX_NAMESPACE", "1490092033");
    set_variable("MASTER_ADDR", rank == 0 ? "127.0.1.1" : "node0");
    set_variable("MASTER_PORT", "29500");
  };
  run_ranks({*hosts_, {0, 1}, ""}, [&](int rank) {
    become_rank(rank);
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(5'000)}); });
    ASSERT_TRUE(error);
    const auto told = rank == 0 ? "; DDPRUN_STORE_ALLOW=10.77.0.2/32 admits it, DDPRUN_STORE_ALLOW=any everybody"
                                : "it hung up during the handshake: no store, or one that refuses this host, see "
                                  "DDPRUN_STORE_ALLOW";
    EXPECT_THAT(error->what(), HasSubstr(told));
  });
  run_ranks({*hosts_, {0, 1}, ""}, [&](int rank) {
    become_rank(rank);
    set_variable("DDPRUN_STORE_ALLOW", "10.77.0.0/16,fd77::/16");
    expect_sum(init_process_group());
  });
}

}  // namespace
}  // namespace ddp
