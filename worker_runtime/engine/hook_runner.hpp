// Takes the buckets of a model through the stages of its communication hook.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/communication_hook.hpp"
#include "worker_runtime/engine/layout/layout.hpp"

namespace ddp::gradient_engine {

class HookRunner {
 public:
  // Makes memory zero, and may give it back to the system.
  using Release = std::function<void(const MemoryRange& memory)>;

  // parameters: of the model, without use of their values. hook: not null. Throws InvalidArgument if another model uses
  // it.
  // release: empty, or called with the memory of each bucket that has gone through its stages.
  HookRunner(ProcessGroup group, std::shared_ptr<CommunicationHook> hook, std::vector<Parameter> parameters,
             CollectiveOptions options, Release release);

  ~HookRunner();
  HookRunner(const HookRunner&) = delete;
  HookRunner& operator=(const HookRunner&) = delete;

  // Collective: the gradients lie in `memory` from now on. Throws what the hook throws. An InvalidArgument of the first
  // call leaves the group usable: all ranks have the same.
  void set_buckets(const Layout& layout, const MemoryRange& memory);

  void gradients_end() noexcept { hook_->gradients_end(); }

  // As the functions of CommunicationHook.
  bool leaves_gradients() const { return hook_->leaves_gradients(); }
  void parameters_unused(const std::vector<std::size_t>& parameters) noexcept { hook_->parameters_unused(parameters); }

  // These throw what the hook, or a collective, failed with; the group is aborted then.
  void begin(std::size_t bucket, std::uint64_t step);  // its stage 0
  void finish();                                       // the stages that are left of all that have begun

  void scale_gradients(double factor);  // as CommunicationHook::scale_gradients()

  // Whether one of these, or the second set_buckets(), has thrown: the hook is not to be called any more.
  bool has_failed() const { return has_failed_; }

  // Waits for the collectives under way, and begins no further stage. Returns the first failure.
  std::exception_ptr wait_all();
  bool is_at_work() const { return !under_way_.empty(); }

 private:
  struct UnderWay {
    std::size_t bucket = 0;
    std::uint64_t step = 0;
    Work work{};
  };

  // Whether there is a stage after this one.
  bool go_on(UnderWay& its, int stage);
  void guarded(const std::function<void()>& call, bool may_refuse = false);
  void fail(const std::string& reason);

  ProcessGroup group_;
  std::shared_ptr<CommunicationHook> hook_;
  std::vector<Parameter> parameters_;
  CollectiveOptions options_;
  Release release_;
  bool has_failed_ = false;
  std::vector<GradientBucket> buckets_;
  std::vector<UnderWay> under_way_;  // in the order of begin()
};

}  // namespace ddp::gradient_engine
