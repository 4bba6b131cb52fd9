#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/local_sgd.hpp"
#include "worker_runtime/engine/handle.hpp"
#include "worker_runtime/engine/local_sgd/average_ranges.hpp"

namespace ddp {
namespace {

[[noreturn]] void refuse_diloco(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what + "\nwhere: DiLoCo\ntry:   " + advice);
}

void check_diloco(const ProcessGroup& group, const std::vector<Parameter>& parameters, const DiLoCoOptions& options) {
  if (group.impl() == nullptr) refuse_diloco("an empty group", "the group that trains");
  if (options.period == 0) refuse_diloco("a period of 0 steps", "period = 500");
  if (!(options.outer_learning_rate > 0)) {
    refuse_diloco("outer_learning_rate = " + std::to_string(options.outer_learning_rate), "a number above 0");
  }
  if (!(options.outer_momentum >= 0 && options.outer_momentum < 1)) {
    refuse_diloco("outer_momentum = " + std::to_string(options.outer_momentum), "a number from 0 on and below 1");
  }
  for (const Parameter& parameter : parameters) {
    if (parameter.values.device.kind != Device::Kind::cpu) {
      refuse_diloco("parameter " + parameter.name + " is on a GPU", "parameters in host memory");
    }
    if (parameter.values.type != DataType::float32 && parameter.values.type != DataType::float64) {
      refuse_diloco("parameter " + parameter.name + " is of type " + name_of(parameter.values.type),
                    "float32 or float64");
    }
  }
}

struct OuterStep {
  double learning_rate, momentum;

  // values: the mean over the ranks. All of `count` elements.
  template <class T>
  void make(T* values, T* last, T* momenta, std::size_t count) const {
    const T rate = static_cast<T>(learning_rate), part = static_cast<T>(momentum);
    for (std::size_t i = 0; i < count; ++i) {
      const T change = last[i] - values[i];
      momenta[i] = part * momenta[i] + change;
      values[i] = last[i] = last[i] - rate * (change + part * momenta[i]);
    }
  }
};

}  // namespace

class DiLoCo::Impl {
 public:
  Impl(ProcessGroup group, std::vector<Parameter> parameters, DiLoCoOptions options)
      : group_(std::move(group)), parameters_(std::move(parameters)), options_(options) {
    for (const Parameter& parameter : parameters_) {
      const MemoryRange& values = parameter.values;
      const auto* const bytes = static_cast<const std::byte*>(values.data);
      values_.push_back(values);
      last_.emplace_back(bytes, bytes + values.bytes());
      momenta_.emplace_back(values.bytes());
    }
  }

  bool step() {
    if (static_cast<std::uint64_t>(++step_) % options_.period != 0) return false;
    gradient_engine::average(group_, values_, options_.collective);
    const OuterStep outer{options_.outer_learning_rate, options_.outer_momentum};
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].type == DataType::float32) {
        make<float>(outer, i);
      } else {
        make<double>(outer, i);
      }
    }
    return true;
  }

  std::vector<Parameter> state() {
    std::vector<Parameter> state{{"diloco.step", {}, MemoryRange(&step_, 1, DataType::int64)}};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& its = parameters_[i];
      state.push_back({"diloco." + its.name + ".last", its.shape, like(last_[i], its.values)});
      state.push_back({"diloco." + its.name + ".momentum", its.shape, like(momenta_[i], its.values)});
    }
    return state;
  }

 private:
  using Bytes = std::vector<std::byte>;

  static MemoryRange like(Bytes& bytes, const MemoryRange& values) { return {bytes.data(), values.count, values.type}; }

  template <class T>
  void make(const OuterStep& outer, std::size_t i) {
    outer.make(static_cast<T*>(values_[i].data), reinterpret_cast<T*>(last_[i].data()),
               reinterpret_cast<T*>(momenta_[i].data()), values_[i].count);
  }

  ProcessGroup group_;
  std::vector<Parameter> parameters_;
  DiLoCoOptions options_;
  std::vector<MemoryRange> values_;    // of the parameters
  std::vector<Bytes> last_, momenta_;  // by parameter: after the last outer step; of the outer optimizer
  std::int64_t step_ = 0;
};

DiLoCo::DiLoCo(ProcessGroup group, std::vector<Parameter> parameters, DiLoCoOptions options) {
  check_diloco(group, parameters, options);
  impl_ = std::make_shared<Impl>(std::move(group), std::move(parameters), options);
}

bool DiLoCo::step() { return gradient_engine::require_impl(impl_, "DiLoCo").step(); }
std::vector<Parameter> DiLoCo::state() { return gradient_engine::require_impl(impl_, "DiLoCo").state(); }

}  // namespace ddp
