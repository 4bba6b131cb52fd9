// What of a machine workers can be bound to, as plain values: read from this machine (this_topology.hpp), or made by
// hand in a test.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp::launcher {

struct Cpu {
  int index = 0;    // the kernel's number
  int core = 0;     // hyper-threads of one core have the same number
  int package = 0;  // socket
  int node = 0;     // NUMA node
  int cache = 0;    // CPUs that share the largest cache have the same number
};

struct Gpu {
  std::string pci_address;             // "0000:65:00.0"
  std::string uuid;                    // "GPU-..."
  std::vector<std::string> mig_uuids;  // of its parts: "MIG-..."
  std::optional<int> node;             // that it is nearest to, where the machine says so
};

struct Topology {
  std::vector<Cpu> cpus;          // that ddprun may use, by ascending index
  std::vector<int> memory_nodes;  // NUMA nodes that ddprun may have memory of
  std::vector<Gpu> gpus;          // by ascending PCI address, as CUDA numbers equal ones
};

}  // namespace ddp::launcher
