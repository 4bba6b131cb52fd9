#include "launcher/binding/binding.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "launcher/command_line/usage_error.hpp"
#include "launcher/command_line/visible_devices.hpp"
#include "launcher/output/line_prefix.hpp"

namespace ddp::launcher {
namespace {

using Mode = BindingOptions::Mode;
using Cpus = std::vector<Cpu>;  // by ascending index

bool has_prefix(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

std::string option(Mode mode) { return "--numa-binding=" + mode_name(mode); }

std::string counted(const std::string& thing, const std::vector<int>& which) {
  return thing + (which.size() == 1 ? " " : "s ") + rank_ranges(which);
}

// The GPU that an entry of CUDA_VISIBLE_DEVICES names; empty where it names none. Parts of a GPU (MIG) are named by
// their own UUID, by older drivers as MIG-<UUID of the GPU>/<instance>/<instance>. A UUID may be cut short.
std::optional<int> gpu_named(const std::string& entry, const std::vector<Gpu>& gpus) {
  const auto count = static_cast<int>(gpus.size());
  const auto first_where = [&gpus](const auto& is_it) -> std::optional<int> {
    const auto found = std::find_if(gpus.begin(), gpus.end(), is_it);
    return found == gpus.end() ? std::nullopt : std::optional(static_cast<int>(found - gpus.begin()));
  };
  if (has_prefix(entry, "MIG-GPU-")) {
    const auto uuid = entry.substr(4, entry.find('/') - 4);
    return first_where([&uuid](const Gpu& gpu) { return gpu.uuid == uuid; });
  }
  if (has_prefix(entry, "MIG-"))
    return first_where([&entry](const Gpu& gpu) {
      return std::any_of(gpu.mig_uuids.begin(), gpu.mig_uuids.end(),
                         [&entry](const std::string& uuid) { return has_prefix(uuid, entry); });
    });
  if (has_prefix(entry, "GPU-")) return first_where([&entry](const Gpu& gpu) { return has_prefix(gpu.uuid, entry); });
  int index = -1;
  const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (error != std::errc{} || end != entry.data() + entry.size() || index < 0 || index >= count) return {};
  return index;
}

// In the order in which workers count them. As in CUDA, entries behind one that names nothing do not count; a UUID that
// names nothing here is told, as a worker would fail by it.
std::vector<int> visible_gpus(const std::vector<Gpu>& gpus, const std::optional<std::string>& visible_devices,
                              Mode mode) {
  std::vector<int> out;
  if (!visible_devices) {
    for (std::size_t i = 0; i < gpus.size(); ++i) out.push_back(static_cast<int>(i));
    return out;
  }
  if (gpus.empty()) return out;
  for (const auto& entry : entries_of_visible_devices(*visible_devices)) {
    const auto gpu = gpu_named(entry, gpus);
    if (!gpu && (has_prefix(entry, "GPU-") || has_prefix(entry, "MIG-")))
      throw UsageError("CUDA_VISIBLE_DEVICES names " + entry + ", which no GPU here has",
                       option(mode) + ", which looks for the worker's GPU",
                       "`nvidia-smi -L` names GPUs and their parts; or leave --numa-binding out");
    if (!gpu) break;
    out.push_back(*gpu);
  }
  return out;
}

template <class Condition>
Cpus cpus_where(const Cpus& cpus, const Condition& condition) {
  Cpus out;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(out), condition);
  return out;
}

template <class Value>
std::vector<int> distinct(const Cpus& cpus, Value value) {
  std::set<int> out;
  for (const auto& cpu : cpus) out.insert(cpu.*value);
  return {out.begin(), out.end()};
}

// By each one's lowest CPU.
std::vector<Cpus> groups_by(const Cpus& cpus, int Cpu::*what) {
  std::vector<Cpus> out;
  std::map<int, std::size_t> place;
  for (const auto& cpu : cpus) {
    const auto [found, is_new] = place.emplace(cpu.*what, out.size());
    if (is_new) out.emplace_back();
    out[found->second].push_back(cpu);
  }
  return out;
}

// A worker as the machine sees it.
struct WorkerPlace {
  std::optional<int> gpu;
  int node = 0;
  std::size_t index = 0, neighbours = 0;  // `index`: among the workers of its node, and how many those are
};

std::vector<WorkerPlace> places_of(const Topology& topology, Mode mode, int workers,
                                   const std::optional<std::string>& visible_devices) {
  const auto nodes = distinct(topology.cpus, &Cpu::node);
  const auto visible = visible_gpus(topology.gpus, visible_devices, mode);
  const bool have_gpus = visible.size() >= static_cast<std::size_t>(workers);  // else nobody knows who uses which
  std::vector<WorkerPlace> places(static_cast<std::size_t>(workers));
  std::map<int, std::size_t> count;
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto& place = places[i];
    if (have_gpus) {
      place.gpu = visible[i];
      place.node = topology.gpus[static_cast<std::size_t>(*place.gpu)].node.value_or(nodes.front());
    } else {
      place.node = nodes[i * nodes.size() / places.size()];
    }
    if (!std::binary_search(nodes.begin(), nodes.end(), place.node))
      throw UsageError("worker " + std::to_string(i) + " can't be bound: its GPU " + std::to_string(*place.gpu) +
                           " is at NUMA node " + std::to_string(place.node) + ", of which ddprun may use no core",
                       option(mode) + "; ddprun may use " + counted("cpu", distinct(topology.cpus, &Cpu::index)),
                       "ask the scheduler for cores near the GPU, or leave --numa-binding out");
    place.index = count[place.node]++;
  }
  for (auto& place : places) place.neighbours = count[place.node];
  return places;
}

// All cores of the nodes that have their first core in the same package as this node has its own.
Cpus socket_of(const Cpus& cpus, int node) {
  std::map<int, int> package_of;
  for (const auto& cpu : cpus) package_of.emplace(cpu.node, cpu.package);
  return cpus_where(cpus, [&](const Cpu& cpu) { return package_of[cpu.node] == package_of[node]; });
}

// Whole cores; what can't be split evenly goes to the first workers.
Cpus own_cores(const Cpus& cpus, const WorkerPlace& place) {
  const auto cores = groups_by(cpus, &Cpu::core);
  if (cores.size() < place.neighbours)
    throw UsageError("at NUMA node " + std::to_string(place.node) + " there are " + std::to_string(place.neighbours) +
                         " workers and " + (cores.size() == 1 ? "1 core" : std::to_string(cores.size()) + " cores") +
                         " that ddprun may use, so they can't have cores of their own",
                     option(Mode::exclusive), "`--numa-binding=node`, which lets them share, or fewer workers");
  const auto each = cores.size() / place.neighbours, rest = cores.size() % place.neighbours;
  const auto first = place.index * each + std::min(place.index, rest);
  Cpus out;
  for (auto i = first; i < first + each + (place.index < rest ? 1 : 0); ++i)
    out.insert(out.end(), cores[i].begin(), cores[i].end());
  std::sort(out.begin(), out.end(), [](const Cpu& a, const Cpu& b) { return a.index < b.index; });
  return out;
}

// The CPUs behind one cache; workers take turns at them, the largest first.
Cpus complex_of(const Cpus& cpus, const WorkerPlace& place) {
  auto complexes = groups_by(cpus, &Cpu::cache);
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const Cpus& a, const Cpus& b) { return a.size() > b.size(); });
  return complexes[place.index % complexes.size()];
}

