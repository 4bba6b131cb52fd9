// Models and checkpoints of the C interface.
#include <ddp/ddp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpointer.hpp"
#include "ddp/distributed_data_parallel.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/c_interface/arguments.hpp"
#include "worker_runtime/c_interface/objects.hpp"
#include "worker_runtime/c_interface/status.hpp"

namespace ddp::c_interface {

namespace {

// A model and its step, of which C needs no handle: there is one at a time.
struct Model {
  DistributedDataParallel model;
  std::optional<DistributedDataParallel::Step> step{};

  DistributedDataParallel::Step& require_step() {
    if (step) return *step;
    throw GradientError(
        "no step has begun\ntry:   ddp_model_begin_step() before ddp_model_ready(), ddp_model_finish()");
  }
};

struct Checkpoints {
  Checkpointer checkpointer;
  Device device;
};

}  // namespace

template <>
struct ObjectOf<ddp_model> {
  using type = Model;
  static constexpr const char* kName = "ddp_model";
};

template <>
struct ObjectOf<ddp_checkpoints> {
  using type = Checkpoints;
  static constexpr const char* kName = "ddp_checkpoints";
};

namespace {

BufferSync buffer_sync(std::int32_t given) {
  switch (given) {
    case DDP_BUFFERS_BROADCAST: return BufferSync::broadcast;
    case DDP_BUFFERS_AVERAGE: return BufferSync::average;
    case DDP_BUFFERS_NONE: return BufferSync::none;
  }
  throw InvalidArgument("ddp_model_options: there is no buffer_sync " + std::to_string(given) +
                        "\ntry:   DDP_BUFFERS_BROADCAST, DDP_BUFFERS_AVERAGE or DDP_BUFFERS_NONE");
}

static_assert(DDP_UNUSED_ERROR == static_cast<int>(Unused::error));
static_assert(DDP_UNUSED_ZEROS == static_cast<int>(Unused::zeros));
static_assert(DDP_UNUSED_KEEP == static_cast<int>(Unused::keep));
static_assert(DDP_UNEVEN_OFF == static_cast<int>(UnevenInputs::off));
static_assert(DDP_UNEVEN_DIVIDE_BY_ALL == static_cast<int>(UnevenInputs::divide_by_all));
static_assert(DDP_UNEVEN_DIVIDE_BY_ACTIVE == static_cast<int>(UnevenInputs::divide_by_active));
static_assert(DDP_UNEVEN_STOP == static_cast<int>(UnevenInputs::stop));

DistributedDataParallelOptions model_options(const ddp_model_options* given, const Device& device) {
  const ddp_model_options read = read_struct(given, "ddp_model_options");
  DistributedDataParallelOptions options;
  if (read.first_bucket_cap_bytes != 0) options.first_bucket_cap_bytes = read.first_bucket_cap_bytes;
  if (read.bucket_cap_bytes != 0) options.bucket_cap_bytes = read.bucket_cap_bytes;
  options.zero_gradients = read.no_zero_gradients == 0;
  options.rebuild_buckets = read.rebuild_buckets != 0 ? RebuildBuckets::automatic : RebuildBuckets::off;
  options.unused = enumerator(read.unused, Unused::keep, "unused of ddp_model_options");
  options.uneven_inputs = enumerator(read.uneven_inputs, UnevenInputs::stop, "uneven_inputs of ddp_model_options");
  options.static_graph = read.static_graph != 0;
  options.wait_in_finish = read.wait_in_finish != 0;
  options.check_finite = read.check_finite != 0;
  options.buffer_sync = buffer_sync(read.buffer_sync);
  options.buffers = parameters_of(read.buffers, read.buffer_count, device);
  options.collective.timeout = std::chrono::milliseconds(read.timeout_ms);
  options.collective.stream = read.stream;
  return options;
}

CheckpointerOptions checkpointer_options(const ddp_checkpoint_options* given) {
  const ddp_checkpoint_options read = read_struct(given, "ddp_checkpoint_options");
  CheckpointerOptions options;
  options.directory = text_or_empty(read.directory);
  options.form = read.is_single_file != 0 ? CheckpointForm::single : CheckpointForm::parts;
  if (read.keep != 0) options.keep = read.keep;
  if (read.write_timeout_ms != 0) options.write_timeout = std::chrono::milliseconds(read.write_timeout_ms);
  return options;
}

}  // namespace

}  // namespace ddp::c_interface

using namespace ddp::c_interface;  // NOLINT: the functions of C are in no namespace

ddp_status ddp_model_create(ddp_group group, const ddp_tensor* parameters, size_t parameter_count,
                            const ddp_model_options* options, ddp_model* model) {
  return call([&] {
    require(model, "model");
    const auto of = object_of(group);
    const ddp::Device device = of->device();
    give(model, {ddp::DistributedDataParallel(*of, parameters_of(parameters, parameter_count, device),
                                              model_options(options, device))});
  });
}

