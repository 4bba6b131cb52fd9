#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "worker_runtime/engine/hooks/exact_text.hpp"
#include "worker_runtime/engine/hooks/host_gradients_only.hpp"
#include "worker_runtime/engine/hooks/largest_values.hpp"
#include "worker_runtime/engine/hooks/unsent_gradients.hpp"

namespace ddp {
namespace {

using Entry = gradient_engine::PlacedValue;  // of a gradient that is sent, by its place in the bucket
static_assert(sizeof(Entry) == 8);

class TopK : public CommunicationHook {
 public:
  explicit TopK(TopKOptions options) : options_(options) {}

  std::string describe() const override { return "top_k, ratio = " + gradient_engine::exact_text(options_.ratio); }
  bool averages_over_all_ranks() const override { return true; }

  void begin(ProcessGroup& group, const std::vector<GradientBucket>& buckets, CollectiveOptions options) override {
    gradient_engine::require_float32_on_host(buckets, "top_k");
    places_.clear();
    unsent_.clear();
    std::size_t entries = 0;
    for (const GradientBucket& bucket : buckets) {
      const auto wanted =
          static_cast<std::size_t>(std::ceil(options_.ratio * static_cast<double>(bucket.gradients.count)));
      const std::size_t count = std::min(std::max<std::size_t>(wanted, 1), bucket.gradients.count);
      places_.push_back({entries, count});
      entries += count * (1 + static_cast<std::size_t>(group.size()));
      for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
        const Parameter& parameter = bucket.parameters[i];
        Error& error = errors_[parameter.name];
        error.values.resize(parameter.values.count);
        error.shape = parameter.shape;
        unsent_.add(bucket.indices[i], parameter.values, error.values);
      }
    }
    memory_ = {};  // of another model, if there was one
    memory_ = group.allocate(entries * sizeof(Entry), options);
  }

  void gradients_end() noexcept override { memory_ = {}; }
  void parameters_unused(const std::vector<std::size_t>& parameters) noexcept override {
    unsent_.take_back(parameters);
  }

  std::optional<Work> next(const HookCall& call) override {
    const Place& place = places_[call.bucket.number];
    Entry* const own = static_cast<Entry*>(memory_.data()) + place.first;
    Entry* const all = own + place.count;
    const auto size = static_cast<std::size_t>(call.group.size());
    if (place.count == 0) return std::nullopt;
    if (call.stage == 0) {
      add_errors(call.bucket);
      // A NaN counts as large: it must reach the other ranks.
      gradient_engine::take_largest(
          {static_cast<const float*>(call.bucket.gradients.data), call.bucket.gradients.count}, {own, place.count},
          scratch_);
      keep_errors(call.bucket, {own, place.count});
      return call.group.all_gather_async({own, place.count * sizeof(Entry), DataType::uint8},
                                         {all, size * place.count * sizeof(Entry), DataType::uint8}, call.options);
    }
    auto* const gradients = static_cast<float*>(call.bucket.gradients.data);
    std::fill_n(gradients, call.bucket.gradients.count, 0.0F);
    for (std::size_t i = 0; i < size * place.count; ++i) {
      if (all[i].place < call.bucket.gradients.count)
        gradients[all[i].place] += all[i].value / static_cast<float>(size);
    }
    return std::nullopt;
  }

  std::vector<Parameter> state() override {
    std::vector<Parameter> state;
    for (auto& [name, error] : errors_) state.push_back({"top_k." + name + ".error", error.shape, error.values});
    return state;
  }

 private:
  struct Place {  // of a bucket's entries: this rank's, and behind them those of all
    std::size_t first = 0;
    std::size_t count = 0;
  };
  struct Error {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
  };

  void add_errors(const GradientBucket& bucket) {
    for (const Parameter& parameter : bucket.parameters) {
      const std::vector<float>& error = errors_[parameter.name].values;
      auto* const gradient = static_cast<float*>(parameter.values.data);
      for (std::size_t i = 0; i < error.size(); ++i) gradient[i] += error[i];
    }
  }

  // What is not sent. Infinite ones and NaN are for the present step only.
  void keep_errors(const GradientBucket& bucket, std::span<const Entry> sent) {
    auto* const gradients = static_cast<float*>(bucket.gradients.data);
    for (const Entry& each : sent) gradients[each.place] = 0;
    for (const Parameter& parameter : bucket.parameters) {
      std::vector<float>& error = errors_[parameter.name].values;
      std::memcpy(error.data(), parameter.values.data, parameter.values.bytes());
      std::replace_if(
          error.begin(), error.end(), [](float each) { return !std::isfinite(each); }, 0.0F);
    }
  }

  TopKOptions options_;
  std::map<std::string, Error> errors_;  // by the parameter's name
  gradient_engine::UnsentGradients unsent_;
  std::vector<Place> places_;  // by bucket
  std::vector<std::uint32_t> scratch_;
  RegisteredMemory memory_;
};

}  // namespace

std::shared_ptr<CommunicationHook> DDP_ABI::top_k(TopKOptions options) {
  if (!(options.ratio > 0 && options.ratio <= 1)) {
    throw InvalidArgument("ratio = " + std::to_string(options.ratio) +
                          "\nwhere: top_k\ntry:   a number above 0 and up to 1");
  }
  return std::make_shared<TopK>(options);
}

}  // namespace ddp
