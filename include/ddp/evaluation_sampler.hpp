// Which samples a rank evaluates: each sample of the data set is on one rank, once, so that no sample counts twice in a
// result. DistributedSampler repeats samples where the ranks do not divide their number.
//
// Ranks may differ by one sample, so by one batch too. Collectives belong behind the loop over the batches: a metric
// that is read once (ddp/metrics.hpp), or an all_gather_v with sizes() as its counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/export.hpp"
#include "ddp/sampling.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of an EvaluationSampler.
struct EvaluationSamplerOptions {
  std::size_t sample_count = 0;  // in the whole data set; > 0
  int replicas = 1;              // ranks that share the data set; >= 1
  int rank = 0;                  // 0 <= rank < replicas
};

// Pure and immutable; any thread.
class DDP_EXPORT EvaluationSampler {
 public:
  // Throws InvalidArgument where the options are out of range.
  explicit EvaluationSampler(const EvaluationSamplerOptions& options);

  // How many samples each rank has, by rank. They add up to sample_count and differ by one at most.
  std::vector<std::size_t> sizes() const;

  // This rank's samples: rank, rank + replicas, rank + 2 * replicas, ...
  std::vector<std::int64_t> indices() const;

  // Puts the elements of an all_gather_v with the counts sizes(), one for each sample, into the order of the data set.
  // Throws InvalidArgument unless there are sample_count of them.
  template <class T>
  std::vector<T> in_order(const std::vector<T>& gathered) const {
    check_gathered(gathered.size());
    std::vector<T> ordered;
    ordered.reserve(gathered.size());
    for (std::size_t sample = 0; sample < gathered.size(); ++sample) ordered.push_back(gathered[place_of(sample)]);
    return ordered;
  }

  // The position before the first sample. The order of the samples is the same in all epochs.
  SamplerPosition start(std::uint64_t epoch = 0) const;

  // The position after each rank has taken `count` samples more, at most the end of the data set.
  SamplerPosition after(const SamplerPosition& position, std::size_t count) const;

  // As sizes() and indices(), from a position on, which may be of a run with another number of ranks. Both throw
  // InvalidArgument for a position of another data set or kind of sampler.
  std::vector<std::size_t> sizes(const SamplerPosition& from) const;
  std::vector<std::int64_t> indices(const SamplerPosition& from) const;

 private:
  void check_gathered(std::size_t count) const;
  std::size_t place_of(std::size_t sample) const;  // among the gathered elements

  EvaluationSamplerOptions options_;
};

}  // namespace DDP_ABI
}  // namespace ddp
