#include "ddp/distributed_data_parallel.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/engine/bucket_plan.hpp"
#include "worker_runtime/engine/model_agreement.hpp"
#include "worker_runtime/engine/reducer.hpp"
#include "worker_runtime/engine/unused_parameters.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

#include <exception>
#include <utility>

namespace ddp {

using namespace gradient_engine;
using process_group::Flag;

namespace {

// Collective. Every rank takes part in the comparison, also one that already knows its model to be wrong: the others
// then hear the reason instead of waiting for it.
void agree_on_model(ProcessGroup& group, const std::vector<Parameter>& parameters,
                    const DistributedDataParallelOptions& options) {
  std::exception_ptr refused;
  std::vector<std::string> lines;
  try {
    check_model(parameters, group.device());
    lines = describe_model(parameters, options);
  } catch (const InvalidArgument& error) {
    refused = std::current_exception();
    const std::string reason = error.what();
    lines = {"a model that is refused: " + reason.substr(0, reason.find('\n'))};
  }
  try {
    check_same_on_all_ranks(group, lines, options.collective);
  } catch (const MismatchError&) {
    if (!refused) throw;
  }
  if (refused) std::rethrow_exception(refused);
}

BucketPlan plan_of(const std::vector<Parameter>& parameters, const DistributedDataParallelOptions& options) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters) sizes.push_back({parameter.values.type, parameter.values.count});
  return plan_buckets(sizes, {.first_bytes = options.first_bucket_cap_bytes, .bytes = options.bucket_cap_bytes});
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

std::vector<std::vector<std::size_t>> members_of(const BucketPlan& plan) {
  std::vector<std::vector<std::size_t>> members;
  for (const Bucket& bucket : plan.buckets) members.push_back(bucket.parameters);
  return members;
}

}  // namespace

// Carries out what the reducer decides: zeroes, launches, waits.
class DistributedDataParallel::Impl {
 public:
  // The model is agreed on by all ranks. Collective.
  Impl(ProcessGroup group, const std::vector<Parameter>& parameters, const DistributedDataParallelOptions& options)
      : group_(std::move(group)),
        device_memory_(group_.impl()->backend().device_memory()),
        options_(options),
        names_(names_of(parameters)),
        plan_(plan_of(parameters, options)),
        reducer_(names_, members_of(plan_)) {
    for (const Bucket& bucket : plan_.buckets) memory_.push_back(group_.allocate(bucket.bytes(), options_.collective));
    for (const Parameter& parameter : parameters) counts_.push_back(parameter.values.count);
    broadcast(parameters);
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    // Buckets must not go while a collective works on them, and ranks that wait for the rest of a step that is not
    // finished would wait in vain.
    if (reducer_.is_open() || !works_.empty()) give_up("a DistributedDataParallel was destroyed in mid-step");
    wait_all();
  }

  MemoryRange gradient(std::size_t index) const {
    reducer_.check_index(index, "gradient");
    const Slot& slot = plan_.slots[index];
    auto* data = static_cast<std::byte*>(memory_[slot.bucket].data()) + slot.offset_bytes;
    return {data, counts_[index], plan_.buckets[slot.bucket].type, group_.device()};
  }

  std::size_t parameter_count() const { return counts_.size(); }
  std::size_t bucket_count() const { return plan_.buckets.size(); }

  void begin_step(Sync sync) {
    const bool starts_anew = reducer_.begin_step(sync);
    wait_all();  // for what a failed step left under way
    if (!starts_anew || !options_.zero_gradients) return;
    for (std::size_t bucket = 0; bucket < bucket_count(); ++bucket) write_zeros(range_of(bucket));
  }

  void ready(std::size_t index) { launch(reducer_.ready(index), {}); }

  void finish() {
    const Reducer::Rest rest = reducer_.finish();
    if (rest.sync == Sync::off) return;
    for (const std::size_t parameter : rest.missing) write_zeros(gradient(parameter));
    launch(rest.launches, rest.missing);
    if (const std::exception_ptr failure = wait_all()) std::rethrow_exception(failure);
    Look last = std::exchange(look_, begin_look(rest.missing));
    throw_if_unused(device_memory_->reads_at_once() ? look_ : last);
    agent_link::tell_step();
  }

 private:
  // At the flags of a step: the same answer on every rank, because flags are averaged as gradients are, 0 only where
  // all ranks wrote 0. A device is given time for it until the next step has been handed to it: then the host waits for
  // nothing that the device would not have done by then anyway.
  struct Look {
    std::unique_ptr<process_group::FlagReading> reading;  // null before the first step
    std::vector<std::size_t> missing;                     // on this rank, in that step
  };

  MemoryRange range_of(std::size_t bucket) const {
    return {memory_[bucket].data(), plan_.buckets[bucket].count, plan_.buckets[bucket].type, group_.device()};
  }

