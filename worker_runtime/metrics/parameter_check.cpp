#include "ddp/parameter_check.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/process_group/rank_list.hpp"
#include "worker_runtime/tensor/checksum.hpp"

namespace ddp {
namespace {

using process_group::list_ranks;
using HashWords = std::vector<std::int64_t>;

constexpr std::size_t kHashesAtOnce = 4096;
constexpr std::size_t kNameWords = 32;  // 256 bytes of a name are shown
constexpr std::size_t kSidesMax = 8;    // that a message lists

std::int64_t hash_of_parameter(const Parameter& parameter, std::uint64_t hash_of_values) {
  const std::array<std::uint64_t, 4> head{parameter.name.size(), static_cast<std::uint64_t>(parameter.values.type),
                                          parameter.values.count, hash_of_values};
  tensor::Checksum hash;
  hash.add(std::as_bytes(std::span(head)));
  hash.add(std::as_bytes(std::span(parameter.name)));
  return static_cast<std::int64_t>(hash.value());
}

// Of the values of all parameters, where they are.
std::vector<std::uint64_t> hashes_of_values(process_group::Backend& backend, const std::vector<Parameter>& parameters,
                                            void* stream) {
  std::vector<MemoryRange> on_host, on_device;
  for (const Parameter& parameter : parameters) {
    const MemoryRange& values = parameter.values;
    if (values.device != Device{} && values.device != backend.device()) {
      throw InvalidArgument("parameter " + parameter.name +
                            " is not in memory of this group\nwhere: check_parameters_equal\n"
                            "try:   values in host memory, or on ProcessGroup::device()");
    }
    (values.device == Device{} ? on_host : on_device).push_back(values);
  }
  std::unique_ptr<process_group::HostCopy> of_device;
  if (!on_device.empty()) of_device = backend.device_arithmetic()->hash(on_device, stream);
  const auto of_host = process_group::host_arithmetic()->hash(on_host, nullptr);
  const std::byte* next_on_host = of_host->bytes().data();
  const std::byte* next_on_device = of_device ? of_device->bytes().data() : nullptr;
  std::vector<std::uint64_t> hashes(parameters.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const std::byte*& next = parameters[i].values.device == Device{} ? next_on_host : next_on_device;
    std::memcpy(&hashes[i], next, sizeof hashes[i]);
    next += sizeof hashes[i];
  }
  return hashes;
}

HashWords hashes_of(ProcessGroup& group, const std::vector<Parameter>& parameters, void* stream) {
  const auto of_values = hashes_of_values(process_group::require_group(group.impl()).backend(), parameters, stream);
  HashWords hashes;
  for (std::size_t i = 0; i < parameters.size(); ++i) hashes.push_back(hash_of_parameter(parameters[i], of_values[i]));
  return hashes;
}

std::int64_t hash_of_words(const HashWords& words) {
  return static_cast<std::int64_t>(tensor::checksum_of(std::as_bytes(std::span(words))));
}

// The ranks that have the same word, of `count` words of each rank the one at `index`; in the order of their first.
std::vector<std::vector<int>> sides_of(const HashWords& gathered, std::size_t count, std::size_t index) {
  std::vector<std::pair<std::int64_t, std::vector<int>>> known;
  for (std::size_t at = index; at < gathered.size(); at += count) {
    const auto same = [&](const auto& side) { return side.first == gathered[at]; };
    auto side = std::find_if(known.begin(), known.end(), same);
    if (side == known.end()) side = known.insert(side, {gathered[at], {}});
    side->second.push_back(static_cast<int>(at / count));
  }
  std::vector<std::vector<int>> ranks;
  for (auto& side : known) ranks.push_back(std::move(side.second));
  return ranks;
}

// "ranks 1 and 3 differ from the other 6 ranks", or, without a majority, "different on rank 0; on rank 1".
std::string describe_sides(const std::vector<std::vector<int>>& sides, std::size_t size) {
  const auto most =
      std::max_element(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  if (2 * most->size() > size) {
    std::vector<int> others;
    for (const auto& side : sides) {
      if (&side != &*most) others.insert(others.end(), side.begin(), side.end());
    }
    std::sort(others.begin(), others.end());
    return list_ranks(others) + (others.size() == 1 ? " differs" : " differ") + " from the other " +
           std::to_string(most->size()) + " ranks";
  }
  std::string text = "no majority of the ranks has the same: ";
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if (i == kSidesMax) return text + "; and " + std::to_string(sides.size() - i) + " more";
    text += (i == 0 ? "" : "; ") + list_ranks(sides[i]);
  }
  return text;
}

[[noreturn]] void refuse_difference(const std::string& what) {
  throw MismatchError(what +
                      "\nwhere: check_parameters_equal\ntry:   look for what changes parameters on some ranks only: "
                      "another seed, an optimizer step that is skipped, gradients that are not averaged");
}

// Collective: rank 0's, so that all ranks throw the same text.
std::string name_on_rank_0(ProcessGroup& group, const std::string& own, CollectiveOptions options) {
  constexpr std::size_t kBytes = kNameWords * sizeof(std::int64_t);
  HashWords words(kNameWords);
  std::memcpy(words.data(), own.data(), std::min(own.size(), kBytes));
  const HashWords all = process_group::all_gather_words(group, words, process_group::Within::nothing, options);
  std::string name(kBytes, '\0');
  std::memcpy(name.data(), all.data(), kBytes);
  return name.substr(0, name.find('\0'));
}

// Collective, with equally many hashes on all ranks.
[[noreturn]] void name_first_difference(ProcessGroup& group, const std::vector<Parameter>& parameters,
                                        const HashWords& hashes, CollectiveOptions options) {
  const auto size = static_cast<std::size_t>(group.size());
  for (std::size_t begin = 0; begin < hashes.size(); begin += kHashesAtOnce) {
    const std::size_t count = std::min(kHashesAtOnce, hashes.size() - begin);
    const HashWords own(hashes.begin() + static_cast<std::ptrdiff_t>(begin),
                        hashes.begin() + static_cast<std::ptrdiff_t>(begin + count));
    const HashWords all = process_group::all_gather_words(group, own, process_group::Within::nothing, options);
    for (std::size_t i = 0; i < count; ++i) {
      const auto differing = sides_of(all, count, i);
      if (differing.size() == 1) continue;
      const std::size_t index = begin + i;
      refuse_difference("parameter " + name_on_rank_0(group, parameters[index].name, options) + " (index " +
                        std::to_string(index) + " of " + std::to_string(hashes.size()) +
                        ") is not the same on all ranks: " + describe_sides(differing, size));
    }
  }
  refuse_difference("parameters changed while they were compared");
}

}  // namespace

void DDP_ABI::check_parameters_equal(ProcessGroup& group, const std::vector<Parameter>& parameters,
                                     CollectiveOptions options) {
  const HashWords hashes = hashes_of(group, parameters, options.stream);
  constexpr std::size_t kWords = 2;
  const HashWords own{static_cast<std::int64_t>(hashes.size()), hash_of_words(hashes)};
  const HashWords all = process_group::all_gather_words(group, own, process_group::Within::nothing, options);
  const auto counts = sides_of(all, kWords, 0);
  if (counts.size() > 1) {
    refuse_difference("the ranks have different numbers of parameters: " +
                      describe_sides(counts, static_cast<std::size_t>(group.size())));
  }
  if (sides_of(all, kWords, 1).size() > 1) name_first_difference(group, parameters, hashes, options);
}

}  // namespace ddp
