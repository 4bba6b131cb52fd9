// Workers on the cores and the memory that --numa-binding gives them, as the kernel tells. Where a test needs more of a
// machine than this one has, hwloc and a stand-in for NVML describe it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/integration/job.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// hwloc's own variable, which makes it take this machine for one with two cpus, each a socket and a NUMA node of its
// own.
const std::string kTwoNodes = "HWLOC_SYNTHETIC=pack:2 numa:1 core:1 pu:1";
const std::string kNoGpus = "CUDA_VISIBLE_DEVICES=";
const std::string kStandInNvml = "LD_LIBRARY_PATH=" DDP_TEST_STAND_IN_NVML_DIR;

bool may_use(const std::vector<std::size_t>& cpus) {
  cpu_set_t mask;
  return sched_getaffinity(0, sizeof mask, &mask) == 0 &&
         std::all_of(cpus.begin(), cpus.end(), [&mask](std::size_t cpu) { return CPU_ISSET(cpu, &mask); });
}

std::string own(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key + ":", 0) == 0) return line.substr(line.find_first_not_of(" \t", key.size() + 1));
  return {};
}

// Says where the worker is: "0 runs on <cpus>, 3 threads".
const std::string kWhere =
    "echo $RANK runs on $(sed -n 's/^Cpus_allowed_list:\\s*//p' /proc/self/status), $OMP_NUM_THREADS threads";

std::vector<std::string> bound(std::vector<std::string> options, const std::string& script) {
  options.insert(options.end(), {"--standalone", "--nproc-per-node=2", "sh", "-c", script});
  return options;
}

TEST(DdprunBinding, NodeGivesThisMachinesCoresAndPrefersItsMemory) {
  Job job(bound({"--numa-binding=node"}, kWhere + "; awk '{ print \"memory\", $2; exit }' /proc/self/numa_maps"));
  ASSERT_EQ(job.wait(), 0) << job.err();
  if (own("Mems_allowed_list") == "0") {  // one node, so that it is known what each worker has
    for (const auto* rank : {"0", "1"})
      EXPECT_THAT(job.out(), HasSubstr(rank + std::string(" runs on ") + own("Cpus_allowed_list") + ","));
    // Docker's default rules forbid memory policies, and the worker does without.
    const bool is_permitted = ::syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) == 0;
    EXPECT_THAT(job.out(), HasSubstr(is_permitted ? "memory prefer:0\n" : "memory"));
  }
  EXPECT_EQ(job.err(), "");
}

TEST(DdprunBinding, WorkersRunOnTheirCoresAlone) {
  if (!may_use({0, 1})) GTEST_SKIP() << "this test may not use cpus 0 and 1";
  for (const auto* mode : {"node", "socket", "exclusive", "core-complex"}) {
    Job job(bound({std::string("--numa-binding=") + mode, "--display-binding"}, kWhere), {{kTwoNodes, kNoGpus}, false});
    EXPECT_EQ(job.wait(), 0) << job.err();
    for (const auto* line : {"0 runs on 0, 1 threads\n", "1 runs on 1, 1 threads\n"})
      EXPECT_THAT(job.out(), HasSubstr(line)) << mode;
    for (const auto* line :
         {"ddprun: rank 0: core 0 (cpu 0), NUMA node 0\n", "ddprun: rank 1: core 1 (cpu 1), NUMA node 1\n"})
      EXPECT_THAT(job.err(), HasSubstr(line)) << mode;
  }
}

TEST(DdprunBinding, ARestartedWorkerIsBoundAsBefore) {
  if (!may_use({0, 1})) GTEST_SKIP() << "this test may not use cpus 0 and 1";
  Job job(bound({"--numa-binding=exclusive", "--display-binding", "--max-restarts=1"},
                "echo restart $TORCHELASTIC_RESTART_COUNT: $(" + kWhere + "); [ $TORCHELASTIC_RESTART_COUNT = 1 ]"),
          {{kTwoNodes, kNoGpus}, false});
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (const auto* line : {"restart 1: 0 runs on 0, 1 threads\n", "restart 1: 1 runs on 1, 1 threads\n"})
    EXPECT_THAT(job.out(), HasSubstr(line));
  EXPECT_EQ(job.err().find("rank 0: core"), job.err().rfind("rank 0: core"));  // shown once
}

