#include "worker_runtime/process_group/all_gather_words.hpp"

#include "worker_runtime/process_group/checks.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::process_group {

std::vector<std::int64_t> all_gather_words(ProcessGroup& group, const std::vector<std::int64_t>& words, Within within,
                                           CollectiveOptions options) {
  std::vector<std::int64_t> gathered(words.size() * static_cast<std::size_t>(group.size()));
  ProcessGroup::Impl& impl = *group.impl();
  Backend& backend = impl.backend();
  const auto gather = [&](ConstMemoryRange own, MemoryRange all) {
    Collective call{.kind = CollectiveKind::all_gather, .input = own, .output = all, .within = within};
    check(impl, call, options);
    backend.run(call);
  };
  if (backend.reaches({})) {
    gather(words, gathered);
    return gathered;
  }
  if (gathered.empty()) return gathered;
  const std::size_t bytes = words.size() * sizeof(std::int64_t);
  const RegisteredMemory memory = group.allocate(gathered.size() * sizeof(std::int64_t), options);
  auto* const all = static_cast<std::int64_t*>(memory.data());
  auto* const own = all + static_cast<std::size_t>(group.rank()) * words.size();
  const auto device = backend.device_memory();
  const DeviceMemory::Copy copy_in{own, words.data(), bytes};
  device->copy_from_host({&copy_in, 1}, options.stream);
  gather({own, words.size(), DataType::int64, memory.device()},
         {all, gathered.size(), DataType::int64, memory.device()});
  const DeviceMemory::Copy copy_out{gathered.data(), all, gathered.size() * sizeof(std::int64_t)};
  device->copy_to_host({&copy_out, 1}, options.stream);
  return gathered;
}

}  // namespace ddp::process_group
