// DistributedDataParallel for libtorch: trains any torch::nn::Module on all ranks.
//
//   auto world = ddp::init_process_group();
//   auto net = std::make_shared<Net>();
//   ddp::torch::DistributedDataParallel model(world, net);       // verifies, then broadcasts from rank 0
//   ::torch::optim::SGD optimizer(net->parameters(), 0.1);
//   for (const auto& batch : batches) {
//     optimizer.zero_grad();
//     auto loss = criterion(model.forward(batch.data), batch.target);
//     loss.backward();                                           // all-reduces run beside it; gradients are means then
//     optimizer.step();
//   }
//
// Needs libtorch of PyTorch 2.5 or newer, from an archive or a pip wheel, and C++20 where its headers do. This file is
// all of it: the library libddp knows nothing of PyTorch. Link with ddp::ddp and ${TORCH_LIBRARIES}.
//
// Gradients live in the buckets of ddp::DistributedDataParallel: `parameter.grad()` is a view of its bucket after each
// backward. Where `zero_grad()` has dropped the gradient (the default), backward makes a tensor, which is copied once.
//
// Threads: forward(), backward and what is below are called by one thread.
// Not yet: tensors on a GPU, sparse gradients, and buckets that are filled anew (RebuildBuckets, kAutomaticBucketCap).
#pragma once

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ddp/checkpointer.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {
namespace torch {

// libtorch's tensor.
using Tensor = ::at::Tensor;

// The elements of a tensor as libddp sees them: its memory, in whatever order the tensor's strides say, which is the
// same on all ranks. Throws InvalidArgument for a tensor that is not dense, is not on the CPU or has a type that libddp
// does not know. `name` stands in the error.
inline MemoryRange memory_of(const Tensor& tensor, const std::string& name = "a tensor") {
  if (!tensor.device().is_cpu())
    throw InvalidArgument(name + " is on " + tensor.device().str() + "; ddp/torch.hpp takes tensors on the CPU");
  if (tensor.layout() != ::at::kStrided || !tensor.is_non_overlapping_and_dense())
    throw InvalidArgument(name + " is not dense: its elements overlap, have gaps or are sparse");
  const auto type = [&] {
    switch (tensor.scalar_type()) {
      case ::at::kFloat: return DataType::float32;
      case ::at::kDouble: return DataType::float64;
      case ::at::kHalf: return DataType::float16;
      case ::at::kBFloat16: return DataType::bfloat16;
      case ::at::kLong: return DataType::int64;
      case ::at::kInt: return DataType::int32;
      case ::at::kByte: return DataType::uint8;
      case ::at::kChar: return DataType::int8;
      case ::at::kBool: return DataType::boolean;
      default: throw InvalidArgument(name + " is of type " + ::c10::toString(tensor.scalar_type()));
    }
  }();
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), type};
}

// A name, a shape and the memory, for ddp::DistributedDataParallel, Checkpointer and what else takes parameters.
inline Parameter parameter_of(const std::string& name, const Tensor& tensor) {
  return {name, tensor.sizes().vec(), memory_of(tensor, name)};
}

// Parameters and buffers under the names that Python's state_dict() gives them, each tensor once: for
// Checkpointer::add(). With CheckpointForm::single the file is one that Python loads by safetensors.torch.load_file().
inline std::vector<Parameter> state_of(const ::torch::nn::Module& module) {
  std::vector<Parameter> out;
  std::unordered_set<const void*> seen;
  const auto add = [&](const auto& entries) {
    for (const auto& entry : entries)
      if (entry.value().defined() && seen.insert(entry.value().unsafeGetTensorImpl()).second)
        out.push_back(parameter_of(entry.key(), entry.value()));
  };
  add(module.named_parameters());
  add(module.named_buffers());
  return out;
}

// What torch::save() writes of an object, such as an optimizer, for Checkpointer::add_text(). The object outlives it.
template <class Object>
Checkpointer::Text text_of(Object& object) {
  return {[&object] {
            std::ostringstream out;
            ::torch::save(object, out);
            return out.str();
          },
          [&object](const std::string& text) {
            std::istringstream in(text);
            ::torch::load(object, in);
          }};
}