  // The other ranks are at these broadcasts too: one that can't begin them all keeps nobody waiting, and takes its
  // hands off the caller's memory.
  void broadcast(const std::vector<Parameter>& parameters) {
    try {
      works_.reserve(parameters.size());
      for (const Parameter& parameter : parameters) {
        if (parameter.values.count == 0) continue;
        works_.push_back(group_.broadcast_async(parameter.values, 0, options_.collective));
      }
    } catch (...) {
      give_up("a DistributedDataParallel could not broadcast its parameters");
      wait_all();
      throw;
    }
    if (const std::exception_ptr failure = wait_all()) std::rethrow_exception(failure);
  }

  // Starts the all-reduce of these buckets, in order. A raised flag tells all ranks that this one misses a part of it.
  void launch(BucketRange buckets, const std::vector<std::size_t>& missing) {
    if (buckets.begin == buckets.end) return;
    std::vector<bool> raised(bucket_count());
    for (const std::size_t parameter : missing) raised[plan_.slots[parameter].bucket] = true;
    try {
      for (std::size_t bucket = buckets.begin; bucket < buckets.end; ++bucket) {
        device_memory_->write_flag(flag_of(bucket), raised[bucket], options_.collective.stream);
        works_.push_back(group_.all_reduce_async(range_of(bucket), ReduceOp::average, options_.collective));
      }
    } catch (...) {
      reducer_.abandon();
      throw;
    }
  }

  // In a forked child, which has no part in the group, there is nobody to tell.
  void give_up(const char* reason) noexcept {
    try {
      group_.abort(reason);
    } catch (const InvalidArgument&) {
    }
  }

  // Waits for everything that was launched, also where a part of it failed: the memory is the caller's again
  // afterwards. Returns the first failure.
  std::exception_ptr wait_all() {
    std::exception_ptr failure;
    for (Work& work : works_) {
      try {
        work.wait();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    works_.clear();
    return failure;
  }

  void write_zeros(const MemoryRange& range) { device_memory_->zero(range, options_.collective.stream); }

  Flag flag_of(std::size_t bucket) const { return {range_of(bucket), plan_.buckets[bucket].flag()}; }

  Look begin_look(const std::vector<std::size_t>& missing) {
    std::vector<Flag> flags;
    for (std::size_t bucket = 0; bucket < bucket_count(); ++bucket) flags.push_back(flag_of(bucket));
    return {device_memory_->begin_read_flags(flags, options_.collective.stream), missing};
  }

  void throw_if_unused(Look& look) {
    const auto reading = std::exchange(look.reading, nullptr);
    if (!reading || !reading->is_raised()) return;
    const auto bitmaps = process_group::all_gather_words(group_, to_bitmap(look.missing, parameter_count()),
                                                         process_group::Within::unused_check, options_.collective);
    const std::string step = device_memory_->reads_at_once() ? "this step's" : "the last step's";
    throw GradientError(
        describe_unused(names_, bitmaps, group_.size()) + "\nwhere: DistributedDataParallel::Step::finish; " + step +
        " gradients are undefined on every rank\n"
        "try:   call ready() for it on every rank, with zeros (what begin_step leaves) where a rank did "
        "not use it; or leave it out of the model on all ranks");
  }

  ProcessGroup group_;
  std::shared_ptr<process_group::DeviceMemory> device_memory_;
  DistributedDataParallelOptions options_;
  std::vector<std::string> names_;
  BucketPlan plan_;
  Reducer reducer_;
  std::vector<std::size_t> counts_;       // of elements, by parameter
  std::vector<RegisteredMemory> memory_;  // by bucket
  std::vector<Work> works_;               // launched in this step and not yet waited for
  Look look_;                             // at the last step's flags
};

DistributedDataParallel::DistributedDataParallel(ProcessGroup group, std::vector<Parameter> parameters,
                                                 const DistributedDataParallelOptions& options) {
  agree_on_model(group, parameters, options);
  impl_ = std::make_shared<Impl>(std::move(group), parameters, options);
}

DistributedDataParallel::Impl& DistributedDataParallel::require_model() const {
  if (!impl_) {
    throw InvalidArgument(
        "this DistributedDataParallel is empty: it was moved from\ntry:   use the one it was moved to");
  }
  return *impl_;
}

std::shared_ptr<DistributedDataParallel::Impl> DistributedDataParallel::Step::require_model() const {
  auto model = model_.lock();
  if (!model) {
    throw InvalidArgument("the model of this Step is gone\ntry:   let the DistributedDataParallel outlive its steps");
  }
  return model;
}

MemoryRange DistributedDataParallel::gradient(std::size_t index) const { return require_model().gradient(index); }
std::size_t DistributedDataParallel::parameter_count() const { return require_model().parameter_count(); }
std::size_t DistributedDataParallel::bucket_count() const { return require_model().bucket_count(); }

DistributedDataParallel::Step DistributedDataParallel::begin_step(Sync sync) {
  require_model().begin_step(sync);
  return Step(impl_);
}

void DistributedDataParallel::Step::ready(std::size_t index) { require_model()->ready(index); }
void DistributedDataParallel::Step::finish() { require_model()->finish(); }

}  // namespace ddp
