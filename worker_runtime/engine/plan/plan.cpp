#include "worker_runtime/engine/plan/plan.hpp"

#include "ddp/error.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ddp::gradient_engine {
namespace {

// These are apart, because ready() is called for each parameter in each step.
[[noreturn, gnu::cold]] void refuse_closed_step(const char* call) {
  throw GradientError(std::string(call) +
                      "() is called on a Step that is over\nwhere: DistributedDataParallel::Step::" + call +
                      "\ntry:   a Step of its own from begin_step() for every backward pass; finish() and "
                      "cancel() end it, and so does an error of a collective");
}

[[noreturn, gnu::cold]] void refuse_second_ready(const std::string& name, std::size_t parameter) {
  throw GradientError("parameter " + name + " (index " + std::to_string(parameter) +
                      ") is ready for the second time in one step\nwhere: DistributedDataParallel::Step::ready\n"
                      "try:   call ready() once, after the last write to a gradient; or set the option static_graph "
                      "if layers share a parameter and every step uses it equally often");
}

[[noreturn, gnu::cold]] void refuse_frozen(const std::string& name, std::size_t parameter) {
  throw GradientError("parameter " + name + " (index " + std::to_string(parameter) +
                      ") is ready, but it is frozen\nwhere: DistributedDataParallel::Step::ready\n"
                      "try:   compute no gradient for it, or call set_frozen(index, false) before the step");
}

void add_reduce(Actions& actions, const PlanOptions& options, Reduce reduce) {
  if (options.releases_gradients) actions.emplace_back(FinishHooks{});
  actions.emplace_back(reduce);
}

}  // namespace

Plan::Plan(std::vector<std::string> names, const std::vector<std::vector<std::size_t>>& buckets, PlanOptions options)
    : names_(std::move(names)),
      options_(options),
      readiness_(names_.size(), options.is_static_graph),
      rebuild_(options.rebuilds_buckets ? Rebuild::after_first_window : Rebuild::not_wanted),
      outcome_{.active_count = options.rank_count} {
  readiness_.set_buckets(buckets);
}

Actions Plan::begin(Sync sync) {
  if (window_begun_ && is_captured_) {
    throw GradientError(
        "a step begins whose gradients are added to those of one that was captured into a CUDA graph\nwhere: "
        "DistributedDataParallel::begin_step\ntry:   capture all steps up to one with Sync::on, that one included");
  }
  Actions actions = begin_any(sync);
  is_captured_ = false;
  return actions;
}

Actions Plan::begin_captured(Sync sync) {
  require_capturable();
  Actions actions = begin_any(sync);
  is_captured_ = true;
  return actions;
}

void Plan::require_capturable() const {
  constexpr const char* kWhere = "\nwhere: DistributedDataParallel::begin_step, on a stream that is being captured\n";
  const bool tells = options_.unused == Unused::keep || options_.uneven_inputs != UnevenInputs::off;
  if (tells || options_.has_hook) {
    throw InvalidArgument("a step can't be captured into a CUDA graph with " +
                          std::string(options_.has_hook ? "a communication hook, which is called in each step"
                                                        : "options by which ranks tell each other something in each "
                                                          "step") +
                          kWhere + "try:   no hook, and the defaults of unused and uneven_inputs");
  }
  if (window_begun_ && !is_captured_) {
    throw GradientError(std::string("a step is captured whose gradients are added to those of one that was not") +
                        kWhere + "try:   begin the capture after a step with Sync::on");
  }
  const bool is_frozen_changed = readiness_.frozen() && readiness_.frozen()->is_changed();
  const bool is_graph_unknown = options_.is_static_graph && outcome_.good_windows == 0;
  if (rebuild_ == Rebuild::not_wanted && !is_frozen_changed && !is_graph_unknown) return;
  throw GradientError(std::string("a step is captured before the first steps have settled ") +
                      (is_frozen_changed  ? "what is frozen"
                       : is_graph_unknown ? "how often parameters are used"
                                          : "where the buckets are") +
                      kWhere +
                      "try:   three steps before the capture; the option rebuild_buckets = "
                      "RebuildBuckets::off keeps the buckets as they are");
}

void Plan::require_complete_capture() const {
  const std::vector<std::size_t> missing = readiness_.missing();
  const bool is_missing = options_.unused == Unused::error && !missing.empty();
  if (!is_missing && !readiness_.miscount()) return;
  const std::size_t parameter = is_missing ? missing.front() : readiness_.miscount()->parameter;
  throw GradientError("parameter " + names_[parameter] +
                      " did not become ready as often as in other steps, in one that is captured into a CUDA graph"
                      "\nwhere: DistributedDataParallel::Step::finish\n"
                      "try:   call ready() for each parameter, or set_frozen() before the capture");
}

