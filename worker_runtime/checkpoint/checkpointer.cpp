#include "ddp/checkpointer.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/checkpoint/checkpoint_memory.hpp"
#include "worker_runtime/checkpoint/checkpoint_reader.hpp"
#include "worker_runtime/checkpoint/checkpoint_writer.hpp"
#include "worker_runtime/checkpoint/part_image.hpp"
#include "worker_runtime/checkpoint/problem.hpp"
#include "worker_runtime/checkpoint/training_state.hpp"
#include "worker_runtime/engine/model_buckets.hpp"
#include "worker_runtime/files/process_log.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

#include <cstdio>
#include <exception>
#include <list>
#include <utility>

namespace ddp {
namespace {

void check_options(const CheckpointerOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& advice) {
    throw InvalidArgument(what + "\nwhere: Checkpointer\ntry:   " + advice);
  };
  if (options.keep == 0) refuse("keep = 0 checkpoints", "1 or more");
  if (options.write_timeout.count() <= 0) refuse("a write_timeout of 0 or less", "the time that a slow disk may take");
  if (options.directory.empty() && options.memory == nullptr) {
    refuse("neither a directory nor a memory", "options.directory = \"checkpoints\"");
  }
}

// The thread that writes would take turns with training on a GPU's default stream, in another order on each rank.
void check_group(const ProcessGroup& group) {
  if (process_group::require_group(group.impl()).backend().reaches({})) return;
  throw InvalidArgument(
      "a group that does not take host memory\nwhere: Checkpointer\n"
      "try:   init_process_group() with the backend cpu:cpu,cuda:nccl");
}

std::function<void(const std::string&)> on_stderr() {
  return [](const std::string& message) { std::fprintf(stderr, "warning: %s\n", message.c_str()); };
}

}  // namespace

class Checkpointer::Impl {
 public:
  Impl(ProcessGroup group, CheckpointerOptions options)
      : group_(std::move(group)),
        device_(process_group::require_group(group_.impl()).backend().device_memory()),
        from_{options.directory,
              options.memory == nullptr ? nullptr : options.memory->impl(),
              options.warn ? std::move(options.warn) : on_stderr(),
              {.timeout = options.write_timeout}},
        writer_(group_.split(0, group_.rank()), {options.directory, options.form, options.keep, from_.memory},
                options.write_timeout) {}

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // The writer has a group of its own, which may wait for a rank that the failed group no longer waits for.
  ~Impl() {
    if (group_.impl()->has_failed()) writer_.give_up("the group of the Checkpointer has failed, or was aborted");
  }

  checkpoint::TrainingState& state() { return state_; }

  void save(std::uint64_t step) {
    writer_.wait();
    begin(step, checkpoint::CheckpointWriter::Extent::everywhere);
  }

  void wait() { writer_.wait(); }

  std::optional<LoadedCheckpoint> load() {
    writer_.wait();
    const auto loaded = checkpoint::load_newest(group_, from_, state_);
    if (loaded)
      process_log::log({"checkpoint_loaded",
                        base::LogFields().add("step", loaded->step).add("from_memory", loaded->is_from_memory),
                        base::LogLevel::info});
    if (from_.memory) keep_in_memory(loaded);
    return loaded;
  }

 private:
  // A rank that came new holds nothing yet, and parts of another number of ranks lie elsewhere.
  void keep_in_memory(const std::optional<LoadedCheckpoint>& loaded) {
    if (!loaded || !loaded->is_from_memory) {
      from_.memory->keep_only({});
    } else {
      from_.memory->keep_only(checkpoint::CheckpointId{loaded->round, loaded->step});
    }
    if (!loaded) return;
    begin(loaded->step, checkpoint::CheckpointWriter::Extent::memory_only);
    writer_.wait();
  }

  void begin(std::uint64_t step, checkpoint::CheckpointWriter::Extent extent) {
    const std::string problem = checkpoint::problem_of([&] {
      std::list<std::string> texts;
      const std::vector<checkpoint::Entry> entries = state_.to_save(group_.rank(), group_.size(), texts);
      checkpoint::PartLayout layout(entries, {group_.round(), step}, group_.rank(), group_.size());
      checkpoint::Image image = writer_.take_image(static_cast<std::size_t>(layout.bytes()));
      copy(entries, layout, image);
      writer_.begin(std::move(layout), std::move(image), extent);
    });
    if (!problem.empty()) writer_.begin_failed(problem);  // else the other ranks would wait for this one
  }

  void copy(const std::vector<checkpoint::Entry>& entries, const checkpoint::PartLayout& layout,
            const checkpoint::Image& image) {
    for (const checkpoint::Entry& entry : entries) {
      checkpoint::require_reachable(entry.values.device, group_.device());
    }
    std::vector<process_group::DeviceMemory::Copy> from_host, from_device;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const MemoryRange& values = entries[i].values;
      auto& copies = values.device == Device{} ? from_host : from_device;
      copies.push_back({image.data.get() + layout.offset_of(i), values.data, values.bytes()});
    }
    process_group::host_memory()->copy_to_host(from_host, nullptr);
    if (!from_device.empty()) device_->copy_to_host(from_device, nullptr);
  }

  ProcessGroup group_;
  std::shared_ptr<process_group::DeviceMemory> device_;
  checkpoint::LoadFrom from_;
  checkpoint::TrainingState state_;
  checkpoint::CheckpointWriter writer_;
};

Checkpointer::Checkpointer(ProcessGroup group, CheckpointerOptions options) {
  check_options(options);
  check_group(group);
  impl_ = std::make_unique<Impl>(std::move(group), std::move(options));
}
Checkpointer::~Checkpointer() = default;
Checkpointer::Checkpointer(Checkpointer&& other) noexcept = default;
Checkpointer& Checkpointer::operator=(Checkpointer&& other) noexcept = default;

void Checkpointer::add(Parameter tensor) { impl_->state().add(std::move(tensor)); }
void Checkpointer::add_text(std::string name, Text text) { impl_->state().add_text(std::move(name), std::move(text)); }
void Checkpointer::add(ShardedOptimizer optimizer, std::string name) {
  impl_->state().add(std::move(name), std::move(optimizer));
}
void Checkpointer::add(DistributedDataParallel model, std::string name) {
  using gradient_engine::ModelBuckets;
  impl_->state().add_text_if_saved(std::move(name),
                                   {[model] { return ModelBuckets::text_of(model); },
                                    [model](const std::string& text) { ModelBuckets::take(model, text); }},
                                   [model] { ModelBuckets::use_taken(model); });
}
void Checkpointer::add_own(std::function<std::vector<Parameter>()> tensors) {
  impl_->state().add_own(std::move(tensors));
}
void Checkpointer::add_own_text(std::string name, Text text) {
  impl_->state().add_own_text(std::move(name), std::move(text));
}
void Checkpointer::save(std::uint64_t step) { impl_->save(step); }
void Checkpointer::wait() { impl_->wait(); }
std::optional<LoadedCheckpoint> Checkpointer::load() { return impl_->load(); }

}  // namespace ddp
