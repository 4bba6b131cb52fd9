#include "worker_runtime/engine/model_agreement.hpp"

#include "base/fnv1a.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/rank_list.hpp"
#include "worker_runtime/tensor/shape.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kLineWords = 128;  // of one line that differs, 1024 bytes are shown: those around the difference
constexpr std::size_t kLineBytesMax = kLineWords * sizeof(std::int64_t);

std::vector<std::int64_t> all_gather_words(ProcessGroup& group, const std::vector<std::int64_t>& words,
                                           CollectiveOptions options) {
  return process_group::all_gather_words(group, words, process_group::Within::model_check, options);
}

// The start of a line that is too long, padded with zeros where it is short.
std::vector<std::int64_t> to_words(const std::string& line) {
  std::vector<std::int64_t> words(kLineWords);
  std::memcpy(words.data(), line.data(), std::min(line.size(), kLineBytesMax));
  return words;
}

std::string from_words(const std::int64_t* words) {
  std::string line(kLineBytesMax, '\0');
  std::memcpy(line.data(), words, kLineBytesMax);
  return line.substr(0, line.find('\0'));
}

[[noreturn]] void refuse(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: making a DistributedDataParallel\ntry:   " + advice);
}

void check_memory(const std::string& name, const Parameter& checked, Device device) {
  const MemoryRange& values = checked.values;
  if (tensor::element_count(checked.shape) != values.count) {
    refuse(
        name + " has shape " + tensor::shape_text(checked.shape) + " but " + std::to_string(values.count) + " values",
        "a shape whose product is the number of values");
  }
  if (values.device != device) {
    refuse(name + " is not in the memory of this group's device",
           device == Device{} ? "values in host memory, or the backend `nccl`" : "values on ProcessGroup::device()");
  }
  if (values.data == nullptr && values.count > 0) refuse(name + " has no memory", "values that are allocated");
  if (reinterpret_cast<std::uintptr_t>(values.data) % size_of(values.type) != 0) {
    refuse(name + " is not aligned to " + name_of(values.type), "values at a multiple of their size");
  }
}

void check_parameter(const Parameter& parameter, Device device) {
  const DataType type = parameter.values.type;
  const bool has_gradient =
      type == DataType::float32 || type == DataType::float64 || type == DataType::float16 || type == DataType::bfloat16;
  if (!has_gradient) {
    refuse("parameter " + parameter.name + " is of type " + name_of(type) + ", which has no gradient",
           "float32, float64, float16 or bfloat16");
  }
  check_memory("parameter " + parameter.name, parameter, device);
}

// The number of the first value that is not the same in all of `size` lists of `count`, one after the other; `count`
// where there is none.
template <class Value>
std::size_t first_difference(const Value* lists, std::size_t count, std::size_t size) {
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t rank = 1; rank < size; ++rank) {
      if (lists[rank * count + i] != lists[i]) return i;
    }
  }
  return count;
}

// Collective: the number of the first byte in which the lines of the ranks differ.
std::size_t first_differing_byte(ProcessGroup& group, const std::string& line, CollectiveOptions options) {
  const auto lengths = all_gather_words(group, {static_cast<std::int64_t>(line.size())}, options);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  for (std::size_t begin = 0; begin < longest; begin += kLineBytesMax) {
    const auto words = all_gather_words(group, to_words(line.substr(std::min(begin, line.size()))), options);
    const std::size_t at = first_difference(reinterpret_cast<const char*>(words.data()), kLineBytesMax, lengths.size());
    if (at < kLineBytesMax) return begin + at;
  }
  return longest;
}

// What is shown of a line: from its start, or, where the difference is far from there, from a little before it.
std::string shown_part(const std::string& line, std::size_t difference) {
  if (difference < kLineBytesMax / 2) return line;
  return "..." + line.substr(std::min(difference - kLineBytesMax / 4, line.size()));
}

// "rank 0 has head.bias float32 [2]; ranks 1, 3 have head.bias float32 [3]"
std::string describe_difference(const std::vector<std::int64_t>& gathered, int size) {
  std::vector<std::pair<std::string, std::vector<int>>> sides;
  for (int rank = 0; rank < size; ++rank) {
    const std::string line = from_words(&gathered[static_cast<std::size_t>(rank) * kLineWords]);
    auto side = std::find_if(sides.begin(), sides.end(), [&](const auto& known) { return known.first == line; });
    if (side == sides.end()) side = sides.insert(side, {line, {}});
    side->second.push_back(rank);
  }
  std::string text;
  for (const auto& [line, ranks] : sides) {
    text +=
        (text.empty() ? "" : "; ") + process_group::list_ranks(ranks) + (ranks.size() == 1 ? " has " : " have ") + line;
  }
  return text;
}

}  // namespace

void check_model(const std::vector<Parameter>& parameters, Device device) {
  if (parameters.empty()) refuse("a model without parameters", "at least one parameter");
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) {
    if (parameter.name.empty()) refuse("a parameter without a name", "a name for every parameter");
    if (!names.insert(parameter.name).second) {
      refuse("two parameters are named " + parameter.name,
             "a different name for each; a parameter that layers share is listed once");
    }
    check_parameter(parameter, device);
  }
}

