#include "ddp/stream_sampler.hpp"

#include "worker_runtime/sampler/random_words.hpp"
#include "worker_runtime/sampler/share.hpp"

#include <algorithm>
#include <numeric>
#include <string>

namespace ddp {
namespace {

constexpr std::uint64_t kLengthMax = std::uint64_t{1} << 62;
constexpr std::size_t kWindowMax = std::size_t{1} << 27;

sampler::Share share_of(const StreamSamplerOptions& options) {
  return {"StreamSampler", options.replicas, options.rank, Tail::uneven};
}

// Places below the first one are those of windows that are whole. The last window ends at the second one.
std::uint64_t whole_windows_end(std::uint64_t length, std::uint64_t window) { return length - length % window; }
std::uint64_t last_window_end(std::uint64_t length, std::uint64_t window) {
  return whole_windows_end(length, window) + (length % window == 0 ? 0 : window);
}

}  // namespace

StreamSampler::StreamSampler(const StreamSamplerOptions& options) : options_(options), position_(start(0)) {
  const sampler::Share share = share_of(options_);
  sampler::check_ranks(share);
  if (options_.window < 1 || options_.window > kWindowMax) {
    sampler::refuse(share, "a window of " + std::to_string(options_.window) + " samples",
                    "a window of 1 to " + std::to_string(kWindowMax));
  }
}

SamplerPosition StreamSampler::start(std::uint64_t epoch) const {
  SamplerPosition position;
  position.seed = options_.seed;
  position.epoch = epoch;
  position.order = sampler::hash_of({static_cast<std::uint64_t>(sampler::Kind::stream), options_.window});
  return position;
}

std::int64_t StreamSampler::sample_at(std::uint64_t place) {
  if (options_.window == 1) return static_cast<std::int64_t>(place);
  const std::uint64_t window = place / options_.window;
  if (shuffled_.empty() || shuffled_window_ != window) {
    shuffled_.resize(options_.window);
    std::iota(shuffled_.begin(), shuffled_.end(), static_cast<std::int64_t>(window * options_.window));
    sampler::RandomWords words{static_cast<std::uint64_t>(sampler::Kind::stream), position_.seed, position_.epoch,
                               window};
    words.shuffle(shuffled_.begin(), shuffled_.end());
    shuffled_window_ = window;
  }
  return shuffled_[place % options_.window];
}

std::vector<std::int64_t> StreamSampler::next(std::size_t count) {
  const sampler::Share share = share_of(options_);
  const auto replicas = static_cast<std::uint64_t>(options_.replicas);
  const auto rank = static_cast<std::uint64_t>(options_.rank);
  const std::uint64_t length = position_.sample_count;
  const std::uint64_t taken = position_.taken;
  if (count == 0) sampler::refuse(share, "a batch of 0 samples", "a count above 0");
  if (length == 0 && (taken > kLengthMax || count > (kLengthMax - taken) / replicas)) {
    sampler::refuse(share, "samples beyond 2^62", "end_at() where the stream ends, and next_epoch()");
  }
  // A count that is larger than what is left, of a stream whose end is known.
  const std::uint64_t wanted = length == 0 ? count * replicas : std::min<std::uint64_t>(count, length) * replicas;

  std::vector<std::int64_t> mine;
  std::uint64_t place = taken;
  std::uint64_t dealt = 0;  // to all ranks
  const std::uint64_t whole_end = length == 0 ? taken + wanted : whole_windows_end(length, options_.window);
  if (place < whole_end) {
    dealt = std::min(wanted, whole_end - place);
    for (std::uint64_t i = rank; i < dealt; i += replicas) mine.push_back(sample_at(taken + i));
    place += dealt;
  }
  if (length == 0) {
    position_.taken = place;
    return mine;
  }
  for (const std::uint64_t end = last_window_end(length, options_.window); place < end && dealt < wanted; ++place) {
    const std::int64_t sample = sample_at(place);
    if (static_cast<std::uint64_t>(sample) >= length) continue;
    if (dealt++ % replicas == rank) mine.push_back(sample);
  }
  position_.taken = place;
  pass_over_absent_samples();
  return mine;
}

void StreamSampler::pass_over_absent_samples() {
  const std::uint64_t length = position_.sample_count;
  const std::uint64_t end = last_window_end(length, options_.window);
  if (position_.taken < whole_windows_end(length, options_.window)) return;
  while (position_.taken < end && static_cast<std::uint64_t>(sample_at(position_.taken)) >= length) ++position_.taken;
}

void StreamSampler::end_at(std::uint64_t length) {
  const sampler::Share share = share_of(options_);
  if (length < 1 || length > kLengthMax) {
    sampler::refuse(share, "a stream of " + std::to_string(length) + " samples",
                    "1 to 2^62 samples; a stream without any needs no call");
  }
  if (position_.sample_count != 0 && position_.sample_count != length) {
    sampler::refuse(share,
                    "a stream of " + std::to_string(length) + " samples, which had " +
                        std::to_string(position_.sample_count) + " before",
                    "one length in an epoch, on which all ranks have agreed");
  }
  position_.sample_count = length;
  pass_over_absent_samples();
}

bool StreamSampler::is_over() const {
  return position_.sample_count != 0 && position_.taken >= last_window_end(position_.sample_count, options_.window);
}

void StreamSampler::next_epoch() {
  position_ = start(position_.epoch + 1);
  shuffled_.clear();
}

void StreamSampler::restore(const SamplerPosition& position) {
  const sampler::Share share = share_of(options_);
  SamplerPosition own = start(position.epoch);
  own.sample_count = position.sample_count;  // the stream's, which a sampler need not know yet
  SamplerPosition at_start = position;
  at_start.taken = 0;
  sampler::check_position(share, own, at_start);
  if (position.taken > kLengthMax || position.sample_count > kLengthMax) {
    sampler::refuse(share, "a position beyond the sample 2^62", "the position as state() gave it");
  }
  position_ = position;
  shuffled_.clear();
}

}  // namespace ddp
