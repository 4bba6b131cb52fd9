#include "worker_runtime/process_group/coalescing.hpp"

#include <mutex>
#include <string>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::process_group {

// The Work of each of the calls. Copies of it may be with other threads while the calls are begun.
class Coalescing::Joint : public Work::State {
 public:
  void set(std::shared_ptr<Work::State> all) {
    const std::lock_guard lock(mutex_);
    all_ = std::move(all);
  }

  void wait() override { begun()->wait(); }
  bool wait_until(std::chrono::steady_clock::time_point end) override { return begun()->wait_until(end); }
  void on_completed(Callback callback) override { begun()->on_completed(std::move(callback)); }

  bool is_completed() const override {
    const auto work = all();
    return work && work->is_completed();
  }

  std::optional<std::chrono::nanoseconds> duration() const override {
    const auto work = all();
    return work ? work->duration() : std::nullopt;
  }

 private:
  std::shared_ptr<Work::State> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }

  std::shared_ptr<Work::State> begun() const {
    auto work = all();
    if (!work) {
      throw InvalidArgument(
          "this Work is of a coalesce() that has not begun its calls\ntry:   wait for it after coalesce() has "
          "returned");
    }
    return work;
  }

  mutable std::mutex mutex_;
  std::shared_ptr<Work::State> all_;  // guarded by mutex_; null until the calls have begun
};

Coalescing::Coalescing(CollectiveOptions options) : options_(options), joint_(std::make_shared<Joint>()) {}

CollectiveOptions Coalescing::options_for(const CollectiveOptions& of_call) const {
  CollectiveOptions options = options_;
  if (of_call.stream != nullptr) options.stream = of_call.stream;
  options.factor = of_call.factor;
  options.tag = of_call.tag;
  return options;
}

Work Coalescing::add(const Collective& call) {
  if (calls_.size() >= kCallsMax) {
    throw Error("more than " + std::to_string(kCallsMax) +
                " calls in one coalesce()\ntry:   several, one after the other");
  }
  calls_.push_back(call);
  return Work(joint_);
}

Work Coalescing::begin(Backend& backend) {
  if (calls_.empty()) return {};
  joint_->set(backend.submit(calls_));
  return Work(joint_);
}

}  // namespace ddp::process_group
