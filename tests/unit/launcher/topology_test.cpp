// What is read of a machine: by the real hwloc of this one and of machines that it only describes, by a stand-in for
// NVML.
#include <sched.h>

#include <filesystem>
#include <fstream>

#include "launcher/binding/gpus.hpp"
#include "launcher/binding/this_topology.hpp"
#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReadTopology : public AMachine {
 protected:
  static Topology of(const std::string& description, const std::vector<int>& cpus) {
    return read_topology(cpus, {.synthetic = description});
  }
};

std::vector<int> of_each(const Topology& topology, int Cpu::*what) {
  std::vector<int> out;
  for (const auto& cpu : topology.cpus) out.push_back(cpu.*what);
  return out;
}

TEST_F(ReadTopology, OfThisMachineHasWhatTheAffinityMaskHas) {
  const auto cpus = usable_cpus();
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  ASSERT_EQ(cpus.size(), static_cast<std::size_t>(CPU_COUNT(&mask)));
  for (const int cpu : cpus) EXPECT_TRUE(CPU_ISSET(static_cast<std::size_t>(cpu), &mask));
  const auto topology = read_topology(cpus);
  EXPECT_EQ(of_each(topology, &Cpu::index), cpus);
  EXPECT_FALSE(topology.memory_nodes.empty());
  const bool has_nodes = std::filesystem::exists("/sys/devices/system/node");
  for (const auto& cpu : topology.cpus) {
    const auto path = "/sys/devices/system/cpu/cpu" + std::to_string(cpu.index) + "/node" + std::to_string(cpu.node);
    EXPECT_TRUE(!has_nodes || std::filesystem::exists(path)) << path;
  }
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&mask, &after));  // hwloc has not moved this process
}

TEST_F(ReadTopology, OfALargerOneHasAllItsLevels) {
  const auto topology = of("numa:2 pack:1 l3:2 core:2 pu:2", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
  EXPECT_THAT(of_each(topology, &Cpu::core), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7));
  EXPECT_THAT(of_each(topology, &Cpu::cache), ElementsAre(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
  EXPECT_THAT(of_each(topology, &Cpu::node), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(of_each(topology, &Cpu::package), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_THAT(topology.memory_nodes, ElementsAre(0, 1));
}

TEST_F(ReadTopology, IsRestrictedToTheCpusAskedFor) {
  const auto topology = of("pack:2 numa:1 core:2 pu:2", {1, 6, 7, 99});
  EXPECT_THAT(of_each(topology, &Cpu::index), ElementsAre(1, 6, 7));
  EXPECT_THAT(of_each(topology, &Cpu::core), ElementsAre(0, 3, 3));
  EXPECT_THAT(of_each(topology, &Cpu::node), ElementsAre(0, 1, 1));
}

TEST_F(ReadTopology, TheLargestCacheCountsAndACoreWithoutOneIsItsOwn) {
  EXPECT_THAT(of_each(of("numa:1 l3:1 l2:2 core:2 pu:1", {0, 1, 2, 3}), &Cpu::cache), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(of_each(of("numa:1 l2:2 core:2 pu:1", {0, 1, 2, 3}), &Cpu::cache), ElementsAre(0, 0, 2, 2));
  EXPECT_THAT(of_each(of("numa:1 core:4 pu:1", {0, 1, 2, 3}), &Cpu::cache), ElementsAre(0, 1, 2, 3));
}

TEST_F(ReadTopology, OfNearMemoryOfTwoKindsTheFirstNodeCounts) {
  const auto topology = of("[numa] [numa] core:2 pu:1", {0, 1});
  EXPECT_THAT(of_each(topology, &Cpu::node), ElementsAre(0, 0));
  EXPECT_THAT(topology.memory_nodes, ElementsAre(0, 1));
}

TEST_F(ReadTopology, WhatIsMissingIsTold) {
  expect_usage_error(
      [] {
        read_topology({0}, {"libhwloc-nowhere.so.15", ""});
      },
      "libhwloc-nowhere.so.15", "hwloc 2", "apt-get install libhwloc15");
  expect_usage_error(
      [] {
        read_topology({0}, {DDP_TEST_STAND_IN_NVML, ""});
      },
      "hwloc_get_api_version", "hwloc", "libhwloc15");
  expect_usage_error([] { of("nonsense:", {0}); }, "can't read nonsense", "hwloc", "leave --numa-binding out");
  expect_usage_error([] { of("core:2 pu:1", {7}); }, "none of the cpus", "hwloc", "leave --numa-binding out");
}

class FindGpus : public ::testing::Test {
 protected:
  ~FindGpus() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const auto file = std::filesystem::path(root_ + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_ = [] {
    auto path = ::testing::TempDir() + "ddprun_gpus_XXXXXX";
    return std::string(::mkdtemp(path.data()));
  }();
};

TEST_F(FindGpus, AsksNvml) {
  const auto gpus = find_gpus({.nvml = DDP_TEST_STAND_IN_NVML, .root = root_});
  ASSERT_EQ(gpus.size(), 3u);
  EXPECT_EQ(gpus[0].pci_address, "fffe:1b:00.0");
  EXPECT_EQ(gpus[0].uuid, "GPU-stand-in-1");
  EXPECT_EQ(gpus[0].node, 1);
  EXPECT_THAT(gpus[0].mig_uuids, IsEmpty());
  EXPECT_EQ(gpus[1].node, 0);
  EXPECT_THAT(gpus[1].mig_uuids, ElementsAre("MIG-part-1", "MIG-part-4"));
  EXPECT_EQ(gpus[2].uuid + gpus[2].pci_address, "");  // it is lost, and keeps its number
  EXPECT_EQ(gpus[2].node, std::nullopt);
}

TEST_F(FindGpus, WithoutNvmlAsksTheDriverAndTheKernel) {
  for (const auto& [address, uuid, node] :
       {std::tuple("0000:e3:00.0", "GPU-b", "1\n"), {"0000:1b:00.0", "GPU-a", "-1\n"}}) {
    write(std::string("/proc/driver/nvidia/gpus/") + address + "/information",
          std::string("Model: \t\t NVIDIA\nGPU UUID: \t ") + uuid + "\nDevice Minor: \t 0\n");
    write(std::string("/sys/bus/pci/devices/") + address + "/numa_node", node);
  }
  const auto gpus = find_gpus({.nvml = "libnvidia-ml-nowhere.so.1", .root = root_});
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].pci_address, "0000:1b:00.0");
  EXPECT_EQ(gpus[0].uuid, "GPU-a");
  EXPECT_EQ(gpus[0].node, std::nullopt);
  EXPECT_EQ(gpus[1].uuid, "GPU-b");
  EXPECT_EQ(gpus[1].node, 1);
}

TEST_F(FindGpus, FindsNoneWhereThereIsNoDriver) {
  EXPECT_THAT(find_gpus({.nvml = "libnvidia-ml-nowhere.so.1", .root = root_}), IsEmpty());
}

}  // namespace
}  // namespace ddp::launcher
