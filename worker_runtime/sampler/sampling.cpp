#include "ddp/sampling.hpp"

#include "ddp/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <string_view>

namespace ddp {

std::string DDP_ABI::to_string(const SamplerPosition& position) {
  std::string text;
  for (const std::uint64_t number :
       {position.seed, position.epoch, position.taken, position.sample_count, position.partitions}) {
    text += std::to_string(number) + "-";
  }
  std::array<char, 17> order{};
  std::snprintf(order.data(), order.size(), "%016llx", static_cast<unsigned long long>(position.order));
  return text + order.data();
}

std::optional<SamplerPosition> DDP_ABI::parse_sampler_position(const std::string& text) {
  SamplerPosition position;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (std::uint64_t* const number :
       {&position.seed, &position.epoch, &position.taken, &position.sample_count, &position.partitions}) {
    const auto [after, error] = std::from_chars(at, end, *number);
    if (error != std::errc{} || after == end || *after != '-') return std::nullopt;
    at = after + 1;
  }
  const auto [after, error] = std::from_chars(at, end, position.order, 16);
  if (error != std::errc{} || after != end) return std::nullopt;
  if (to_string(position) != text) return std::nullopt;  // leading zeros, capital letters
  return position;
}

std::vector<std::vector<std::int64_t>> DDP_ABI::cut_batches(const std::vector<std::int64_t>& indices,
                                                            std::size_t batch_size, LastBatch last) {
  if (batch_size == 0) throw InvalidArgument("batches of 0 samples\nwhere: cut_batches\ntry:   a size above 0");
  std::vector<std::vector<std::int64_t>> batches;
  for (std::size_t begin = 0; begin < indices.size();) {
    const std::size_t count = std::min(batch_size, indices.size() - begin);
    if (count < batch_size && last == LastBatch::drop) break;
    const auto first = indices.begin() + static_cast<std::ptrdiff_t>(begin);
    batches.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
    begin += count;
  }
  return batches;
}

}  // namespace ddp
