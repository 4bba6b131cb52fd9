#include <cstdint>
#include <memory>
#include <string>

#include "ddp/local_sgd.hpp"

namespace ddp {
namespace {

class PostLocalSgd : public CommunicationHook {
 public:
  explicit PostLocalSgd(const PostLocalSgdOptions& options)
      : start_step_(options.start_step),
        subgroup_(options.subgroup),
        subgroup_size_(subgroup_.impl() == nullptr ? 0 : subgroup_.size()) {}

  std::string describe() const override { return "post_local_sgd, start_step = " + std::to_string(start_step_); }

  void begin(ProcessGroup&, const std::vector<GradientBucket>& buckets, CollectiveOptions) override {
    last_bucket_ = buckets.size();  // the next one begins a step
  }

  std::optional<Work> next(const HookCall& call) override {
    if (call.stage > 0) return std::nullopt;
    if (call.bucket.number <= last_bucket_) ++step_;
    last_bucket_ = call.bucket.number;
    if (static_cast<std::uint64_t>(step_) < start_step_) {
      return call.group.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
    }
    if (subgroup_size_ < 2) return std::nullopt;
    return subgroup_.all_reduce_async(call.bucket.gradients, ReduceOp::average, call.options);
  }

  std::vector<Parameter> state() override {
    return {{"post_local_sgd.step", {}, MemoryRange(&step_, 1, DataType::int64)}};
  }

 private:
  std::uint64_t start_step_;
  ProcessGroup subgroup_;
  int subgroup_size_;
  std::int64_t step_ = -1;  // with Sync::on; the first is 0
  std::size_t last_bucket_ = 0;
};

}  // namespace

std::shared_ptr<CommunicationHook> DDP_ABI::post_local_sgd(const PostLocalSgdOptions& options) {
  return std::make_shared<PostLocalSgd>(options);
}

}  // namespace ddp
