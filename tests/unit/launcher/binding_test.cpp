#include "launcher/binding/binding.hpp"

#include "launcher/output/line_prefix.hpp"
#include "tests/unit/launcher/a_machine.hpp"

namespace ddp::launcher {
namespace {

using Mode = BindingOptions::Mode;

struct Shape {
  int packages = 1, nodes = 1, caches = 1, cores = 4;  // each in one of what stands before
  int threads = 1;
};

// A machine as Linux numbers it: hyper-threads have the upper half of the numbers.
Topology machine(const Shape& shape, std::vector<Gpu> gpus = {}) {
  Topology out;
  out.gpus = std::move(gpus);
  const int nodes = shape.packages * shape.nodes, caches = nodes * shape.caches, cores = caches * shape.cores;
  for (int cpu = 0; cpu < cores * shape.threads; ++cpu) {
    const int core = cpu % cores, cache = core / shape.cores, node = cache / shape.caches;
    out.cpus.push_back({cpu, core, node / shape.nodes, node, cache});
  }
  for (int node = 0; node < nodes; ++node) out.memory_nodes.push_back(node);
  return out;
}

std::vector<Gpu> gpus_at(const std::vector<std::optional<int>>& nodes) {
  std::vector<Gpu> out;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto name = std::to_string(i);
    out.push_back({"0000:0" + name + ":00.0",
                   "GPU-" + name + name + "-aa",
                   {"MIG-" + name + "-x", "MIG-" + name + "-y"},
                   nodes[i]});
  }
  return out;
}

Topology only(Topology topology, const std::vector<int>& cpus) {
  std::vector<Cpu> left;
  for (const auto& cpu : topology.cpus)
    if (std::find(cpus.begin(), cpus.end(), cpu.index) != cpus.end()) left.push_back(cpu);
  topology.cpus = left;
  return topology;
}

// "<cpus>@<memory nodes>" of each worker.
std::vector<std::string> bound(const Topology& topology, Mode mode, int workers,
                               const std::optional<std::string>& visible = {}) {
  std::vector<std::string> out;
  for (const auto& binding : bind_workers(topology, mode, workers, visible))
    out.push_back(rank_ranges(binding.cpus) + "@" + rank_ranges(binding.memory_nodes));
  return out;
}

std::vector<int> shares(const Topology& topology, Mode mode, int workers) {
  std::vector<int> out;
  for (const auto& binding : bind_workers(topology, mode, workers, {})) out.push_back(binding.core_share.value());
  return out;
}

using Texts = std::vector<std::string>;
using Numbers = std::vector<int>;

class BindWorkers : public AMachine {};

const Shape kTwoSockets{.packages = 2, .nodes = 2, .caches = 2, .cores = 2, .threads = 2};  // 16 cores, 32 cpus

TEST_F(BindWorkers, NodeIsAllOfTheGpusNode) {
  const auto topology = machine(kTwoSockets, gpus_at({3, 1, 0, 0}));
  EXPECT_EQ(bound(topology, Mode::node, 4), (Texts{"12-15,28-31@3", "4-7,20-23@1", "0-3,16-19@0", "0-3,16-19@0"}));
  EXPECT_EQ(shares(topology, Mode::node, 4), (Numbers{4, 4, 2, 2}));  // cores, not hyper-threads
}

TEST_F(BindWorkers, SocketIsAllNodesOfItsPackage) {
  const auto topology = machine(kTwoSockets, gpus_at({3, 1, 0}));
  EXPECT_EQ(bound(topology, Mode::socket, 3), (Texts{"8-15,24-31@2,3", "0-7,16-23@0,1", "0-7,16-23@0,1"}));
  EXPECT_EQ(shares(topology, Mode::socket, 3), (Numbers{8, 4, 4}));
}

TEST_F(BindWorkers, ANodeOverTwoPackagesIsNotCutBySocket) {
  auto topology = machine({.packages = 2, .cores = 2});
  for (auto& cpu : topology.cpus) cpu.node = 0;
  topology.memory_nodes = {0};
  EXPECT_EQ(bound(topology, Mode::socket, 1), (Texts{"0-3@0"}));
}

TEST_F(BindWorkers, ExclusiveSplitsWholeCoresAndGivesTheRestToTheFirst) {
  const auto topology = machine({.packages = 2, .cores = 5, .threads = 2}, gpus_at({0, 1, 0, 0}));
  EXPECT_EQ(bound(topology, Mode::exclusive, 4), (Texts{"0,1,10,11@0", "5-9,15-19@1", "2,3,12,13@0", "4,14@0"}));
  EXPECT_EQ(shares(topology, Mode::exclusive, 4), (Numbers{2, 5, 2, 1}));
}

TEST_F(BindWorkers, ExclusiveNeverSharesAndNeverWastes) {
  for (int cores = 1; cores <= 9; ++cores)
    for (int workers = 1; workers <= cores; ++workers) {
      SCOPED_TRACE(std::to_string(workers) + " workers, " + std::to_string(cores) + " cores");
      std::set<int> taken;
      int least = cores, most = 0;
      for (const auto& binding : bind_workers(machine({.cores = cores, .threads = 2}), Mode::exclusive, workers, {})) {
        const int mine = static_cast<int>(binding.cores.size());
        least = std::min(least, mine);
        most = std::max(most, mine);
        EXPECT_EQ(binding.cpus.size(), 2 * binding.cores.size());
        for (const int cpu : binding.cpus) EXPECT_TRUE(taken.insert(cpu).second) << cpu;
      }
      EXPECT_EQ(taken.size(), static_cast<std::size_t>(2 * cores));
      EXPECT_LE(most - least, 1);
    }
}

TEST_F(BindWorkers, CoreComplexesGoRoundTheLargestFirst) {
  // Three caches of 2, 3 and 2 cores, as where the cpuset has taken some of the first.
  auto topology = machine({.caches = 3, .cores = 3});
  topology = only(topology, {1, 2, 3, 4, 5, 7, 8});
  EXPECT_EQ(bound(topology, Mode::core_complex, 4), (Texts{"3-5@0", "1,2@0", "7,8@0", "3-5@0"}));
  EXPECT_EQ(shares(topology, Mode::core_complex, 4), (Numbers{1, 2, 2, 1}));
  const auto two = machine(kTwoSockets, gpus_at({1, 0, 1}));
  EXPECT_EQ(bound(two, Mode::core_complex, 3), (Texts{"4,5,20,21@1", "0,1,16,17@0", "6,7,22,23@1"}));
}

TEST_F(BindWorkers, ACacheOverSeveralNodesEndsAtTheNode) {
  auto topology = machine({.nodes = 2, .cores = 2});
  for (auto& cpu : topology.cpus) cpu.cache = 0;
  EXPECT_EQ(bound(topology, Mode::core_complex, 2), (Texts{"0,1@0", "2,3@1"}));
}

TEST_F(BindWorkers, WithoutGpusTheyAreSpreadOverTheNodesInBlocks) {
  const auto topology = machine({.packages = 2, .cores = 2});
  EXPECT_EQ(bound(topology, Mode::node, 1), (Texts{"0,1@0"}));
  EXPECT_EQ(bound(topology, Mode::node, 2), (Texts{"0,1@0", "2,3@1"}));
  EXPECT_EQ(bound(topology, Mode::node, 3), (Texts{"0,1@0", "0,1@0", "2,3@1"}));
  EXPECT_EQ(bound(topology, Mode::exclusive, 4), (Texts{"0@0", "1@0", "2@1", "3@1"}));
  EXPECT_EQ(bound(machine({.packages = 4, .cores = 1}), Mode::node, 2), (Texts{"0@0", "2@2"}));
  EXPECT_EQ(bound(only(machine({.packages = 4, .cores = 1}), {1, 3}), Mode::node, 2), (Texts{"1@1", "3@3"}));
}

TEST_F(BindWorkers, FewerGpusThanWorkersBelongToNobody) {
  const auto topology = machine({.packages = 2, .cores = 2}, gpus_at({1}));
  EXPECT_EQ(bound(topology, Mode::node, 2), (Texts{"0,1@0", "2,3@1"}));
  EXPECT_EQ(bound(topology, Mode::node, 1, ""), (Texts{"0,1@0"}));
  EXPECT_EQ(bound(topology, Mode::node, 1, "-1"), (Texts{"0,1@0"}));
  EXPECT_EQ(bind_workers(topology, Mode::node, 2, {})[0].gpu, std::nullopt);
}

TEST_F(BindWorkers, TheGpuIsTheEntryOfCudaVisibleDevices) {
  const auto topology = machine({.packages = 4, .cores = 1}, gpus_at({0, 1, 2, 3}));
  const auto chosen = [&topology](const std::string& visible, int workers) {
    Numbers out;
    for (const auto& binding : bind_workers(topology, Mode::node, workers, visible)) {
      EXPECT_EQ(binding.cpus, Numbers{binding.gpu.value_or(-1)}) << visible;
      out.push_back(binding.gpu.value_or(-1));
    }
    return out;
  };
  EXPECT_EQ(chosen("3,2,1,0", 4), (Numbers{3, 2, 1, 0}));
  EXPECT_EQ(chosen(" 2 , 0 ", 2), (Numbers{2, 0}));
  EXPECT_EQ(chosen("GPU-33-aa,GPU-1", 2), (Numbers{3, 1}));
  EXPECT_EQ(chosen("MIG-2-y,MIG-2-x,MIG-0-x", 3), (Numbers{2, 2, 0}));
  EXPECT_EQ(chosen("MIG-GPU-11-aa/3/0,1", 2), (Numbers{1, 1}));
  EXPECT_EQ(chosen("2,7,1", 1), (Numbers{2}));
  EXPECT_EQ(bound(topology, Mode::node, 2, "2,7,1"), (Texts{"0@0", "2@2"}));  // 7 ends the list, so 2 is nobody's own
  for (const auto* entry : {"GPU-4", "GPU-33-aab", "MIG-9", "MIG-GPU-4/1/0", "MIG-GPU-"})
    expect_usage_error([&] { bound(topology, Mode::node, 1, entry); }, entry, "--numa-binding=node", "nvidia-smi -L");
  EXPECT_EQ(bound(machine({.cores = 1}), Mode::node, 1, "GPU-4"),
            (Texts{"0@0"}));  // no GPU at all: nothing to look for
}

TEST_F(BindWorkers, AGpuOfUnknownPlaceIsAtTheFirstNode) {
  EXPECT_EQ(bound(machine({.packages = 2, .cores = 1}, gpus_at({std::nullopt, 1})), Mode::node, 2),
            (Texts{"0@0", "1@1"}));
  EXPECT_EQ(bound(only(machine({.packages = 2, .cores = 1}, gpus_at({std::nullopt})), {1}), Mode::node, 1),
            (Texts{"1@1"}));
}

TEST_F(BindWorkers, ACpusetIsNeverLeft) {
  const auto topology = only(machine(kTwoSockets, gpus_at({0, 1})), {1, 2, 17, 5, 6, 7});
  EXPECT_EQ(bound(topology, Mode::node, 2), (Texts{"1,2,17@0", "5-7@1"}));
  EXPECT_EQ(bound(topology, Mode::socket, 2), (Texts{"1,2,5-7,17@0,1", "1,2,5-7,17@0,1"}));
  EXPECT_EQ(bound(topology, Mode::exclusive, 2), (Texts{"1,2,17@0", "5-7@1"}));
  EXPECT_EQ(shares(topology, Mode::socket, 2), (Numbers{2, 2}));  // five cores for two
  auto no_memory = topology;
  no_memory.memory_nodes = {0};  // as the cpuset's mems says
  EXPECT_EQ(bound(no_memory, Mode::node, 2), (Texts{"1,2,17@0", "5-7@"}));
}

TEST_F(BindWorkers, WhoWouldGetNothingIsTold) {
  const auto topology = only(machine({.packages = 2, .cores = 2}, gpus_at({0, 1, 1})), {0, 1, 2});
  expect_usage_error(
      [&] {
        bound(only(topology, {0, 1}), Mode::node, 3);
      },
      "worker 1 can't be bound: its GPU 1 is at NUMA node 1, of which ddprun may use no core",
      "--numa-binding=node; ddprun may use cpus 0,1", "scheduler");
  expect_usage_error([&] { bound(topology, Mode::exclusive, 3); },
                     "at NUMA node 1 there are 2 workers and 1 core that ddprun may use", "--numa-binding=exclusive",
                     "`--numa-binding=node`");
}

TEST_F(BindWorkers, IsToldInOneLine) {
  auto topology = machine({.packages = 2, .cores = 4, .threads = 2}, gpus_at({0, 1}));
  const auto bindings = bind_workers(topology, Mode::node, 2, {});
  EXPECT_EQ(describe(bindings[1]), "cores 4-7 (cpus 4-7,12-15), NUMA node 1, GPU 1 (0000:01:00.0)");
  EXPECT_EQ(describe(bind_workers(topology, Mode::exclusive, 8, "")[3]), "core 3 (cpus 3,11), NUMA node 0");
  EXPECT_EQ(describe(bind_workers(machine({.nodes = 2, .cores = 1}), Mode::socket, 1, {})[0]),
            "cores 0,1 (cpus 0,1), NUMA nodes 0,1");
  Binding inherited;
  inherited.cpus = {0, 1, 5};
  EXPECT_EQ(describe(inherited), "cpus 0,1,5, as ddprun itself");
}

}  // namespace
}  // namespace ddp::launcher