Actions Plan::begin_any(Sync sync) {
  if (is_open_) {
    throw GradientError(
        "a step begins while the one before it is unfinished\nwhere: DistributedDataParallel::begin_step\n"
        "try:   call finish() or cancel() at the end of every backward pass, on every rank");
  }
  Actions actions;
  actions.reserve(2);
  actions.emplace_back(Drain{});
  ++step_;
  if (!window_begun_) {
    window_begun_ = true;
    non_finite_.clear();
    kept_.clear();
    readiness_.begin_window();
    if (options_.zero_gradients) {
      actions.emplace_back(ZeroAll{});
    } else {
      for (const std::size_t parameter : readiness_.idle_parameters()) {
        add_keep(actions, parameter);
        actions.emplace_back(Zero{parameter});
      }
    }
  }
  if (sync == Sync::on && options_.buffer_sync == BufferSync::broadcast) {
    actions.emplace_back(BroadcastBuffers{outcome_.lowest_active});
  }
  readiness_.begin_step();
  is_open_ = true;
  is_shadow_ = false;
  sync_ = sync;
  return actions;
}

Actions Plan::begin_shadow() {
  require_no_window("join");
  Actions actions = begin(Sync::on);
  if (!options_.zero_gradients) {
    for (std::size_t parameter = 0; parameter < names_.size(); ++parameter) add_keep(actions, parameter);
    actions.emplace_back(ZeroAll{});
  }
  is_shadow_ = true;
  return actions;
}

Actions Plan::ready(std::uint64_t step, std::size_t parameter) {
  if (!is_open_ || step != step_) refuse_closed_step("ready");
  if (parameter >= names_.size()) check_index(parameter, "Step::ready");
  if (readiness_.is_complete(parameter)) refuse_second_ready(names_[parameter], parameter);
  if (readiness_.is_frozen(parameter)) refuse_frozen(names_[parameter], parameter);
  Actions actions;
  if (sync_ == Sync::off) {
    readiness_.use(parameter);
    return actions;
  }
  readiness_.complete(parameter);
  BucketQueue& queue = readiness_.queue();
  while (queue.is_next_complete()) add_reduce(actions, options_, {queue.take_next(), windows_});
  return actions;
}

void Plan::note_non_finite(std::size_t parameter) {
  if (std::find(non_finite_.begin(), non_finite_.end(), parameter) != non_finite_.end()) return;
  non_finite_.push_back(parameter);
}

Actions Plan::end(std::uint64_t step) {
  if (!is_open_ || step != step_) refuse_closed_step("finish");
  if (is_captured_ && sync_ == Sync::on) require_complete_capture();
  is_open_ = false;
  Actions actions;
  if (sync_ == Sync::off) return actions;
  window_begun_ = false;
  actions.reserve(4);  // what most windows need
  Findings found{.is_shadow = is_shadow_, .window = windows_};
  if (!is_shadow_) found.missing = readiness_.missing();
  if (!is_shadow_) found.miscount = readiness_.miscount();
  found.non_finite = std::move(non_finite_);
  found.frozen = own_frozen();
  for (const std::size_t parameter : found.missing) {
    // A gradient that no step of a static graph uses is zero since the window began, and may be on its way.
    if (readiness_.queue().is_taken_with(parameter)) continue;
    add_keep(actions, parameter);
    actions.emplace_back(Zero{parameter});
  }
  found.kept = std::move(kept_);
  const bool peeks = !is_captured_ && readiness_.frozen() && readiness_.frozen()->is_changed();
  reduce_rest(actions, peeks ? std::nullopt : std::optional(own_frozen()));
  if (is_captured_) {
    readiness_.end_window(true);
    actions.emplace_back(Drain{});
    return actions;
  }
  Agreement own = own_agreement(found);
  if (!is_shadow_) readiness_.end_window(own.flags.fault == 0);
  unlooked_.push_back(std::move(found));
  actions.emplace_back(Agree{.own = std::move(own)});
  if (peeks) actions.emplace_back(Peek{});
  if (options_.look_at == LookAt::end_of_window || unlooked_.size() > 1) actions.emplace_back(Look{});
  return actions;
}