Cpus cpus_of(const Cpus& all, Mode mode, const WorkerPlace& place) {
  if (mode == Mode::socket) return socket_of(all, place.node);
  const auto cpus = cpus_where(all, [&place](const Cpu& cpu) { return cpu.node == place.node; });
  if (mode == Mode::exclusive) return own_cores(cpus, place);
  if (mode == Mode::core_complex) return complex_of(cpus, place);
  return cpus;
}

}  // namespace

std::vector<Binding> bind_workers(const Topology& topology, Mode mode, int workers,
                                  const std::optional<std::string>& visible_devices) {
  std::vector<Binding> out;
  std::map<std::vector<int>, int> sharers;
  for (const auto& place : places_of(topology, mode, workers, visible_devices)) {
    const auto cpus = cpus_of(topology.cpus, mode, place);
    Binding binding;
    binding.cpus = distinct(cpus, &Cpu::index);
    binding.cores = distinct(cpus, &Cpu::core);
    for (const int node : distinct(cpus, &Cpu::node))
      if (std::binary_search(topology.memory_nodes.begin(), topology.memory_nodes.end(), node))
        binding.memory_nodes.push_back(node);
    binding.gpu = place.gpu;
    if (place.gpu) binding.gpu_address = topology.gpus[static_cast<std::size_t>(*place.gpu)].pci_address;
    ++sharers[binding.cpus];
    out.push_back(std::move(binding));
  }
  for (auto& binding : out)
    binding.core_share = std::max(1, static_cast<int>(binding.cores.size()) / sharers[binding.cpus]);
  return out;
}

std::string describe(const Binding& binding) {
  const auto cpus = counted("cpu", binding.cpus);
  if (!binding.core_share) return cpus + ", as ddprun itself";
  auto text = counted("core", binding.cores) + " (" + cpus + ")";
  if (!binding.memory_nodes.empty()) text += ", " + counted("NUMA node", binding.memory_nodes);
  if (binding.gpu) {
    text += ", GPU " + std::to_string(*binding.gpu);
    if (!binding.gpu_address.empty()) text += " (" + binding.gpu_address + ")";
  }
  return text;
}

std::string mode_name(Mode mode) {
  switch (mode) {
    case Mode::none: return "none";
    case Mode::node: return "node";
    case Mode::socket: return "socket";
    case Mode::exclusive: return "exclusive";
    case Mode::core_complex: return "core-complex";
  }
  return {};
}

}  // namespace ddp::launcher