ddp_status ddp_model_destroy(ddp_model model) {
  return call([&] { destroy(model); });
}

ddp_status ddp_model_gradient(ddp_model model, size_t index, void** data, size_t* count) {
  return call([&] {
    require(data, "data");
    require(count, "count");
    const ddp::MemoryRange gradient = object_of(model)->model.gradient(index);
    *data = gradient.data;
    *count = gradient.count;
  });
}

ddp_status ddp_model_begin_step(ddp_model model, int32_t is_synchronized) {
  return call([&] {
    const auto of = object_of(model);
    of->step.emplace(of->model.begin_step(is_synchronized != 0 ? ddp::Sync::on : ddp::Sync::off));
  });
}

ddp_status ddp_model_ready(ddp_model model, size_t index) {
  return call([&] { object_of(model)->require_step().ready(index); });
}

ddp_status ddp_model_finish(ddp_model model, int32_t* active_ranks) {
  return call([&] {
    const int active = object_of(model)->require_step().finish();
    if (active_ranks != nullptr) *active_ranks = active;
  });
}

ddp_status ddp_model_cancel_step(ddp_model model) {
  return call([&] {
    const auto of = object_of(model);
    if (of->step) of->step->cancel();
  });
}

ddp_status ddp_model_join(ddp_model model, void (*after_each_step)(void* context), void* context) {
  return call([&] {
    std::function<void()> after;
    if (after_each_step != nullptr) after = [after_each_step, context] { after_each_step(context); };
    object_of(model)->model.join(after);
  });
}

ddp_status ddp_model_check(ddp_model model) {
  return call([&] { object_of(model)->model.check(); });
}

ddp_status ddp_model_rebuild_buckets(ddp_model model) {
  return call([&] { object_of(model)->model.rebuild_buckets(); });
}

ddp_status ddp_model_set_frozen(ddp_model model, size_t index, int32_t is_frozen) {
  return call([&] { object_of(model)->model.set_frozen(index, is_frozen != 0); });
}

ddp_status ddp_model_is_unused(ddp_model model, size_t index, int32_t* is_unused) {
  return call([&] {
    require(is_unused, "is_unused");
    *is_unused = object_of(model)->model.is_unused(index) ? 1 : 0;
  });
}

ddp_status ddp_checkpoints_create(ddp_group group, const ddp_checkpoint_options* options,
                                  ddp_checkpoints* checkpoints) {
  return call([&] {
    require(checkpoints, "checkpoints");
    const auto of = object_of(group);
    give(checkpoints, {ddp::Checkpointer(*of, checkpointer_options(options)), of->device()});
  });
}

ddp_status ddp_checkpoints_destroy(ddp_checkpoints checkpoints) {
  return call([&] { destroy(checkpoints); });
}

ddp_status ddp_checkpoints_add(ddp_checkpoints checkpoints, const ddp_tensor* tensors, size_t count) {
  return call([&] {
    const auto of = object_of(checkpoints);
    of->checkpointer.add(parameters_of(tensors, count, of->device));
  });
}

ddp_status ddp_checkpoints_add_own(ddp_checkpoints checkpoints, const ddp_tensor* tensors, size_t count) {
  return call([&] {
    const auto of = object_of(checkpoints);
    of->checkpointer.add_own([own = parameters_of(tensors, count, of->device)] { return own; });
  });
}

ddp_status ddp_checkpoints_add_model(ddp_checkpoints checkpoints, ddp_model model) {
  return call([&] { object_of(checkpoints)->checkpointer.add(object_of(model)->model); });
}

ddp_status ddp_checkpoints_save(ddp_checkpoints checkpoints, uint64_t step) {
  return call([&] { object_of(checkpoints)->checkpointer.save(step); });
}

ddp_status ddp_checkpoints_wait(ddp_checkpoints checkpoints) {
  return call([&] { object_of(checkpoints)->checkpointer.wait(); });
}

ddp_status ddp_checkpoints_load(ddp_checkpoints checkpoints, ddp_loaded_checkpoint* loaded) {
  return call([&] {
    require(loaded, "loaded");
    static_cast<void>(struct_bytes(*loaded, "ddp_loaded_checkpoint"));  // before tensors are filled
    ddp_loaded_checkpoint result{};
    if (const auto found = object_of(checkpoints)->checkpointer.load()) {
      result.is_found = 1;
      result.has_own_state = found->has_own_state ? 1 : 0;
      result.step = found->step;
      result.rank_count = found->rank_count;
      write_round(result.round, found->round);
    }
    write_struct(loaded, result, "ddp_loaded_checkpoint");
  });
}
