#include "worker_runtime/gradient_engine/host_access.hpp"

#include <cstring>

namespace ddp::gradient_engine {

bool is_supported(Device device) { return device.kind == Device::Kind::cpu; }

void write_zeros(MemoryRange range) {
  if (range.count > 0) std::memset(range.data, 0, range.bytes());
}

void write_flag(MemoryRange range, std::size_t index, bool raised) {
  if (range.type == DataType::float64) {
    static_cast<double*>(range.data)[index] = raised ? 1.0 : 0.0;
  } else {
    static_cast<float*>(range.data)[index] = raised ? 1.0F : 0.0F;
  }
}

bool read_flag(ConstMemoryRange range, std::size_t index) {
  if (range.type == DataType::float64) return static_cast<const double*>(range.data)[index] != 0.0;
  return static_cast<const float*>(range.data)[index] != 0.0F;
}

std::vector<std::int64_t> all_gather_words(ProcessGroup& group, const std::vector<std::int64_t>& words,
                                           CollectiveOptions options) {
  std::vector<std::int64_t> gathered(words.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(words, gathered, options);
  return gathered;
}

}  // namespace ddp::gradient_engine
