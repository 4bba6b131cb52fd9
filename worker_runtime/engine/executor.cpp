#include "worker_runtime/engine/executor.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/engine/works.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

namespace ddp::gradient_engine {

Executor::Executor(ProcessGroup group, CollectiveOptions options, Layout layout,
                   const std::vector<Parameter>& parameters, std::vector<MemoryRange> buffers,
                   const std::shared_ptr<CommunicationHook>& hook, bool releases)
    : group_(std::move(group)),
      device_memory_(group_.impl()->backend().device_memory()),
      options_(options),
      memory_(parameters),
      buffers_(std::move(buffers)),
      releases_(releases) {
  memory_.allocate(group_, std::move(layout), releases_, options_);
  if (!hook) return;
  const auto release = [this](const MemoryRange& bucket) { memory_.release(bucket); };
  hook_.emplace(group_, hook, parameters, options_, releases ? HookRunner::Release(release) : nullptr);
  hook_->set_buckets(memory_.layout(), memory_.all());
}

const Agreement* Executor::perform(const Action& action) {
  return std::visit([this](const auto& each) { return perform(each); }, action);
}

const Agreement* Executor::perform(const Drain&) {
  if (const std::exception_ptr failure = wait_all()) std::rethrow_exception(failure);
  return nullptr;
}

const Agreement* Executor::perform(const BroadcastBuffers& action) {
  broadcast(buffers_, action.root);
  return nullptr;
}

const Agreement* Executor::perform(const AverageBuffers&) {
  const auto begin = [this](const MemoryRange& buffer) {
    return group_.all_reduce_async(buffer, ReduceOp::average, options_);
  };
  begin_each(group_, buffers_, begin, options_, works_);
  return nullptr;
}

const Agreement* Executor::perform(const ZeroAll&) {
  if (releases_) {
    memory_.release(memory_.all());
  } else {
    device_memory_->zero(memory_.all(), options_.stream);
  }
  return nullptr;
}

const Agreement* Executor::perform(const Zero& action) {
  device_memory_->zero(memory_.gradient(action.parameter), options_.stream);
  return nullptr;
}

const Agreement* Executor::perform(const Keep& action) {
  const MemoryRange gradient = memory_.gradient(action.parameter);
  if (gradient.count == 0) return nullptr;
  std::shared_ptr<void>& kept = kept_[action.parameter];
  if (!kept) kept = device_memory_->allocate(gradient.bytes(), options_.stream);
  device_memory_->copy(kept.get(), gradient.data, gradient.bytes(), options_.stream);
  return nullptr;
}

const Agreement* Executor::perform(const Restore& action) {
  const MemoryRange gradient = memory_.gradient(action.parameter);
  if (gradient.count == 0) return nullptr;
  device_memory_->copy(gradient.data, kept_.at(action.parameter).get(), gradient.bytes(), options_.stream);
  return nullptr;
}

const Agreement* Executor::perform(const Reduce& action) {
  if (hook_) {
    hook_->begin(action.bucket, action.window);
    return nullptr;
  }
  works_.push_back(
      group_.all_reduce_async(memory_.of(memory_.layout().buckets[action.bucket]), ReduceOp::average, options_));
  return nullptr;
}

const Agreement* Executor::perform(const FinishHooks&) {
  hook_->finish();
  return nullptr;
}

const Agreement* Executor::perform(const Scale& action) {
  if (hook_ && !hook_->leaves_gradients()) {
    hook_->scale_gradients(action.factor);
    return nullptr;
  }
  group_.impl()->backend().device_arithmetic()->scale(memory_.buckets(), action.factor, options_.stream);
  return nullptr;
}

const Agreement* Executor::perform(const TellUnused& action) {
  hook_->parameters_unused(action.parameters);
  return nullptr;
}

const Agreement* Executor::perform(const Agree& action) {
  std::byte* const start = memory_.flags();
  const std::size_t words_bytes = write_flags(action.own);
  const MemoryRange flags(start, words_bytes / sizeof(std::int32_t), DataType::int32, group_.device());
  const MemoryRange used(start + words_bytes, action.own.used.size(), DataType::uint8, group_.device());
  if (used.count > 0) works_.push_back(group_.all_reduce_async(used, ReduceOp::max, options_));
  if (!action.is_read) {
    works_.push_back(group_.all_reduce_async(flags, ReduceOp::max, options_));
    return nullptr;
  }
  // Collectives complete in order: when this one is there, all before it are. The first failure says most.
  try {
    group_.all_reduce(flags, ReduceOp::max, options_);
  } catch (...) {
    wait_all();
    throw;
  }
  if (const std::exception_ptr failure = wait_all()) std::rethrow_exception(failure);
  results_.push_back(device_memory_->begin_read(flags.data, flags.bytes() + used.bytes(), options_.stream));
  return nullptr;
}

const Agreement* Executor::perform(const Look&) {
  const auto result = std::move(results_.front());
  results_.pop_front();
  return read(*result);
}

const Agreement* Executor::perform(const Peek&) { return read(*results_.back()); }

// Returns how many bytes are numbers of 32 bits; those of 8 bits follow.
std::size_t Executor::write_flags(const Agreement& own) {
  const std::size_t active_bytes = own.active.size() * sizeof(std::int32_t);
  std::byte* const to = memory_.flags();
  if (active_bytes + own.used.size() == 0) {
    device_memory_->write(to, std::as_bytes(std::span(&own.flags, 1)), options_.stream);
    return sizeof(Flags);
  }
  agreement_.active.resize(own.active.size());  // the options decide on these sizes: they never change
  agreement_.used.resize(own.used.size());
  std::vector<std::byte> bytes(sizeof(Flags) + active_bytes + own.used.size());
  std::memcpy(bytes.data(), &own.flags, sizeof(Flags));
  std::copy_n(std::as_bytes(std::span(own.active)).begin(), active_bytes, bytes.begin() + sizeof(Flags));
  std::copy_n(std::as_bytes(std::span(own.used)).begin(), own.used.size(), bytes.end() - own.used.size());
  device_memory_->write(to, bytes, options_.stream);
  return sizeof(Flags) + active_bytes;
}

const Agreement* Executor::read(process_group::HostCopy& result) {
  auto from = result.bytes().begin();
  const auto take = [&from](auto& values) {
    const std::span<std::byte> to = std::as_writable_bytes(std::span(values));
    std::copy_n(from, to.size(), to.begin());
    from += static_cast<std::ptrdiff_t>(to.size());
  };
  std::memcpy(&agreement_.flags, &*from, sizeof(Flags));
  from += sizeof(Flags);
  take(agreement_.active);
  take(agreement_.used);
  return &agreement_;
}

void Executor::broadcast(const std::vector<MemoryRange>& values, int root) {
  const auto begin = [&](const MemoryRange& value) { return group_.broadcast_async(value, root, options_); };
  begin_each(group_, values, begin, options_, works_);
  if (const std::exception_ptr failure = wait_all()) std::rethrow_exception(failure);
}

void Executor::rebuild(Layout layout) {
  forget_kept();
  if (hook_ && memory_.is_there()) hook_->gradients_end();
  memory_.allocate(group_, std::move(layout), releases_, options_);
  if (hook_) hook_->set_buckets(memory_.layout(), memory_.all());
}

std::exception_ptr Executor::wait_all() {
  std::exception_ptr failure = hook_ ? hook_->wait_all() : nullptr;
  // On a device they are done in the order of its stream, and fail alike: the last one's end is that of all.
  const bool is_one_enough = group_.device().kind == Device::Kind::cuda && works_.size() > 1;
  if (is_one_enough) works_.erase(works_.begin(), works_.end() - 1);
  for (Work& work : works_) wait_for(work, failure);
  works_.clear();
  return failure;
}

}  // namespace ddp::gradient_engine
