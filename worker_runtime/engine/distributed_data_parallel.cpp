#include "ddp/distributed_data_parallel.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/engine/executor.hpp"
#include "worker_runtime/engine/finite_check.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/layout/layout.hpp"
#include "worker_runtime/engine/model_agreement.hpp"
#include "worker_runtime/engine/model_buckets.hpp"
#include "worker_runtime/engine/model_gradients.hpp"
#include "worker_runtime/engine/plan/bucket_tuning.hpp"
#include "worker_runtime/engine/plan/plan.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

namespace ddp {

using namespace gradient_engine;

namespace {

// Collective. Every rank takes part in the comparison, also one that already knows its model to be wrong: the others
// then hear the reason instead of waiting for it.
void agree_on_model(ProcessGroup& group, const std::vector<Parameter>& parameters,
                    const DistributedDataParallelOptions& options) {
  std::exception_ptr refused;
  std::vector<std::string> lines;
  try {
    check_model(parameters, group.device());
    check_options(parameters, options, group.device());
    if (options.check_finite) FiniteCheck(group, parameters.size(), options.collective.stream).try_out();
    lines = describe_model(parameters, options);
  } catch (const std::exception& error) {  // a hook of the program's may throw anything
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

std::vector<GradientSize> sizes_of(const std::vector<Parameter>& parameters) {
  std::vector<GradientSize> sizes;
  for (const Parameter& parameter : parameters) sizes.push_back({parameter.values.type, parameter.values.count});
  return sizes;
}

// Those that are not empty.
std::vector<MemoryRange> ranges_of(const std::vector<Parameter>& values) {
  std::vector<MemoryRange> ranges;
  for (const Parameter& each : values) {
    if (each.values.count > 0) ranges.push_back(each.values);
  }
  return ranges;
}

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

std::vector<std::vector<std::size_t>> members_of(const Layout& layout) {
  std::vector<std::vector<std::size_t>> members;
  for (const Bucket& bucket : layout.buckets) members.push_back(bucket.parameters);
  return members;
}

// Small buckets begin earlier, and large ones cost less for each byte.
std::vector<BucketCaps> caps_to_try() {
  constexpr std::size_t kMiB = 1 << 20;
  return {{kMiB, 25 * kMiB}, {kMiB / 4, 2 * kMiB}, {kMiB, 8 * kMiB}, {4 * kMiB, 100 * kMiB}};
}

// What is in place from the start.
BucketCaps first_caps(const DistributedDataParallelOptions& options) {
  if (options.bucket_cap_bytes == kAutomaticBucketCap) return caps_to_try().front();
  return {options.first_bucket_cap_bytes, options.bucket_cap_bytes};
}

PlanOptions plan_options(const ProcessGroup& group, const DistributedDataParallelOptions& options) {
  const bool waits = group.device().kind == Device::Kind::cpu || options.wait_in_finish || options.check_finite ||
                     options.unused == Unused::keep || options.uneven_inputs != UnevenInputs::off;
  return {.rank = group.rank(),
          .rank_count = group.size(),
          .zero_gradients = options.zero_gradients,
          .rebuilds_buckets = options.rebuild_buckets == RebuildBuckets::automatic,
          .unused = options.unused,
          .is_static_graph = options.static_graph,
          .uneven_inputs = options.uneven_inputs,
          .has_hook = options.communication_hook != nullptr,
          .releases_gradients = options.release_gradients,
          .buffer_sync = ranges_of(options.buffers).empty() ? BufferSync::none : options.buffer_sync,
          .look_at = waits ? LookAt::end_of_window : LookAt::end_of_next_window};
}

struct RebuiltBuckets {
  BucketCaps caps;
  std::vector<std::size_t> order;  // of the parameters
};

// "<first cap> <cap> <parameter> <parameter> ...", in every locale.
std::string text_of(const RebuiltBuckets& buckets) {
  std::string text = std::to_string(buckets.caps.first_bytes) + " " + std::to_string(buckets.caps.bytes);
  for (const std::size_t parameter : buckets.order) text += " " + std::to_string(parameter);
  return text;
}

[[noreturn]] void refuse_buckets(const std::string& problem) {
  throw CheckpointError(problem + "\nwhere: Checkpointer::load\ntry:   do not add the model to this Checkpointer");
}

// Throws CheckpointError unless the text is that of a model with as many parameters.
RebuiltBuckets parse_buckets(const std::string& text, std::size_t parameter_count) {
  constexpr const char* kDamaged = "the text of a model's buckets is damaged";
  std::vector<std::size_t> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end && numbers.size() < parameter_count + 3) {  // one more than there should be
    if (!numbers.empty() && *at++ != ' ') refuse_buckets(kDamaged);
    const auto [next, error] = std::from_chars(at, end, numbers.emplace_back());
    if (error != std::errc()) refuse_buckets(kDamaged);
    at = next;
  }
  if (numbers.size() < 2) refuse_buckets(kDamaged);
  RebuiltBuckets buckets{{numbers[0], numbers[1]}, {numbers.begin() + 2, numbers.end()}};
  if (buckets.order.size() != parameter_count) {
    refuse_buckets("the buckets of a model with " + std::string(at == end ? "" : "more than ") +
                   std::to_string(at == end ? buckets.order.size() : parameter_count) +
                   " parameters, for a model with " + std::to_string(parameter_count));
  }
  std::vector<std::size_t> sorted = buckets.order;
  std::sort(sorted.rbegin(), sorted.rend());
  if (at != end || sorted != reverse_order(parameter_count)) refuse_buckets(kDamaged);
  return buckets;
}

// What the flags take in memory.
std::size_t flags_bytes(const DistributedDataParallelOptions& options, std::size_t parameter_count,
                        std::size_t rank_count) {
  return sizeof(Flags) + (options.uneven_inputs != UnevenInputs::off ? rank_count * sizeof(std::int32_t) : 0) +
         (options.unused == Unused::keep ? parameter_count : 0);
}

// ": <first line>" of the error that is handled now, if it has a text.
std::string cause() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string what = error.what();
    return ": " + what.substr(0, what.find('\n'));
  } catch (...) {
    return "";
  }
}

// Whether an error is what the plan has to tell all ranks. The collectives went well then.
bool is_told_by_plan(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const GradientError&) {
    return true;
  } catch (const FrozenMismatch&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

// Hands events to the plan, and the actions that come of them to the executor.
class DistributedDataParallel::Impl {
 public:
  // The model is agreed on by all ranks. Collective.
  Impl(const ProcessGroup& group, const std::vector<Parameter>& parameters,
       const DistributedDataParallelOptions& options)
      : options_(options),
        sizes_(sizes_of(parameters)),
        caps_(first_caps(options)),
        executor_(group, options.collective,
                  layout_of(reverse_order(parameters.size()), static_cast<std::size_t>(group.size())), parameters,
                  ranges_of(options.buffers), options.communication_hook, options.release_gradients),
        plan_(names_of(parameters), members_of(executor_.memory().layout()), plan_options(group, options)) {
    broadcast(ranges_of(parameters));
    broadcast(ranges_of(options.buffers));
    options_.buffers.clear();
    if (options.check_finite) finite_.emplace(executor_.group(), sizes_.size(), options.collective.stream);
    if (options.bucket_cap_bytes == kAutomaticBucketCap) tuning_.emplace(caps_to_try());
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    // Buckets must not go while a collective works on them, and ranks that wait for the rest of a step that is not
    // finished would wait in vain.
    if (plan_.is_open() || executor_.is_at_work()) give_up("a DistributedDataParallel was destroyed in mid-step");
    executor_.wait_all();
  }

  MemoryRange gradient(std::size_t index) const {
    plan_.check_index(index, "gradient");
    return executor_.memory().gradient(index);
  }

  std::size_t parameter_count() const { return sizes_.size(); }
  std::size_t bucket_count() const { return executor_.memory().layout().buckets.size(); }
  std::string describe_buckets() const { return executor_.memory().describe(); }
  std::vector<MemoryRange> bucket_memory() const {
    if (options_.communication_hook && !options_.communication_hook->leaves_gradients()) {
      throw InvalidArgument(
          "the communication hook leaves no gradients in the buckets\nwhere: DistributedDataParallel::bucket_memory\n"
          "try:   what the hook has instead, such as ShardedOptimizer::clip_gradients_by_norm()");
    }
    return executor_.memory().buckets();
  }

  ModelGradients gradients() {
    process_group::Backend& backend = executor_.group().impl()->backend();
    return {used_memory(), backend.device_arithmetic(), backend.device_memory(), options_.collective.stream};
  }

  // What no rank used may hold other bits on each rank. They are no gradients, and stay as they are.
  std::vector<MemoryRange> used_memory() const {
    std::vector<MemoryRange> buckets = bucket_memory();
    const auto& used = plan_.outcome().used;
    const bool are_all_gradients = options_.unused != Unused::keep || options_.zero_gradients ||
                                   std::find(used.begin(), used.end(), 0) == used.end();
    if (are_all_gradients) return buckets;
    std::vector<MemoryRange> out;
    for (const Bucket& bucket : executor_.memory().layout().buckets) {
      for (const std::size_t parameter : bucket.parameters) {
        if (used[parameter] != 0) out.push_back(executor_.memory().gradient(parameter));
      }
    }
    return out;
  }

  // Returns the number of the step.
  std::uint64_t begin_step(Sync sync) {
    if (executor_.is_captured()) {
      require_settled_buckets();
      if (finite_) {
        throw InvalidArgument(
            "a step can't be captured into a CUDA graph with check_finite, whose result ranks tell each other in each "
            "step\nwhere: DistributedDataParallel::begin_step, on a stream that is being captured\ntry:   check_finite "
            "= "
            "false");
      }
      if (!executor_.memory().is_there()) {
        throw GradientError(
            "the model has no gradients, because there was no memory for its new buckets\nwhere: "
            "DistributedDataParallel::begin_step\ntry:   a step outside a capture first, which asks for it again");
      }
      carry_out(plan_.begin_captured(sync));
    } else {
      rebuild_if_due();
      const bool is_new_window = plan_.is_between_windows();
      const Actions actions = plan_.begin(sync);
      in_step([&] {
        perform(actions);
        if (finite_ && is_new_window) finite_->begin_window();
        if (finite_) finite_->begin_step();
      });
    }
    return plan_.step();
  }

  void ready(std::uint64_t step, std::size_t index) {
    const Actions actions = plan_.ready(step, index);
    std::exception_ptr failure;  // of the look; the other ranks need the actions all the same
    if (finite_) {
      try {
        finite_->look_at(executor_.memory().gradient(index), index);
      } catch (...) {
        failure = std::current_exception();
      }
    }
    if (!actions.empty()) carry_out(actions);
    if (failure) std::rethrow_exception(failure);
  }

  int finish(std::uint64_t step) {
    in_step([&] {
      if (finite_) end_finite_check(step);
      const Actions actions = plan_.end(step);
      if (actions.empty()) return;  // with Sync::off
      perform(actions);
      if (!plan_.is_captured()) agent_link::tell_step();
    });
    return plan_.outcome().active_count;
  }

  void join(const std::function<void()>& after_each_step) {
    if (options_.uneven_inputs == UnevenInputs::off) {
      throw InvalidArgument(
          "the other ranks are not prepared for one that runs out of inputs\nwhere: DistributedDataParallel::join\n"
          "try:   the option uneven_inputs");
    }
    for (;;) {
      rebuild_if_due();
      carry_out(plan_.begin_shadow());
      in_step([&] { perform(plan_.end(plan_.step())); });
      agent_link::tell_step();
      if (!plan_.outcome().was_last_good) continue;  // cancelled by another rank
      if (plan_.outcome().active_count == 0 || options_.uneven_inputs == UnevenInputs::stop) break;
      if (after_each_step) after_each_step();
    }
    executor_.forget_kept();
  }

  void cancel(std::uint64_t step) {
    in_step([&] { perform(plan_.cancel(step)); });
  }
  void check() { carry_out(plan_.check()); }
  bool is_unused(std::size_t index) const { return plan_.is_unused(index); }
  void set_frozen(std::size_t index, bool is_frozen) { plan_.set_frozen(index, is_frozen); }

  void rebuild_buckets() {
    plan_.require_no_window("rebuild_buckets");
    if (tuning_) {  // the program decides
      caps_ = first_caps(options_);
      tuning_.reset();
    }
    rebuild();
  }

  std::string buckets_text() const {
    std::vector<std::size_t> order = plan_.is_rebuild_due() && !are_buckets_loaded_ ? plan_.ready_order() : order_;
    if (tuning_ || order.empty()) return "";
    return text_of({caps_, std::move(order)});
  }

  void take_buckets(const std::string& text) {
    taken_buckets_.reset();
    if (!text.empty()) taken_buckets_ = parse_buckets(text, sizes_.size());
  }

  void use_taken_buckets() noexcept {
    if (!taken_buckets_) return;
    caps_ = taken_buckets_->caps;
    order_ = std::move(taken_buckets_->order);
    taken_buckets_.reset();
    are_buckets_loaded_ = true;
    tuning_.reset();
  }

 private:
  void end_finite_check(std::uint64_t step) {
    if (!plan_.is_open() || step != plan_.step()) return;
    finite_->end_step();
    if (plan_.sync() == Sync::off) return;
    for (const std::size_t parameter : finite_->take()) plan_.note_non_finite(parameter);
  }

  // While an error is handled. The other ranks would wait until their timeout. If the group has failed already, its
  // first reason stays.
  void fail_step() noexcept {
    plan_.failed();
    executor_.forget_results();
    give_up("a rank could not do its part of a step" + cause());
  }

  void require_settled_buckets() const {
    if (are_buckets_loaded_) {
      throw GradientError(
          "a step is captured before the buckets of a checkpoint are in place\nwhere: "
          "DistributedDataParallel::begin_step, on a stream that is being captured\ntry:   a step outside a capture "
          "first");
    }
    if (!tuning_) return;
    throw GradientError(
        "a step is captured while bucket sizes are being tried\nwhere: DistributedDataParallel::begin_step, on a "
        "stream that is being captured\ntry:   a bucket_cap_bytes other than kAutomaticBucketCap, or more steps before "
        "the capture");
  }

  // In the order of a checkpoint that was loaded, else in that in which gradients became ready on rank 0.
  void rebuild() {
    if (!are_buckets_loaded_) order_ = order_of_rank_0();
    executor_.rebuild(layout_of(order_, static_cast<std::size_t>(executor_.group().size())));
    plan_.rebuild(members_of(executor_.memory().layout()));
    are_buckets_loaded_ = false;
  }

  std::vector<std::size_t> order_of_rank_0() {
    ProcessGroup& group = executor_.group();
    std::vector<std::int64_t> words;
    for (const std::size_t parameter : plan_.ready_order()) words.push_back(static_cast<std::int64_t>(parameter));
    const auto of_all =
        process_group::all_gather_words(group, words, process_group::Within::nothing, options_.collective);
    return {of_all.begin(), of_all.begin() + static_cast<std::ptrdiff_t>(words.size())};
  }

  void rebuild_if_due() {
    const bool is_next_candidate = tuning_ && plan_.is_between_windows() && try_next_caps();
    const bool is_load_due = are_buckets_loaded_ && plan_.is_between_windows();
    if (!plan_.is_rebuild_due() && !is_next_candidate && !is_load_due && executor_.memory().is_there()) return;
    carry_out({Drain{}});  // a cancelled step may still have collectives in the old memory
    rebuild();
  }

  // Whether there are new caps.
  bool try_next_caps() {
    const auto caps = tuning_->begin_window(plan_.outcome().good_windows, std::chrono::steady_clock::now());
    if (caps) caps_ = *caps;
    if (caps || !tuning_->is_choice_due()) return caps.has_value();
    const auto times = process_group::all_gather_words(executor_.group(), tuning_->times(),
                                                       process_group::Within::nothing, options_.collective);
    caps_ = tuning_->choose(times);
    tuning_.reset();
    return true;
  }

  void carry_out(const Actions& actions) {
    in_step([&] { perform(actions); });
  }

  void perform(const Actions& actions) {
    for (const Action& action : actions) {
      const Agreement* const of_all = executor_.perform(action);
      if (of_all == nullptr) continue;
      perform(std::holds_alternative<Peek>(action) ? plan_.peeked(*of_all) : plan_.looked(*of_all));
    }
  }

  // An error in a part of a step fails the step, unless all ranks have it.
  template <class Part>
  void in_step(const Part& part) {
    try {
      part();
    } catch (...) {
      if (!is_told_by_plan(std::current_exception()) || executor_.has_hook_failed()) fail_step();
      throw;
    }
  }

  Layout layout_of(const std::vector<std::size_t>& order, std::size_t rank_count) const {
    return lay_out(sizes_, order, caps_, flags_bytes(options_, sizes_.size(), rank_count), rank_count);
  }

  // The other ranks are at these broadcasts too: one that can't begin them all keeps nobody waiting, and takes its
  // hands off the caller's memory.
  void broadcast(const std::vector<MemoryRange>& values) {
    try {
      executor_.broadcast(values, 0);
    } catch (...) {
      give_up("a DistributedDataParallel could not broadcast its parameters");
      executor_.wait_all();
      throw;
    }
  }

  // In a forked child, which has no part in the group, there is nobody to tell.
  void give_up(const std::string& reason) noexcept {
    try {
      executor_.group().abort(reason);
    } catch (const InvalidArgument&) {
    }
  }

  DistributedDataParallelOptions options_;
  std::vector<GradientSize> sizes_;  // by parameter
  BucketCaps caps_;
  std::vector<std::size_t> order_;   // of the last rebuild; empty before the first
  bool are_buckets_loaded_ = false;  // caps_ and order_ are those of a checkpoint, and the next rebuild uses them
  std::optional<RebuiltBuckets> taken_buckets_;  // of a checkpoint that may not be loaded on all ranks yet
  std::optional<BucketTuning> tuning_;           // while it is under way
  Executor executor_;
  Plan plan_;
  std::optional<FiniteCheck> finite_;
};

DistributedDataParallel::DistributedDataParallel(ProcessGroup group, std::vector<Parameter> parameters,
                                                 const DistributedDataParallelOptions& options) {
  agree_on_model(group, parameters, options);
  impl_ = std::make_shared<Impl>(group, parameters, options);
}

DistributedDataParallel::Impl& DistributedDataParallel::require_model() const {
  return require_impl(impl_, "DistributedDataParallel");
}

MemoryRange DistributedDataParallel::gradient(std::size_t index) const { return require_model().gradient(index); }
std::size_t DistributedDataParallel::parameter_count() const { return require_model().parameter_count(); }
std::size_t DistributedDataParallel::bucket_count() const { return require_model().bucket_count(); }
std::vector<MemoryRange> DistributedDataParallel::bucket_memory() const { return require_model().bucket_memory(); }
std::string DistributedDataParallel::describe_buckets() const { return require_model().describe_buckets(); }
void DistributedDataParallel::rebuild_buckets() { require_model().rebuild_buckets(); }
void DistributedDataParallel::check() { require_model().check(); }
bool DistributedDataParallel::is_unused(std::size_t index) const { return require_model().is_unused(index); }
void DistributedDataParallel::set_frozen(std::size_t index, bool is_frozen) {
  require_model().set_frozen(index, is_frozen);
}
void DistributedDataParallel::join(const std::function<void()>& after_each_step) {
  require_model().join(after_each_step);
}

std::string ModelBuckets::text_of(const DistributedDataParallel& model) { return model.require_model().buckets_text(); }
void ModelBuckets::take(const DistributedDataParallel& model, const std::string& text) {
  model.require_model().take_buckets(text);
}
void ModelBuckets::use_taken(const DistributedDataParallel& model) noexcept { model.impl_->use_taken_buckets(); }

ModelGradients ModelGradients::of(const DistributedDataParallel& model) { return model.require_model().gradients(); }

DistributedDataParallel::Step DistributedDataParallel::begin_step(Sync sync) {
  const std::uint64_t number = require_model().begin_step(sync);
  return Step(impl_, number);
}

DistributedDataParallel::Step::Step(const std::shared_ptr<Impl>& model, std::uint64_t number)
    : model_(model), number_(number), exceptions_(std::uncaught_exceptions()) {}

DistributedDataParallel::Step::~Step() {
  if (std::uncaught_exceptions() <= exceptions_) return;
  try {
    cancel();
  } catch (...) {  // the exception that is on its way says more
  }
}

std::shared_ptr<DistributedDataParallel::Impl> DistributedDataParallel::Step::require_model() const {
  auto model = model_.lock();
  if (!model) {
    throw InvalidArgument(
        "the model of this Step is gone, or the Step was moved from\n"
        "try:   let the DistributedDataParallel outlive its steps");
  }
  return model;
}

void DistributedDataParallel::Step::ready(std::size_t index) { require_model()->ready(number_, index); }
int DistributedDataParallel::Step::finish() { return require_model()->finish(number_); }

void DistributedDataParallel::Step::cancel() {
  if (const auto model = model_.lock()) model->cancel(number_);
}

}  // namespace ddp