namespace detail {

// One module's part in the training: its hooks on autograd, and the engine that they drive.
class Replica : public std::enable_shared_from_this<Replica> {
 public:
  Replica(ProcessGroup group, const ::torch::nn::Module& module, DistributedDataParallelOptions options)
      : options_(checked(std::move(options))), group_(group) {
    std::vector<Parameter> parameters;
    std::unordered_set<const void*> seen;  // a tensor that two modules share is one parameter
    for (const auto& entry : module.named_parameters()) {
      const Tensor& tensor = entry.value();
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      if (tensor.requires_grad()) {
        parameters.push_back(parameter_of(entry.key(), tensor));
        parameters_.push_back(tensor);
      } else {
        group.broadcast(memory_of(tensor, entry.key()), 0);
      }
    }
    for (const auto& entry : module.named_buffers())
      if (entry.value().defined() && seen.insert(entry.value().unsafeGetTensorImpl()).second)
        options_.buffers.push_back(parameter_of(entry.key(), entry.value()));
    engine_.emplace(std::move(group), std::move(parameters), options_);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      views_.push_back(::at::from_blob(
          engine_->gradient(i).data, parameters_[i].sizes(), parameters_[i].strides(),
          [engine = *engine_](void*) {},  // gradients of the module may outlive this object
          parameters_[i].options().requires_grad(false)));
  }

  ~Replica() {
    for (const auto& hook : hooks_) hook.node->del_post_hook(hook.key);
  }
  Replica(const Replica&) = delete;

  // After the constructor, because the hooks hold a weak pointer to this object.
  void add_hooks() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto node = ::torch::autograd::impl::grad_accumulator(parameters_[i]);
      const auto key = node->add_post_hook(std::make_unique<Hook>(weak_from_this(), i));
      hooks_.push_back({std::move(node), key});
    }
  }

  // So that buffers are broadcast before they are used, if this forward may be followed by a backward with sync.
  void begin_forward(bool is_training) {
    if (step_ && backward_ != kNoBackward) give_up_step();
    const bool broadcasts = options_.buffer_sync == BufferSync::broadcast && !options_.buffers.empty();
    if (!step_ && is_training && broadcasts && unsynced_ == 0 && ::torch::GradMode::is_enabled()) begin_step();
  }

  void broadcast_buffers() {
    for (const auto& buffer : options_.buffers) group_.broadcast(buffer.values, 0);
  }

  void count_unsynced(int change) { unsynced_ += change; }

  ddp::DistributedDataParallel& engine() { return *engine_; }
  int active_ranks() const { return active_ranks_; }

  // join()'s steps end like those of backward.
  void join(const std::function<void()>& after_each_step) {
    engine_->join([&] {
      show_gradients();
      if (after_each_step) after_each_step();
    });
  }

 private:
  struct Hook : ::torch::autograd::FunctionPostHook {
    Hook(std::weak_ptr<Replica> replica_, std::size_t index_) : replica(std::move(replica_)), index(index_) {}
    ::torch::autograd::variable_list operator()(const ::torch::autograd::variable_list& outputs,
                                                const ::torch::autograd::variable_list&) override {
      if (const auto its = replica.lock()) its->is_ready(index);
      return outputs;
    }
    std::weak_ptr<Replica> replica;
    std::size_t index;
  };

  struct AddedHook {
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<Tensor&>())) node;  // kept alive with its hook
    std::uintptr_t key;
  };

  static DistributedDataParallelOptions checked(DistributedDataParallelOptions options) {
    if (options.rebuild_buckets != RebuildBuckets::off || options.bucket_cap_bytes == kAutomaticBucketCap)
      throw InvalidArgument("ddp/torch.hpp takes neither RebuildBuckets::automatic nor kAutomaticBucketCap");
    if (options.release_gradients) throw InvalidArgument("ddp/torch.hpp does not take release_gradients");
    if (!options.buffers.empty()) throw InvalidArgument("the buffers are those of the module: leave them empty");
    options.zero_gradients = false;  // the program zeroes or drops them, or adds to them
    return options;
  }

  void begin_step() {
    step_.emplace(engine_->begin_step(unsynced_ > 0 ? Sync::off : Sync::on));
    backward_ = kNoBackward;
  }

  // The backward of this step has ended by an exception, and so without finish(). The other ranks are told.
  void give_up_step() {
    auto step = std::exchange(step_, std::nullopt);
    step->cancel();
  }

  // Within backward: the gradient of a parameter has been added to what was there.
  void is_ready(std::size_t index) {
    const int backward = ::torch::autograd::get_current_graph_task_id();
    if (step_ && backward_ != kNoBackward && backward_ != backward) give_up_step();
    if (!step_) begin_step();
    if (backward_ == kNoBackward) {
      backward_ = backward;
      ::torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
        if (const auto replica = weak.lock()) replica->finish();
      });
    }
    Tensor& gradient = parameters_[index].mutable_grad();
    if (gradient.is_sparse()) throw InvalidArgument("sparse gradients are not supported; make them dense");
    if (gradient.data_ptr() != views_[index].data_ptr()) {
      views_[index].copy_(gradient);
      gradient = views_[index];
    }
    step_->ready(index);
  }

  // At the end of backward, in the thread that called it.
  void finish() {
    auto step = std::exchange(step_, std::nullopt);
    backward_ = kNoBackward;
    active_ranks_ = step->finish();
    if (unsynced_ == 0) show_gradients();
  }

  // Others may have used a parameter that this rank did not.
  void show_gradients() {
    if (options_.unused == Unused::error && options_.uneven_inputs == UnevenInputs::off) return;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const bool is_kept = options_.unused == Unused::keep && engine_->is_unused(i);
      if (!is_kept) parameters_[i].mutable_grad() = views_[i];
    }
  }

  static constexpr int kNoBackward = -1;

  DistributedDataParallelOptions options_;
  ProcessGroup group_;
  std::vector<Tensor> parameters_;  // that want gradients, each once
  std::optional<ddp::DistributedDataParallel> engine_;
  std::vector<Tensor> views_;  // of the buckets: what grad() is after a backward
  std::vector<AddedHook> hooks_;
  std::optional<ddp::DistributedDataParallel::Step> step_;
  int backward_ = kNoBackward;  // autograd's number of the backward that step_ belongs to
  int unsynced_ = 0;            // scopes of no_sync() that are open
  int active_ranks_ = 0;
};

}  // namespace detail

