#include "worker_runtime/engine/fault_reports.hpp"

#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::gradient_engine {
namespace {

constexpr std::size_t kNamesMax = 8;  // a message names no more parameters than a person reads
constexpr std::size_t kBitsPerWord = 64;
constexpr std::size_t kMiscountWords = 3;  // 1 + the parameter, or 0 for none; the two counts

std::size_t word_count(std::size_t parameter_count) { return (parameter_count + kBitsPerWord - 1) / kBitsPerWord; }

std::string times(std::int64_t count) { return std::to_string(count) + (count == 1 ? " time" : " times"); }

// The ranks whose bitmap has the bit of this parameter, or, if is_set is false, those that do not have it.
std::vector<int> ranks_with(const std::vector<std::int64_t>& bitmaps, std::size_t parameter,
                            std::size_t parameter_count, int size, bool is_set) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const std::size_t word = static_cast<std::size_t>(rank) * word_count(parameter_count) + parameter / kBitsPerWord;
    const bool is_here = ((static_cast<std::uint64_t>(bitmaps[word]) >> (parameter % kBitsPerWord)) & 1) != 0;
    if (is_here == is_set) ranks.push_back(rank);
  }
  return ranks;
}

// A sentence for each parameter whose bit some rank has set.
template <class Describe>
std::string describe_each(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size,
                          Describe describe) {
  std::string text;
  std::size_t count = 0;
  for (std::size_t parameter = 0; parameter < names.size(); ++parameter) {
    const std::vector<int> ranks = ranks_with(bitmaps, parameter, names.size(), size, true);
    if (ranks.empty() || ++count > kNamesMax) continue;
    text += (text.empty() ? "" : "; ") + describe(names[parameter], ranks);
  }
  if (count > kNamesMax) text += "; and " + std::to_string(count - kNamesMax) + " more parameters";
  return text;
}

}  // namespace

std::vector<std::int64_t> to_bitmap(const std::vector<std::size_t>& missing, std::size_t parameter_count) {
  std::vector<std::uint64_t> words(word_count(parameter_count));
  for (const std::size_t parameter : missing) {
    words[parameter / kBitsPerWord] |= std::uint64_t{1} << (parameter % kBitsPerWord);
  }
  return {words.begin(), words.end()};
}

std::string describe_unused(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size) {
  return describe_each(names, bitmaps, size, [size](const std::string& name, const std::vector<int>& ranks) {
    const bool nowhere = size > 1 && ranks.size() == static_cast<std::size_t>(size);
    return "parameter " + name + " got no gradient on " + (nowhere ? "any rank" : process_group::list_ranks(ranks));
  });
}

std::string describe_non_finite(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps,
                                int size) {
  return describe_each(names, bitmaps, size, [](const std::string& name, const std::vector<int>& ranks) {
    return "the gradient of parameter " + name + " is infinite or NaN on " + process_group::list_ranks(ranks);
  });
}

std::vector<std::int64_t> miscount_words(const std::optional<Miscount>& own) {
  if (!own) return std::vector<std::int64_t>(kMiscountWords);
  return {static_cast<std::int64_t>(own->parameter) + 1, own->expected, own->found};
}

std::string describe_miscounts(const std::vector<std::string>& names, const std::vector<std::int64_t>& words,
                               int size) {
  std::string text;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t* const its = &words[static_cast<std::size_t>(rank) * kMiscountWords];
    if (its[0] == 0) continue;
    text += (text.empty() ? "on rank " : "; on rank ") + std::to_string(rank) + " parameter " +
            names[static_cast<std::size_t>(its[0] - 1)] + " became ready " + times(its[2]) + ", but " + times(its[1]) +
            " in the step that fixed the static graph";
  }
  return text;
}

std::string describe_frozen(const std::vector<std::string>& names, const std::vector<std::int64_t>& bitmaps, int size) {
  for (std::size_t parameter = 0; parameter < names.size(); ++parameter) {
    const std::vector<int> frozen = ranks_with(bitmaps, parameter, names.size(), size, true);
    if (frozen.empty() || frozen.size() == static_cast<std::size_t>(size)) continue;
    return "parameter " + names[parameter] + " is frozen on " + process_group::list_ranks(frozen) + ", but not on " +
           process_group::list_ranks(ranks_with(bitmaps, parameter, names.size(), size, false));
  }
  return "ranks have frozen different parameters";
}

}  // namespace ddp::gradient_engine
