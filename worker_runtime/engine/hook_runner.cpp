#include "worker_runtime/engine/hook_runner.hpp"

#include <optional>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::gradient_engine {

HookRunner::HookRunner(ProcessGroup group, std::shared_ptr<CommunicationHook> hook, std::vector<Parameter> parameters,
                       CollectiveOptions options, Release release)
    : group_(std::move(group)),
      hook_(std::move(hook)),
      parameters_(std::move(parameters)),
      options_(options),
      release_(std::move(release)) {}

void HookRunner::set_buckets(const Layout& layout, const MemoryRange& memory) {
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
  try {
    hook_->begin(group_, buckets_, options_);
  } catch (const InvalidArgument&) {
    throw;  // of the same buckets on all ranks
  } catch (const std::exception& error) {
    abort(error);
    throw;
  }
}

void HookRunner::begin(std::size_t bucket) {
  if (release_) finish();
  UnderWay begun{bucket, {}};
  if (go_on(begun, 0)) under_way_.push_back(std::move(begun));
}

void HookRunner::finish() {
  for (int stage = 1; !under_way_.empty(); ++stage) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < under_way_.size(); ++i) {
      under_way_[i].work.wait();
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

bool HookRunner::go_on(UnderWay& its, int stage) {
  try {
    auto next = hook_->next({group_, buckets_[its.bucket], stage, options_});
    if (!next) return false;
    its.work = std::move(*next);
    return true;
  } catch (const std::exception& error) {
    abort(error);
    throw;
  }
}

// The other ranks wait for what the hook has not begun.
void HookRunner::abort(const std::exception& error) {
  const std::string what = error.what();
  group_.abort("the communication hook failed: " + what.substr(0, what.find('\n')));
}

std::exception_ptr HookRunner::wait_all() {
  std::exception_ptr failure;
  for (UnderWay& each : under_way_) {
    try {
      each.work.wait();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  under_way_.clear();
  return failure;
}

}  // namespace ddp::gradient_engine