Actions Plan::cancel(std::uint64_t step) {
  Actions actions;
  if (!is_open_ || step != step_) return actions;
  is_open_ = false;
  window_begun_ = false;
  if (is_captured_) return {Drain{}};  // the capture is of no use, on this rank
  if (sync_ == Sync::off) return actions;
  reduce_rest(actions, own_frozen());
  Agreement own = own_agreement(Findings{});
  own.flags.canceller = 1 + options_.rank;
  actions.emplace_back(Agree{.own = std::move(own), .is_read = false});
  // The others look at the flags of the window before, too, and FindUnused may follow.
  if (!unlooked_.empty()) actions.emplace_back(Look{});
  return actions;
}

Actions Plan::check() {
  require_no_window("check");
  if (unlooked_.empty()) return {};
  return {Look{}};
}

Actions Plan::looked(const Agreement& of_all) {
  Findings own = std::move(unlooked_.front());
  unlooked_.erase(unlooked_.begin());
  const FaultyWindow window{own.window, options_.look_at == LookAt::end_of_next_window};
  outcome_.was_last_good = false;
  if (of_all.flags.canceller > 0) {
    if (own.is_shadow) return {};  // it has lost nothing
    return {TellCancelled{of_all.flags.canceller - 1, window}};
  }
  if (!of_all.flags.have_frozen_the_same()) {
    own.frozen.resize(names_.size());
    return {FindFrozen{std::move(own.frozen), window}};
  }
  switch (static_cast<Fault>(of_all.flags.fault)) {
    case Fault::none: break;
    case Fault::missing: return {FindUnused{std::move(own.missing), window}};
    case Fault::miscount: return {FindMiscounts{own.miscount, window}};
    case Fault::non_finite: return {FindNonFinite{std::move(own.non_finite), window}};
  }
  outcome_.was_last_good = true;
  ++outcome_.good_windows;
  if (!of_all.used.empty()) outcome_.used = of_all.used;
  if (rebuild_ == Rebuild::after_first_window) rebuild_ = Rebuild::due;
  if (!of_all.active.empty()) note_active(of_all.active);
  Actions actions;
  std::vector<std::size_t> unused;
  if (!window.is_last) unused = unused_by_all();  // else these are another window's gradients
  if (options_.has_hook && !unused.empty()) actions.emplace_back(TellUnused{unused});
  const bool is_complete = outcome_.active_count == 0 || outcome_.active_count == options_.rank_count;
  if (options_.uneven_inputs == UnevenInputs::divide_by_active && !is_complete) {
    actions.emplace_back(Scale{static_cast<double>(options_.rank_count) / outcome_.active_count});
  }
  for (const std::size_t parameter : unused) {
    if (!own.kept.empty() && own.kept[parameter]) {
      actions.emplace_back(Restore{parameter});
    } else if (options_.has_hook && !options_.releases_gradients) {  // what is released is zero
      actions.emplace_back(Zero{parameter});
    }
  }
  return actions;
}

void Plan::note_active(const std::vector<std::int32_t>& active) {
  outcome_.active_count = std::accumulate(active.begin(), active.end(), 0);
  const auto lowest = std::find(active.begin(), active.end(), 1);
  if (lowest != active.end()) outcome_.lowest_active = static_cast<int>(lowest - active.begin());
}

// In the last good window: with Unused::keep those that no rank used, among them frozen ones; all parameters if no rank
// had inputs.
std::vector<std::size_t> Plan::unused_by_all() const {
  std::vector<std::size_t> unused;
  if (outcome_.used.empty() && outcome_.active_count > 0) return unused;
  for (std::size_t parameter = 0; parameter < names_.size(); ++parameter) {
    if (outcome_.active_count == 0 || outcome_.used[parameter] == 0) unused.push_back(parameter);
  }
  return unused;
}

Actions Plan::peeked(const Agreement& of_all) {
  Actions actions;
  const Flags& flags = of_all.flags;
  const bool are_the_same = flags.have_frozen_the_same();
  if (are_the_same && flags.canceller == 0 && flags.fault == 0) {
    for (const std::size_t bucket : readiness_.agree_on_frozen()) add_reduce(actions, options_, {bucket, windows_ - 1});
  }
  const bool is_any_reduced = !actions.empty();
  if (options_.has_hook) {
    if (is_any_reduced) actions.emplace_back(FinishHooks{});
    tell_frozen(actions, are_the_same ? own_frozen() : readiness_.frozen()->agreed());
  }
  if (is_any_reduced) actions.emplace_back(Drain{});
  return actions;
}

void Plan::set_frozen(std::size_t parameter, bool is_frozen) {
  check_index(parameter, "set_frozen");
  require_no_window("set_frozen");
  readiness_.set_frozen(parameter, is_frozen);
}

