#include "benchmarks/ddp_step/our_training.hpp"

#include <ddp/ddp.hpp>
#include <ddp/trace.hpp>

#include <cmath>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/common/sides/serve.hpp"
#include "benchmarks/common/sides/values.hpp"
#include "benchmarks/ddp_step/variant.hpp"

namespace ddp::benchmarks {

namespace {

class Training : public Side {
 public:
  Training(const ProcessGroup& group, const std::string& model, std::string trace_folder)
      : group_(group),
        trace_folder_(std::move(trace_folder)),
        model_(make_model(model, 17 + static_cast<unsigned>(group.rank()))),
        count_(parameter_count(*model_)) {}

  void prepare(const Request& request) override {
    if (request.bytes != count_ * sizeof(float)) throw std::invalid_argument("the model has another size");
    request_ = request;
    if (request.what == "all_reduce") {
      if (all_gradients_.data() == nullptr) all_gradients_ = group_.allocate(request.bytes);
    } else if (!variants_.contains(variant_name())) {
      variants_[variant_name()] = std::make_unique<Variant>(group_, *model_, variant_name());
    }
  }

  void rewrite() override {
    if (request_.what == "all_reduce") write_values(static_cast<float*>(all_gradients_.data()), count_, group_.rank());
  }

  void call() override {
    if (request_.memory != "traced") return steps();
    Trace trace(trace_file(trace_folder_, request_.what, group_.rank()));
    steps();
    trace.finish();
  }

  // The gradients of "sync" are the mean of what each rank has without sync. Hooks that send less have other results.
  bool is_right() override {
    if (request_.what == "all_reduce")
      return are_sums(static_cast<float*>(all_gradients_.data()), count_, group_.size());
    if (request_.what != "sync") return true;
    const auto synced = gradients();
    variants_.at("sync")->step(Sync::off);
    auto mean = gradients();
    group_.all_reduce(mean, ReduceOp::average);
    for (std::size_t i = 0; i < mean.size(); ++i) {
      if (!(std::abs(mean[i] - synced[i]) <= 1e-5F + 1e-3F * std::abs(mean[i]))) return false;
    }
    return true;
  }

  void release() override { all_gradients_ = {}; }

 private:
  std::string variant_name() const { return request_.what == "no_sync" ? "sync" : request_.what; }

  void steps() {
    if (request_.what == "all_reduce") return group_.all_reduce({static_cast<float*>(all_gradients_.data()), count_});
    Variant& variant = *variants_.at(variant_name());
    for (int i = 0; i < period_of(request_.what); ++i) {
      variant.step(request_.what == "no_sync" ? Sync::off : Sync::on);
    }
  }

  std::vector<float> gradients() {
    std::vector<float> out;
    const auto parameters = model_->parameters();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const float* const gradient = variants_.at("sync")->gradients()[p];
      out.insert(out.end(), gradient, gradient + parameters[p].values.count);
    }
    return out;
  }

  ProcessGroup group_;
  std::string trace_folder_;
  std::unique_ptr<Model> model_;
  std::size_t count_;  // of elements of all parameters
  std::map<std::string, std::unique_ptr<Variant>> variants_;
  RegisteredMemory all_gradients_;  // as many bytes in one buffer
  Request request_;
};

}  // namespace

std::string trace_file(const std::string& folder, const std::string& variant, int rank) {
  return folder + "/" + variant + "." + std::to_string(rank) + ".json";
}

int be_training_rank(const char* socket_name, const char* model, const char* trace_folder) {
  const auto group = init_process_group();
  Training training(group, model, trace_folder);
  RankLink link(socket_name, group.rank());
  serve(training, link, group.rank(), group.size());
  return 0;
}

}  // namespace ddp::benchmarks