TEST(DdprunBinding, TheWorkersGpuDecidesWhicheverNumberItHas) {
  if (!may_use({0, 1})) GTEST_SKIP() << "this test may not use cpus 0 and 1";
  const struct {
    const char* visible;
    const char *rank_0, *rank_1;
  } cases[] = {
      {"0,1", "core 1 (cpu 1), NUMA node 1, GPU 0 (fffe:1b:00.0)", "core 0 (cpu 0), NUMA node 0, GPU 1"},
      {"1,0", "core 0 (cpu 0), NUMA node 0, GPU 1 (fffe:e3:00.0)", "core 1 (cpu 1), NUMA node 1, GPU 0"},
      {"GPU-stand-in-2,GPU-stand-in-1", "core 0 (cpu 0), NUMA node 0, GPU 1", "core 1 (cpu 1), NUMA node 1, GPU 0"},
      {"MIG-part-4,0", "core 0 (cpu 0), NUMA node 0, GPU 1", "core 1 (cpu 1), NUMA node 1, GPU 0"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.visible);
    for (const auto* option : {"--no-prefix", "--virtual-local-rank"}) {
      Job job(bound({"--numa-binding=node", "--display-binding", option}, kWhere),
              {{kTwoNodes, kStandInNvml, std::string("CUDA_VISIBLE_DEVICES=") + c.visible}, false});
      EXPECT_EQ(job.wait(), 0) << job.err();
      EXPECT_THAT(job.err(), HasSubstr(std::string("rank 0: ") + c.rank_0));
      EXPECT_THAT(job.err(), HasSubstr(std::string("rank 1: ") + c.rank_1));
      const std::string cpu = c.rank_0[5] == '0' ? "0" : "1";
      EXPECT_THAT(job.out(), HasSubstr("0 runs on " + cpu + ","));
    }
  }
}

TEST(DdprunBinding, ADryRunShowsTheSame) {
  if (!may_use({0, 1})) GTEST_SKIP() << "this test may not use cpus 0 and 1";
  Job job(bound({"--numa-binding=socket", "--dry-run"}, "true"), {{kTwoNodes, kStandInNvml}, false});
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("          worker 0: core 1 (cpu 1), NUMA node 1, GPU 0 (fffe:1b:00.0)\n"));
}

TEST(DdprunBinding, TheDisplayAloneShowsWhatIsInherited) {
  Job job(bound({"--display-binding"}, kWhere));
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("ddprun: rank 1: cpu"));
  EXPECT_THAT(job.err(), HasSubstr(", as ddprun itself\n"));
  EXPECT_THAT(job.out(), HasSubstr("1 runs on " + own("Cpus_allowed_list") + ", 1 threads\n"));
}

TEST(DdprunBinding, OneCoreForAllIsTold) {
  if (sysconf(_SC_NPROCESSORS_ONLN) == 1) GTEST_SKIP() << "this machine has one cpu";
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (std::size_t cpu = 0; CPU_COUNT(&one) == 0 && cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // what ddprun inherits
  Job job(bound({}, "true"));
  EXPECT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.err(), HasSubstr("ddprun: all 2 workers share one core"));
}

TEST(DdprunBinding, TooFewCoresAreToldAndNothingStarts) {
  Job job({"--numa-binding=exclusive", "--nproc-per-node=4000", "sh", "-c", "echo started"}, {{kStandInNvml}, false});
  EXPECT_EQ(job.wait(), 2);
  EXPECT_THAT(job.err(), HasSubstr("so they can't have cores of their own\nwhere: --numa-binding=exclusive\ntry:   "));
  EXPECT_THAT(job.out(), Not(HasSubstr("started")));
  EXPECT_TRUE(job.is_gone_within());
}

}  // namespace
}  // namespace ddp::test