void Plan::failed() {
  is_open_ = false;
  window_begun_ = false;
  unlooked_.clear();
}

void Plan::rebuild(const std::vector<std::vector<std::size_t>>& buckets) {
  require_no_window("rebuild_buckets");
  rebuild_ = Rebuild::not_wanted;
  readiness_.set_buckets(buckets);
}

bool Plan::is_unused(std::size_t parameter) const {
  check_index(parameter, "is_unused");
  if (options_.unused != Unused::keep) {
    throw InvalidArgument(
        "which parameters no rank used is not known\nwhere: DistributedDataParallel::is_unused\n"
        "try:   the option unused = Unused::keep");
  }
  return !outcome_.used.empty() && outcome_.used[parameter] == 0;
}

void Plan::require_no_window(const char* call) const {
  if (is_between_windows()) return;
  throw GradientError(std::string(call) + "() is called before the gradients are averaged\n" +
                      "where: DistributedDataParallel::" + call +
                      "\ntry:   call it after finish() of a step with Sync::on, and before the next begin_step()");
}

void Plan::check_index(std::size_t parameter, const char* call) const {
  if (parameter < names_.size()) return;
  throw InvalidArgument("parameter " + std::to_string(parameter) + " of a model with " + std::to_string(names_.size()) +
                        "\nwhere: DistributedDataParallel::" + call +
                        "\ntry:   an index into the parameters that the model was made with");
}

// Of a gradient that is about to become zero, and might have to come back. That of a frozen parameter is zero anyway,
// and so is one that is released.
void Plan::add_keep(Actions& actions, std::size_t parameter) {
  const bool is_wanted = options_.unused == Unused::keep && !options_.zero_gradients && !options_.releases_gradients;
  if (!is_wanted || readiness_.is_frozen(parameter)) return;
  if (kept_.empty()) kept_.resize(names_.size());
  if (kept_[parameter]) return;
  kept_[parameter] = true;
  actions.emplace_back(Keep{parameter});
}

void Plan::reduce_rest(Actions& actions, const std::optional<std::vector<bool>>& frozen) {
  BucketQueue& queue = readiness_.queue();
  while (queue.is_any_left()) add_reduce(actions, options_, {queue.take_next(), windows_});
  if (options_.has_hook) actions.emplace_back(FinishHooks{});
  if (options_.has_hook && frozen) tell_frozen(actions, *frozen);
  if (options_.buffer_sync == BufferSync::average) actions.emplace_back(AverageBuffers{});
  ++windows_;
}

std::vector<bool> Plan::own_frozen() const {
  return readiness_.frozen() ? readiness_.frozen()->own() : std::vector<bool>();
}

// The hook may have written to the gradients of frozen parameters. It is told of them even if there are none: a list of
// the window before ends then.
void Plan::tell_frozen(Actions& actions, const std::vector<bool>& frozen) const {
  std::vector<std::size_t> parameters;
  for (std::size_t parameter = 0; parameter < frozen.size(); ++parameter) {
    if (frozen[parameter]) parameters.push_back(parameter);
  }
  actions.emplace_back(TellUnused{parameters});
  if (options_.releases_gradients) return;  // they are zero, and writing zeros would take their memory again
  for (const std::size_t parameter : parameters) actions.emplace_back(Zero{parameter});
}

// What this rank says of the window that it ends.
Agreement Plan::own_agreement(const Findings& found) const {
  Agreement own;
  Fault fault = Fault::none;
  if (options_.unused == Unused::error && !found.missing.empty()) fault = Fault::missing;
  if (found.miscount) fault = Fault::miscount;
  if (!found.non_finite.empty()) fault = Fault::non_finite;
  own.flags.fault = static_cast<std::int32_t>(fault);
  if (const auto& frozen = readiness_.frozen()) {
    own.flags.frozen = frozen->hash();
    own.flags.frozen_complement = ~frozen->hash();
  }
  if (options_.uneven_inputs != UnevenInputs::off) {
    own.active.resize(static_cast<std::size_t>(options_.rank_count));
    own.active[static_cast<std::size_t>(options_.rank)] = found.is_shadow ? 0 : 1;
  }
  if (options_.unused != Unused::keep) return own;
  own.used.assign(names_.size(), found.is_shadow ? 0 : 1);
  for (const std::size_t parameter : found.missing) own.used[parameter] = 0;
  for (std::size_t parameter = 0; parameter < found.frozen.size(); ++parameter) {
    if (found.frozen[parameter]) own.used[parameter] = 0;
  }
  return own;
}

}  // namespace ddp::gradient_engine
