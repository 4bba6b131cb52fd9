#include "worker_runtime/elastic/offer.hpp"

#include <algorithm>
#include <tuple>

namespace ddp::elastic {

namespace {

bool is_newer(const Offer& a, const Offer& b) {
  const auto key = [](const Offer& offer) { return std::make_tuple(offer.has_commit, offer.round.key(), offer.count); };
  return key(a) > key(b);
}

bool is_safer_on_gpus(const Offer& a, const Offer& b) {
  const auto key = [](const Offer& offer) { return std::make_tuple(offer.has_commit, offer.last_synced.key()); };
  return key(a) == key(b) ? is_newer(b, a) : key(a) > key(b);
}

}  // namespace

Offer::Words Offer::words() const {
  Words out{};
  const std::uint64_t values[] = {
      has_commit, round.term,       round.term_random,       round.number,      count, entries, bytes,
      layout,     last_synced.term, last_synced.term_random, last_synced.number};
  for (std::size_t i = 0; i < kWords; ++i) out[i] = static_cast<std::int64_t>(values[i]);
  return out;
}

Offer Offer::from(const std::int64_t* words) {
  const auto word = [&](std::size_t i) { return static_cast<std::uint64_t>(words[i]); };
  const auto round = [&](std::size_t i) {
    return RoundId{word(i), word(i + 1), static_cast<std::uint32_t>(word(i + 2))};
  };
  return {word(0), round(1), word(4), word(5), word(6), word(7), round(8)};
}

bool Offer::fits(const Offer& other) const {
  return entries == other.entries && bytes == other.bytes && layout == other.layout;
}

int source_of(std::span<const Offer> offers, bool on_gpus) {
  const auto source = std::min_element(offers.begin(), offers.end(), on_gpus ? is_safer_on_gpus : is_newer);
  return static_cast<int>(source - offers.begin());
}

}  // namespace ddp::elastic
