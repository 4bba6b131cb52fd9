#include "worker_runtime/engine/finite_check.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::gradient_engine {

FiniteCheck::FiniteCheck(ProcessGroup& group, std::size_t parameter_count, void* stream)
    : parameter_count_(parameter_count),
      stream_(stream),
      memory_(group.impl()->backend().device_memory()),
      arithmetic_(group.impl()->backend().device_arithmetic()) {
  if (memory_->device().kind == Device::Kind::cuda) {
    words_ = memory_->allocate(parameter_count * sizeof(std::int32_t), stream);
  }
}

MemoryRange FiniteCheck::words() const { return {words_.get(), parameter_count_, DataType::int32, memory_->device()}; }

void FiniteCheck::try_out() {
  if (is_on_host()) return;
  const MemoryRange zeros(words_.get(), parameter_count_, DataType::float32, memory_->device());
  look_at(zeros, 0);
}

void FiniteCheck::begin_window() {
  of_steps_.clear();
  found_.clear();
}

void FiniteCheck::begin_step() {
  if (!is_on_host()) memory_->zero(words(), stream_);
}

void FiniteCheck::look_at(const MemoryRange& gradient, std::size_t parameter) {
  if (!is_on_host()) {
    return arithmetic_->find_non_finite({&gradient, 1}, static_cast<std::int32_t*>(words_.get()) + parameter, stream_);
  }
  std::int32_t is_bad = 0;
  arithmetic_->find_non_finite({&gradient, 1}, &is_bad, stream_);
  if (is_bad != 0) found_.push_back(parameter);
}

void FiniteCheck::end_step() {
  if (!is_on_host()) of_steps_.push_back(memory_->begin_read(words_.get(), words().bytes(), stream_));
}

std::vector<std::size_t> FiniteCheck::take() {
  std::vector<std::size_t> found = std::exchange(found_, {});
  for (const auto& step : std::exchange(of_steps_, {})) {
    const std::span<const std::byte> bytes = step->bytes();
    for (std::size_t parameter = 0; parameter < parameter_count_; ++parameter) {
      std::int32_t is_bad = 0;
      std::memcpy(&is_bad, bytes.data() + parameter * sizeof is_bad, sizeof is_bad);
      if (is_bad != 0) found.push_back(parameter);
    }
  }
  return found;
}

}  // namespace ddp::gradient_engine
