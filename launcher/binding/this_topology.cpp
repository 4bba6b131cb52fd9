#include "launcher/binding/this_topology.hpp"

#include <hwloc.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

#include "base/library.hpp"
#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kMaskBytesMax = 64 * 1024;  // half a million CPUs; Linux has 8192 at most

[[noreturn]] void throw_unusable(const std::string& why) {
  throw UsageError("the topology of this machine can't be read: " + why, "--numa-binding, which needs hwloc 2",
                   "`apt-get install libhwloc15`, or leave --numa-binding out");
}

// The functions of hwloc that are used here.
class Hwloc {
 public:
  explicit Hwloc(const std::string& name) : library_(name) {
    if (!library_) throw_unusable(library_.error());
    find("hwloc_get_api_version", api_version);
    find("hwloc_topology_init", topology_init);
    find("hwloc_topology_set_flags", topology_set_flags);
    find("hwloc_topology_set_synthetic", topology_set_synthetic);
    find("hwloc_topology_load", topology_load);
    find("hwloc_topology_destroy", topology_destroy);
    find("hwloc_topology_get_allowed_nodeset", allowed_nodeset);
    find("hwloc_get_type_depth", type_depth);
    find("hwloc_get_nbobjs_by_depth", object_count);
    find("hwloc_get_obj_by_depth", object);
    find("hwloc_bitmap_first", bitmap_first);
    find("hwloc_bitmap_next", bitmap_next);
    if (api_version() >> 16 != HWLOC_API_VERSION >> 16) throw_unusable(name + " is of another generation of hwloc");
  }

  decltype(&hwloc_get_api_version) api_version;
  decltype(&hwloc_topology_init) topology_init;
  decltype(&hwloc_topology_set_flags) topology_set_flags;
  decltype(&hwloc_topology_set_synthetic) topology_set_synthetic;
  decltype(&hwloc_topology_load) topology_load;
  decltype(&hwloc_topology_destroy) topology_destroy;
  decltype(&hwloc_topology_get_allowed_nodeset) allowed_nodeset;
  decltype(&hwloc_get_type_depth) type_depth;
  decltype(&hwloc_get_nbobjs_by_depth) object_count;
  decltype(&hwloc_get_obj_by_depth) object;
  decltype(&hwloc_bitmap_first) bitmap_first;
  decltype(&hwloc_bitmap_next) bitmap_next;

 private:
  template <class Function>
  void find(const char* name, Function*& function) {
    if (!library_.find(name, function)) throw_unusable(std::string("it has no function ") + name);
  }

  base::Library library_;
};

class LoadedTopology {
 public:
  LoadedTopology(const Hwloc& hwloc, const std::string& synthetic) : hwloc_(hwloc) {
    if (hwloc_.topology_init(&topology_) != 0) throw_unusable("hwloc has no memory");
    // All of the machine, so that cores have the numbers that `lstopo` shows. Releases before 2.5 don't know the second
    // flag, which keeps hwloc from wandering over the CPUs to ask each; the kernel has told all that is used here.
    if (hwloc_.topology_set_flags(
            topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING) != 0)
      hwloc_.topology_set_flags(topology_, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    const bool is_known = synthetic.empty() || hwloc_.topology_set_synthetic(topology_, synthetic.c_str()) == 0;
    if (is_known && hwloc_.topology_load(topology_) == 0) return;
    hwloc_.topology_destroy(topology_);
    throw_unusable(is_known ? "hwloc_topology_load failed" : "hwloc can't read " + synthetic);
  }
  ~LoadedTopology() { hwloc_.topology_destroy(topology_); }
  LoadedTopology(const LoadedTopology&) = delete;

  Topology read(const std::vector<int>& cpus) const {
    Topology out;
    const int depth = hwloc_.type_depth(topology_, HWLOC_OBJ_PU);
    for (unsigned i = 0; i < hwloc_.object_count(topology_, depth); ++i) {
      const auto cpu = read(*hwloc_.object(topology_, depth, i));
      if (std::binary_search(cpus.begin(), cpus.end(), cpu.index)) out.cpus.push_back(cpu);
    }
    std::sort(out.cpus.begin(), out.cpus.end(), [](const Cpu& a, const Cpu& b) { return a.index < b.index; });
    const auto allowed = hwloc_.allowed_nodeset(topology_);
    for (int node = hwloc_.bitmap_first(allowed); node >= 0; node = hwloc_.bitmap_next(allowed, node))
      out.memory_nodes.push_back(node);
    return out;
  }

 private:
  Cpu read(const hwloc_obj& unit) const {
    Cpu cpu;
    cpu.index = static_cast<int>(unit.os_index);
    cpu.core = cpu.cache = cpu.index;
    // Where several kinds of memory are equally near, the lowest number is the one that has these CPUs in the kernel's
    // eyes.
    cpu.node = std::max(0, hwloc_.bitmap_first(unit.nodeset));
    for (const auto* around = unit.parent; around != nullptr; around = around->parent) {
      if (around->type == HWLOC_OBJ_CORE) cpu.core = static_cast<int>(around->logical_index);
      if (around->type == HWLOC_OBJ_PACKAGE) cpu.package = static_cast<int>(around->logical_index);
      if (around->type >= HWLOC_OBJ_L1CACHE && around->type <= HWLOC_OBJ_L5CACHE)  // each is larger than the one before
        cpu.cache = hwloc_.bitmap_first(around->cpuset);
    }
    return cpu;
  }

  const Hwloc& hwloc_;
  hwloc_topology_t topology_ = nullptr;
};

}  // namespace

std::vector<int> usable_cpus() {
  constexpr std::size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;
  for (std::size_t bytes = 1024; bytes <= kMaskBytesMax; bytes *= 2) {
    std::vector<unsigned long> mask(bytes / sizeof(unsigned long));
    if (::syscall(SYS_sched_getaffinity, 0, bytes, mask.data()) < 0) {
      if (errno == EINVAL) continue;  // the kernel has more
      break;
    }
    std::vector<int> out;
    for (std::size_t i = 0; i < mask.size() * kWordBits; ++i)
      if ((mask[i / kWordBits] >> i % kWordBits & 1) != 0) out.push_back(static_cast<int>(i));
    return out;
  }
  throw std::system_error(errno, std::generic_category(), "sched_getaffinity");
}

Topology read_topology(const std::vector<int>& cpus, const HwlocOptions& options) {
  const Hwloc hwloc(options.library);
  auto out = LoadedTopology(hwloc, options.synthetic).read(cpus);
  if (out.cpus.empty()) throw_unusable("hwloc knows none of the cpus that ddprun may use");
  return out;
}

}  // namespace ddp::launcher