// While it lives, backward adds to this rank's gradients and nothing is sent: the next backward after it averages the
// sums. It covers forward and backward of a micro-batch.
class [[nodiscard]] NoSync {
 public:
  // Programs call DistributedDataParallel::no_sync().
  explicit NoSync(std::weak_ptr<detail::Replica> replica) : replica_(std::move(replica)) { count(1); }
  ~NoSync() { count(-1); }
  NoSync(NoSync&&) noexcept = default;  // the other one's scope is over, at no effect

 private:
  void count(int change) const {
    if (const auto replica = replica_.lock()) replica->count_unsynced(change);
  }

  std::weak_ptr<detail::Replica> replica_;
};

// A module whose gradients are averaged over the ranks of a group; an example is at the top of this file. Copies share
// their state.
template <class Module>
class DistributedDataParallel {
 public:
  // Collective. The module stays usable by itself; its parameters' gradients belong to this object from now on.
  // Parameters that want no gradient are broadcast once. See ddp::DistributedDataParallelOptions for the options;
  // zero_gradients has no effect, and `buffers` stays empty: the module's buffers are taken.
  // Throws what ddp::DistributedDataParallel throws, InvalidArgument for tensors as memory_of() does.
  DistributedDataParallel(ProcessGroup group, std::shared_ptr<Module> module,
                          const DistributedDataParallelOptions& options = {})
      : module_(std::move(module)), replica_(std::make_shared<detail::Replica>(std::move(group), *module_, options)) {
    replica_->add_hooks();
  }
  DistributedDataParallel(ProcessGroup group, const ::torch::nn::ModuleHolder<Module>& module,
                          const DistributedDataParallelOptions& options = {})
      : DistributedDataParallel(std::move(group), module.ptr(), options) {}

  // The module's forward(). First broadcasts the buffers of rank 0, with BufferSync::broadcast, in training mode and
  // where gradients are recorded. A model without buffers can also be called by itself.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) const {
    replica_->begin_forward(module_->is_training());
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  Module& module() const { return *module_; }           // what the constructor was given
  Module* operator->() const { return module_.get(); }  // the same

  // Begins a scope in which gradients are added up on this rank and not sent; see NoSync.
  NoSync no_sync() const { return NoSync(replica_); }

  // As ddp::DistributedDataParallel::join(), at the end of this rank's inputs: after_each_step does what the program
  // does after backward.
  void join(const std::function<void()>& after_each_step = {}) const { replica_->join(after_each_step); }

  // Collective. Gives every rank the buffers of rank 0, as forward() does: before a checkpoint, which takes its parts
  // from all ranks.
  void broadcast_buffers() const { replica_->broadcast_buffers(); }

  // How many ranks had inputs in the last step: what Step::finish() returned. 0 before the first step.
  int active_ranks() const { return replica_->active_ranks(); }

  // For describe_buckets(), is_unused(), set_frozen(), bucket_memory() and check(). Parameters are numbered as
  // named_parameters() lists those that want gradients, each once.
  ddp::DistributedDataParallel& engine() const { return replica_->engine(); }

 private:
  std::shared_ptr<Module> module_;
  std::shared_ptr<detail::Replica> replica_;
};

// So that a program need not write the type of the module.
template <class Module>
DistributedDataParallel(ProcessGroup, std::shared_ptr<Module>) -> DistributedDataParallel<Module>;
// So that a program need not write the type of the module.
template <class Module>
DistributedDataParallel(ProcessGroup, std::shared_ptr<Module>, const DistributedDataParallelOptions&)
    -> DistributedDataParallel<Module>;

}  // namespace torch
}  // namespace DDP_ABI
}  // namespace ddp
