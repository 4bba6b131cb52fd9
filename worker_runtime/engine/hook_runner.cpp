#include "worker_runtime/engine/hook_runner.hpp"

#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/engine/works.hpp"

namespace ddp::gradient_engine {

namespace {

// Hooks that a model uses.
class HooksInUse {
 public:
  bool add(const CommunicationHook* hook) {
    const std::lock_guard lock(mutex_);
    return hooks_.insert(hook).second;
  }
  void remove(const CommunicationHook* hook) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(hook);
  }

 private:
  std::mutex mutex_;
  std::set<const CommunicationHook*> hooks_;
};

HooksInUse& hooks_in_use() {
  static auto& hooks = *new HooksInUse;  // never destroyed: models may be static
  return hooks;
}

}  // namespace

HookRunner::HookRunner(ProcessGroup group, std::shared_ptr<CommunicationHook> hook, std::vector<Parameter> parameters,
                       CollectiveOptions options, Release release)
    : group_(std::move(group)),
      hook_(std::move(hook)),
      parameters_(std::move(parameters)),
      options_(options),
      release_(std::move(release)) {
  if (hooks_in_use().add(hook_.get())) return;
  throw InvalidArgument(
      "another model uses this communication hook\nwhere: making a DistributedDataParallel\n"
      "try:   a hook of its own for each model");
}

HookRunner::~HookRunner() { hooks_in_use().remove(hook_.get()); }

void HookRunner::set_buckets(const Layout& layout, const MemoryRange& memory) {
  const bool is_first = buckets_.empty();
  buckets_.clear();
  for (const Bucket& each : layout.buckets) {
    GradientBucket bucket;
    bucket.number = buckets_.size();
    bucket.is_last = buckets_.size() + 1 == layout.buckets.size();
    std::byte* const start = static_cast<std::byte*>(memory.data) + each.offset_bytes;
    bucket.gradients = {start, each.count, each.type, memory.device};
    bucket.padded = {start, each.padded_count, each.type, memory.device};
    bucket.indices = each.parameters;
    for (const std::size_t index : each.parameters) {
      Parameter parameter = parameters_[index];
      parameter.values = {start + layout.slots[index].offset_bytes, parameter.values.count, each.type, memory.device};
      bucket.parameters.push_back(std::move(parameter));
    }
    buckets_.push_back(std::move(bucket));
  }
  guarded([&] { hook_->begin(group_, buckets_, options_); }, is_first);
}

void HookRunner::begin(std::size_t bucket, std::uint64_t step) {
  UnderWay begun{bucket, step};
  if (go_on(begun, 0)) {
    under_way_.push_back(std::move(begun));
  } else if (release_) {
    release_(buckets_[bucket].padded);
  }
}

void HookRunner::finish() {
  for (int stage = 1; !under_way_.empty(); ++stage) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
      if (!go_on(under_way_[i], stage)) {
        if (release_) release_(buckets_[under_way_[i].bucket].padded);
        continue;
      }
      if (kept != i) under_way_[kept] = std::move(under_way_[i]);
      ++kept;
    }
    under_way_.resize(kept);
  }
}

void HookRunner::scale_gradients(double factor) {
  guarded([&] { hook_->scale_gradients(factor); });
}

bool HookRunner::go_on(UnderWay& its, int stage) {
  std::optional<Work> next;
  guarded([&] {
    its.work.wait();
    next = hook_->next({group_, buckets_[its.bucket], stage, its.step, options_});
  });
  if (next) its.work = std::move(*next);
  return next.has_value();
}

// The other ranks wait for what the hook has not begun. If it may refuse, all of them get the same InvalidArgument.
void HookRunner::guarded(const std::function<void()>& call, bool may_refuse) {
  if (has_failed_) throw Error("the communication hook has failed before");
  try {
    call();
  } catch (const std::exception& error) {
    if (may_refuse && dynamic_cast<const InvalidArgument*>(&error) != nullptr) throw;
    const std::string what = error.what();
    fail("the communication hook failed: " + what.substr(0, what.find('\n')));
    throw;
  } catch (...) {
    fail("the communication hook failed");
    throw;
  }
}

// In a forked child, which has no part in the group, there is nobody to tell.
void HookRunner::fail(const std::string& reason) {
  has_failed_ = true;
  try {
    group_.abort(reason);
  } catch (const InvalidArgument&) {
  }
}

std::exception_ptr HookRunner::wait_all() {
  std::exception_ptr failure;
  for (UnderWay& each : under_way_) wait_for(each.work, failure);
  under_way_.clear();
  return failure;
}

}  // namespace ddp::gradient_engine
