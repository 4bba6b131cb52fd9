#include <cstdint>
#include <memory>
#include <string>

#include "ddp/local_sgd.hpp"
#include "worker_runtime/engine/hooks/hook_steps.hpp"

namespace ddp {
namespace {

class PostLocalSgd : public CommunicationHook {
 public:
  explicit PostLocalSgd(const PostLocalSgdOptions& options)
      : start_step_(options.start_step),
        subgroup_(options.subgroup),
        subgroup_size_(subgroup_.impl() == nullptr ? 0 : subgroup_.size()) {}

  std::string describe() const override {
    return "post_local_sgd, start_step = " + std::to_string(start_step_) +
           (subgroup_size_ == 0 ? ", no subgroup" : ", a subgroup");
  }

  std::optional<Work> next(const HookCall& call) override {
    if (call.stage > 0) return std::nullopt;
    steps_.note(call.step);
    if (static_cast<std::uint64_t>(steps_.number()) < start_step_) {
      return call.group.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
    }
    if (subgroup_size_ < 2) return std::nullopt;
    return subgroup_.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
  }

  std::vector<Parameter> state() override { return {{"post_local_sgd.step", {}, steps_.memory()}}; }

 private:
  std::uint64_t start_step_;
  ProcessGroup subgroup_;
  int subgroup_size_;
  gradient_engine::HookSteps steps_;
};

}  // namespace

std::shared_ptr<CommunicationHook> DDP_ABI::post_local_sgd(const PostLocalSgdOptions& options) {
  return std::make_shared<PostLocalSgd>(options);
}

}  // namespace ddp
