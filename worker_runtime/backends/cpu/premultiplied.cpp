#include "worker_runtime/backends/cpu/premultiplied.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>

#include "worker_runtime/backends/cpu/reduce/reduce.hpp"
#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::cpu_backend {

namespace {

using process_group::Collective;
using process_group::CollectiveKind;

constexpr std::size_t kFactorsBytes = 1u << 12;

// As products, by the code that all reductions are made of: the same bits with any vector instructions.
void multiply(const ConstMemoryRange& input, double factor, std::byte* output) {
  const std::size_t element_bytes = size_of(input.type);
  const tensor::Scalar scalar = tensor::scalar_of(factor, input.type).value();
  alignas(kCacheLineBytes) std::array<std::byte, kFactorsBytes> factors{};
  for (std::size_t at = 0; at < kFactorsBytes; at += element_bytes) {
    std::memcpy(&factors[at], scalar.data(), element_bytes);
  }
  const auto* const from = static_cast<const std::byte*>(input.data);
  const std::size_t block_count = kFactorsBytes / element_bytes;
  for (std::size_t begin = 0; begin < input.count; begin += block_count) {
    const std::array<const std::byte*, 2> sources{from + begin * element_bytes, factors.data()};
    std::byte* const to = output + begin * element_bytes;
    reduce({input.type, ReduceOp::product}, sources, {&to, 1}, {0, std::min(block_count, input.count - begin)});
  }
}

}  // namespace

void exchange_premultiplied(const Collective& collective, const Exchange& exchange) {
  const std::size_t bytes = collective.input.bytes();
  const std::unique_ptr<std::byte[]> memory(new std::byte[bytes]);  // not zeroed
  multiply(collective.input, collective.factor, memory.get());
  Collective sum = collective;
  sum.input.data = memory.get();
  const bool is_in_place = collective.kind == CollectiveKind::all_reduce;
  if (is_in_place) sum.output.data = memory.get();
  exchange(sum);
  if (is_in_place && bytes > 0) std::memcpy(collective.output.data, memory.get(), bytes);
}

}  // namespace ddp::cpu_backend
