#include "worker_runtime/backends/cpu/one_host/small_calls.hpp"

#include <cstring>

#include "worker_runtime/backends/cpu/arrivals/prefetch.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kSmallBytes = 1u << 11;  // from 4 KiB on two phases win

}  // namespace

SmallCalls::SmallCalls(int rank, int size, Arrivals& arrivals, const Staging& staging)
    : rank_(rank),
      arrivals_(arrivals),
      staging_(staging),
      bytes_max_(std::min(kSmallBytes, staging.half_bytes())),
      from_lines_(static_cast<std::size_t>(size) * kLineDataBytes),
      sources_(static_cast<std::size_t>(size)) {}

void SmallCalls::give(const Collective& collective, const Shape& shape) {
  const std::size_t bytes = shape.input_bytes();
  if (!shape.gives || bytes == 0) return;
  if (bytes <= kLineDataBytes) {
    arrivals_.posts().put_data(collective.input.data, bytes);
  } else {
    std::memcpy(staging_.half(rank_, arrivals_.next_half()), collective.input.data, bytes);
  }
}

void SmallCalls::prepare_next(const Shape& shape) const {
  const std::size_t bytes = shape.gives ? shape.input_bytes() : 0;
  if (bytes <= kLineDataBytes) return;
  const std::byte* const next = staging_.half(rank_, arrivals_.next_half());
  for (std::size_t at = 0; at < bytes; at += kCacheLineBytes) prefetch_for_writing(next + at);
}

void SmallCalls::take(const Collective& collective, const Shape& shape) {
  const std::size_t bytes = shape.share_bytes();
  if (shape.source_count == 0 || bytes == 0) return;
  for (int i = 0; i < shape.source_count; ++i) {
    const int source = shape.first_source + i;
    const auto at = static_cast<std::size_t>(i);
    if (shape.input_bytes() <= kLineDataBytes) {
      std::byte* const here = &from_lines_[at * kLineDataBytes];
      arrivals_.posts().get_data(source, here, kLineDataBytes);
      sources_[at] = here + shape.taken_share * bytes;
    } else {
      sources_[at] = staging_.half(source, arrivals_.present_half()) + shape.taken_share * bytes;
    }
  }
  const std::span<const std::byte* const> sources(sources_.data(), static_cast<std::size_t>(shape.source_count));
  std::byte* const output = output_of(collective);
  if (shape.reduces)
    return reduce({shape.type, collective.op, sources.size()}, sources, {&output, 1}, {0, shape.count});
  for (std::size_t i = 0; i < sources.size(); ++i) std::memcpy(output + i * bytes, sources[i], bytes);
}

}  // namespace ddp::cpu_backend