void check_options(const std::vector<Parameter>& parameters, const DistributedDataParallelOptions& options,
                   Device device) {
  if (options.bucket_cap_bytes == kAutomaticBucketCap && options.rebuild_buckets != RebuildBuckets::automatic) {
    refuse("an automatic bucket cap without automatic rebuilds",
           "rebuild_buckets = RebuildBuckets::automatic, and gradient(i) after each begin_step()");
  }
  if (options.release_gradients && (!options.communication_hook || device.kind != Device::Kind::cpu)) {
    refuse("release_gradients without a communication hook, or on a GPU", "release_gradients = false");
  }
  const CommunicationHook* const hook = options.communication_hook.get();
  if (options.uneven_inputs == UnevenInputs::divide_by_active && hook && !hook->averages_over_all_ranks()) {
    refuse("uneven_inputs = divide_by_active with the hook " + hook->describe() +
               ", whose gradients are not means over all ranks: no factor makes them means over the active ones",
           "divide_by_all; or averages_over_all_ranks(), if it is a hook of your own that divides by size()");
  }
  std::set<std::string> names;
  for (const Parameter& parameter : parameters) names.insert(parameter.name);
  for (const Parameter& buffer : options.buffers) {
    if (buffer.name.empty()) refuse("a buffer without a name", "a name for every buffer");
    if (!names.insert(buffer.name).second) {
      refuse("the name of the buffer " + buffer.name + " is used twice",
             "a different name for each buffer and parameter");
    }
    check_memory("buffer " + buffer.name, buffer, device);
    if (buffer.values.type == DataType::boolean && options.buffer_sync == BufferSync::average) {
      refuse("buffer " + buffer.name + " is of type bool, which has no average", "buffer_sync = broadcast");
    }
  }
}

std::vector<std::string> describe_model(const std::vector<Parameter>& parameters,
                                        const DistributedDataParallelOptions& options) {
  std::vector<std::string> lines;
  lines.reserve(parameters.size() + 1);
  const char* const unused[] = {"error", "zeros", "keep"};
  const char* const buffer_sync[] = {"none", "broadcast", "average"};
  const char* const uneven_inputs[] = {"off", "divide_by_all", "divide_by_active", "stop"};
  lines.push_back(
      "the options first_bucket_cap_bytes = " + std::to_string(options.first_bucket_cap_bytes) +
      ", bucket_cap_bytes = " + std::to_string(options.bucket_cap_bytes) +
      ", zero_gradients = " + (options.zero_gradients ? "true" : "false") +
      ", rebuild_buckets = " + (options.rebuild_buckets == RebuildBuckets::automatic ? "automatic" : "off") +
      ", unused = " + unused[static_cast<std::size_t>(options.unused)] +
      ", uneven_inputs = " + uneven_inputs[static_cast<std::size_t>(options.uneven_inputs)] +
      ", buffer_sync = " + buffer_sync[static_cast<std::size_t>(options.buffer_sync)] +
      ", communication_hook = " + (options.communication_hook ? options.communication_hook->describe() : "none") +
      ", release_gradients = " + (options.release_gradients ? "true" : "false") + ", check_finite = " +
      (options.check_finite ? "true" : "false") + ", static_graph = " + (options.static_graph ? "true" : "false") +
      ", wait_in_finish = " + (options.wait_in_finish ? "true" : "false"));
  const auto add_line = [&lines](const std::string& what, const Parameter& its) {
    lines.push_back(what + its.name + " " + name_of(its.values.type) + " " + tensor::shape_text(its.shape));
  };
  for (const Parameter& parameter : parameters) {
    add_line("parameter " + std::to_string(lines.size() - 1) + " ", parameter);
  }
  for (const Parameter& buffer : options.buffers) add_line("buffer ", buffer);
  return lines;
}

void check_same_on_all_ranks(ProcessGroup& group, const std::vector<std::string>& lines, CollectiveOptions options) {
  std::vector<std::int64_t> hashes;
  base::Fnv1a all;
  for (const std::string& line : lines) {
    const std::uint64_t hash = base::fnv1a(line);
    hashes.push_back(static_cast<std::int64_t>(hash));
    all.add(hash);
  }

  const auto size = static_cast<std::size_t>(group.size());
  const auto heads = all_gather_words(
      group, {static_cast<std::int64_t>(all.value()), static_cast<std::int64_t>(lines.size())}, options);
  std::int64_t count_max = 0;
  bool same = true;
  for (std::size_t rank = 0; rank < size; ++rank) {
    same = same && heads[2 * rank] == heads[0] && heads[2 * rank + 1] == heads[1];
    count_max = std::max(count_max, heads[2 * rank + 1]);
  }
  if (same) return;

  hashes.resize(static_cast<std::size_t>(count_max));  // a rank with fewer lines differs by a zero
  const std::size_t line = first_difference(all_gather_words(group, hashes, options).data(), hashes.size(), size);
  const std::string mine =
      line < lines.size() ? lines[line] : "no more than " + std::to_string(lines.size() - 1) + " parameters";
  const std::size_t difference = first_differing_byte(group, mine, options);
  const auto sides = all_gather_words(group, to_words(shown_part(mine, difference)), options);
  throw MismatchError("the model is not the same on all ranks: " + describe_difference(sides, group.size()) +
                      "\nwhere: making a DistributedDataParallel\n"
                      "try:   build the model from the same configuration, in the same order, on every rank");
}

}  // namespace ddp::gradient_engine
