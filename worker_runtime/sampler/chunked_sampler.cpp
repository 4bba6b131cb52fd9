#include "ddp/chunked_sampler.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/sampler/random_words.hpp"
#include "worker_runtime/sampler/share.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace ddp {
namespace {

constexpr std::uint64_t kPartitionsMax = 1 << 20;

// What random numbers are for. Part of the order, so of what must not change.
enum class Purpose : std::uint64_t { chunks = 1, window = 2 };

sampler::Share share_of(const ChunkedSamplerOptions& options) {
  return {"ChunkedSampler", options.replicas, options.rank, options.tail};
}

void check_partitions(const sampler::Share& share, std::uint64_t partitions, const char* advice) {
  if (partitions >= 1 && partitions <= kPartitionsMax) return;
  sampler::refuse(share, std::to_string(partitions) + " partitions", advice);
}

void check(const ChunkedSamplerOptions& options) {
  const sampler::Share share = share_of(options);
  sampler::check_ranks(share);
  std::uint64_t samples = 0;
  for (const std::size_t size : options.chunk_sizes) {
    if (size > sampler::kSampleCountMax - samples) {
      sampler::refuse(share, "chunks of more than " + std::to_string(sampler::kSampleCountMax) + " samples in all",
                      "the number of samples in each chunk");
    }
    samples += size;
  }
  if (samples == 0) {
    sampler::refuse(share, std::to_string(options.chunk_sizes.size()) + " chunks without a sample",
                    "the number of samples in each chunk, or equal_chunks()");
  }
  if (options.window_chunks < 1) sampler::refuse(share, "a window of 0 chunks", "window_chunks of 1 or above");
  if (options.partitions != 0) check_partitions(share, options.partitions, "1 to 1048576 partitions, or 0");
}

// The part of a chunk that is in one partition.
struct Piece {
  std::uint64_t first_sample;
  std::uint64_t count;
};

// The chunks of an epoch in their shuffled order, end to end.
class Line {
 public:
  // firsts: of each chunk its first sample, and the number of samples at the end.
  Line(const std::vector<std::uint64_t>& firsts, bool shuffle, std::uint64_t seed, std::uint64_t epoch)
      : firsts_(firsts), chunks_(firsts.size() - 1), begins_(firsts.size()) {
    std::iota(chunks_.begin(), chunks_.end(), std::size_t{0});
    if (shuffle) {
      sampler::RandomWords words{static_cast<std::uint64_t>(sampler::Kind::chunked),
                                 static_cast<std::uint64_t>(Purpose::chunks), seed, epoch};
      words.shuffle(chunks_.begin(), chunks_.end());
    }
    for (std::size_t i = 0; i < chunks_.size(); ++i) {
      begins_[i + 1] = begins_[i] + firsts_[chunks_[i] + 1] - firsts_[chunks_[i]];
    }
  }

  // The pieces of chunks in [begin, end) of the line; none is empty.
  std::vector<Piece> pieces(std::uint64_t begin, std::uint64_t end) const {
    std::vector<Piece> pieces;
    auto i = static_cast<std::size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin()) - 1;
    for (; begin < end; ++i) {
      const std::uint64_t piece_end = std::min(end, begins_[i + 1]);
      if (piece_end == begin) continue;
      pieces.push_back({firsts_[chunks_[i]] + (begin - begins_[i]), piece_end - begin});
      begin = piece_end;
    }
    return pieces;
  }

 private:
  const std::vector<std::uint64_t>& firsts_;
  std::vector<std::size_t> chunks_;    // by their place in the line
  std::vector<std::uint64_t> begins_;  // of each place, and the number of samples at the end
};

}  // namespace

class ChunkedSampler::Chunks {
 public:
  explicit Chunks(const ChunkedSamplerOptions& given) : options(given), firsts_(given.chunk_sizes.size() + 1) {
    std::partial_sum(given.chunk_sizes.begin(), given.chunk_sizes.end(), firsts_.begin() + 1);
    order_ = sampler::hash_of({static_cast<std::uint64_t>(sampler::Kind::chunked), options.shuffle ? 1U : 0U,
                               options.window_chunks, options.chunk_sizes.size()});
    for (const std::size_t size : options.chunk_sizes) order_ = sampler::hash_of({order_, size});
    options.chunk_sizes = {};
    if (options.partitions == 0) {
      options.partitions = std::min(static_cast<std::uint64_t>(options.replicas), kPartitionsMax);
    }
  }

