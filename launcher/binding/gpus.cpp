#include "launcher/binding/gpus.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/nvml.hpp"

namespace ddp::launcher {
namespace {

using base::kNvmlSuccess;
using base::NvmlDevice;

struct NvmlPciInfo {  // of nvmlDeviceGetPciInfo_v3
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
constexpr unsigned kNvmlScopeNode = 0;
constexpr unsigned kUuidBytes = 96;
constexpr unsigned kWordBits = sizeof(unsigned long) * CHAR_BIT;
constexpr unsigned kNodesMax = 1024;  // of Linux

class NvmlGpus {
 public:
  explicit NvmlGpus(const std::string& name) : nvml_(name) {
    const bool is_complete = nvml_.find("nvmlShutdown", shutdown_) && nvml_.find("nvmlDeviceGetUUID", uuid_) &&
                             nvml_.find("nvmlDeviceGetPciInfo_v3", pci_info_);
    nvml_.find("nvmlDeviceGetMemoryAffinity", memory_affinity_);
    nvml_.find("nvmlDeviceGetMaxMigDeviceCount", mig_count_);
    nvml_.find("nvmlDeviceGetMigDeviceHandleByIndex", mig_handle_);
    is_ready_ = is_complete && nvml_.begin();
  }
  ~NvmlGpus() {
    if (is_ready_) shutdown_();
  }
  NvmlGpus(const NvmlGpus&) = delete;

  bool is_ready() const { return is_ready_; }

  std::vector<Gpu> gpus() const {
    std::vector<Gpu> out;
    for (const NvmlDevice device : nvml_.devices()) out.push_back(device != nullptr ? read(device) : Gpu{});
    return out;
  }

 private:
  Gpu read(NvmlDevice device) const {
    Gpu gpu;
    NvmlPciInfo pci{};
    if (pci_info_(device, &pci) == kNvmlSuccess) {
      char address[32];
      std::snprintf(address, sizeof address, "%04x:%02x:%02x.0", pci.domain, pci.bus, pci.device);
      gpu.pci_address = address;
    }
    gpu.uuid = uuid_of(device);
    gpu.node = node_of(device);
    unsigned parts = 0;
    if (mig_count_ == nullptr || mig_handle_ == nullptr || mig_count_(device, &parts) != kNvmlSuccess) return gpu;
    for (unsigned i = 0; i < parts; ++i)  // places, of which some are empty
      if (NvmlDevice part = nullptr; mig_handle_(device, i, &part) == kNvmlSuccess)
        gpu.mig_uuids.push_back(uuid_of(part));
    return gpu;
  }

  std::string uuid_of(NvmlDevice device) const {
    char text[kUuidBytes + 1] = {};
    return uuid_(device, text, kUuidBytes) == kNvmlSuccess ? text : "";
  }

  // Empty where NVML can't tell: it then fails, or names none or all.
  std::optional<int> node_of(NvmlDevice device) const {
    unsigned long nodes[kNodesMax / kWordBits] = {};
    if (memory_affinity_ == nullptr ||
        memory_affinity_(device, std::size(nodes), nodes, kNvmlScopeNode) != kNvmlSuccess)
      return {};
    std::optional<int> found;
    for (unsigned node = 0; node < kNodesMax; ++node) {
      if ((nodes[node / kWordBits] >> node % kWordBits & 1) == 0) continue;
      if (found) return {};
      found = static_cast<int>(node);
    }
    return found;
  }

  base::Nvml nvml_;
  int (*shutdown_)();
  int (*uuid_)(NvmlDevice, char*, unsigned);
  int (*pci_info_)(NvmlDevice, NvmlPciInfo*);
  int (*memory_affinity_)(NvmlDevice, unsigned, unsigned long*, unsigned);
  int (*mig_count_)(NvmlDevice, unsigned*);
  int (*mig_handle_)(NvmlDevice, unsigned, NvmlDevice*);
  bool is_ready_ = false;
};

// A container may have the driver without NVML. MIG parts are not told here.
std::vector<Gpu> gpus_of_the_driver(const std::string& root) {
  std::vector<Gpu> out;
  std::error_code error;
  for (std::filesystem::directory_iterator it(root + "/proc/driver/nvidia/gpus", error), end; !error && it != end;
       it.increment(error)) {
    Gpu gpu;
    gpu.pci_address = it->path().filename();
    std::ifstream information(it->path() / "information");
    for (std::string line; std::getline(information, line);)
      if (line.rfind("GPU UUID:", 0) == 0) gpu.uuid = line.substr(line.find_last_of(" \t") + 1);
    out.push_back(std::move(gpu));
  }
  std::sort(out.begin(), out.end(), [](const Gpu& a, const Gpu& b) { return a.pci_address < b.pci_address; });
  return out;
}

// The kernel says -1 where it does not know, as in many virtual machines.
std::optional<int> node_at(const std::string& pci_address, const std::string& root) {
  int node = -1;
  std::ifstream(root + "/sys/bus/pci/devices/" + pci_address + "/numa_node") >> node;
  return node >= 0 ? std::optional(node) : std::nullopt;
}

}  // namespace

std::vector<Gpu> find_gpus(const GpuSources& sources) {
  const NvmlGpus nvml(sources.nvml);
  auto out = nvml.is_ready() ? nvml.gpus() : gpus_of_the_driver(sources.root);
  for (auto& gpu : out)
    if (!gpu.node && !gpu.pci_address.empty()) gpu.node = node_at(gpu.pci_address, sources.root);
  return out;
}

}  // namespace ddp::launcher