  sampler::Share share() const { return share_of(options); }
  std::uint64_t sample_count() const { return firsts_.back(); }

  SamplerPosition start(std::uint64_t epoch) const {
    SamplerPosition position;
    position.seed = options.seed;
    position.epoch = epoch;
    position.sample_count = sample_count();
    position.partitions = options.partitions;
    position.order = order_;
    return position;
  }

  void check_position(const SamplerPosition& given) const {
    sampler::check_position(share(), start(given.epoch), given);
    check_partitions(share(), given.partitions, "the position as start() and after() gave it");
  }

  Line line(std::uint64_t epoch) const { return {firsts_, options.shuffle, options.seed, epoch}; }

  // The samples of a partition, in their order.
  std::vector<std::uint64_t> partition(const Line& line, const SamplerPosition& of, std::uint64_t number) const {
    const std::uint64_t length = sample_count() / of.partitions;
    const std::uint64_t longer = sample_count() % of.partitions;  // so many partitions have one sample more
    const std::uint64_t begin = number * length + std::min(number, longer);
    const std::uint64_t end = begin + length + (number < longer ? 1 : 0);
    std::vector<std::uint64_t> samples;
    samples.reserve(end - begin);
    const std::vector<Piece> pieces = line.pieces(begin, end);
    for (std::size_t first = 0, window = 0; first < pieces.size(); ++window) {
      const std::size_t count = std::min(options.window_chunks, pieces.size() - first);
      const auto window_begin = static_cast<std::ptrdiff_t>(samples.size());
      for (std::size_t i = first; i < first + count; ++i) {
        for (std::uint64_t j = 0; j < pieces[i].count; ++j) samples.push_back(pieces[i].first_sample + j);
      }
      if (options.shuffle) shuffle_window(samples.begin() + window_begin, samples.end(), of, number, window);
      first += count;
    }
    return samples;
  }

  ChunkedSamplerOptions options;  // without the sizes

 private:
  template <class Iterator>
  static void shuffle_window(Iterator first, Iterator last, const SamplerPosition& of, std::uint64_t partition,
                             std::uint64_t window) {
    sampler::RandomWords words{static_cast<std::uint64_t>(sampler::Kind::chunked),
                               static_cast<std::uint64_t>(Purpose::window),
                               of.seed,
                               of.epoch,
                               partition,
                               window};
    words.shuffle(first, last);
  }

  std::vector<std::uint64_t> firsts_;  // of each chunk its first sample, and the number of samples at the end
  std::uint64_t order_;
};

std::vector<std::size_t> DDP_ABI::equal_chunks(std::size_t sample_count, std::size_t chunk_size) {
  if (chunk_size == 0) throw InvalidArgument("chunks of 0 samples\nwhere: equal_chunks\ntry:   a size above 0");
  std::vector<std::size_t> chunks(sample_count / chunk_size, chunk_size);
  if (sample_count % chunk_size != 0) chunks.push_back(sample_count % chunk_size);
  return chunks;
}

ChunkedSampler::ChunkedSampler(const ChunkedSamplerOptions& options)
    : chunks_((check(options), std::make_shared<const Chunks>(options))) {}

std::size_t ChunkedSampler::size() const { return sampler::size_of_share(chunks_->sample_count(), chunks_->share()); }

std::vector<std::int64_t> ChunkedSampler::indices(std::uint64_t epoch) const { return indices(start(epoch)); }

SamplerPosition ChunkedSampler::start(std::uint64_t epoch) const { return chunks_->start(epoch); }

SamplerPosition ChunkedSampler::after(const SamplerPosition& position, std::size_t count) const {
  chunks_->check_position(position);
  return sampler::position_after(chunks_->share(), position, count);
}

std::vector<std::int64_t> ChunkedSampler::indices(const SamplerPosition& from) const {
  chunks_->check_position(from);
  const Line line = chunks_->line(from.epoch);
  std::vector<std::vector<std::uint64_t>> partitions(from.partitions);  // those that this rank needs
  return sampler::take(chunks_->share(), from, [&](std::uint64_t place) {
    const std::uint64_t number = place % from.partitions;
    if (partitions[number].empty()) partitions[number] = chunks_->partition(line, from, number);
    return partitions[number][place / from.partitions];
  });
}

}  // namespace ddp
