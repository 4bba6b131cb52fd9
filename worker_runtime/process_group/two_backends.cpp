#include "worker_runtime/process_group/two_backends.hpp"

#include <algorithm>
#include <utility>

#include "ddp/error.hpp"
#include "worker_runtime/core/failure/failure_listener.hpp"

namespace ddp::process_group {

namespace {

class TwoBackends : public Backend {
 public:
  TwoBackends(std::unique_ptr<Backend> host, std::unique_ptr<Backend> device)
      : host_(std::move(host)), device_(std::move(device)) {
    host_->set_failure_listener([this](const std::string& reason) {
      device_->abort("its cpu side failed: " + reason, AbortCause::program);
      failure_.tell(reason);
    });
    device_->set_failure_listener([this](const std::string& reason) {
      host_->abort("its cuda side failed: " + reason, AbortCause::program);
      failure_.tell(reason);
    });
  }

  ~TwoBackends() override {
    host_->set_failure_listener({});
    device_->set_failure_listener({});
  }

  TwoBackends(const TwoBackends&) = delete;
  TwoBackends& operator=(const TwoBackends&) = delete;

  Device device() const override { return device_->device(); }
  bool reaches(const Device& other) const override { return host_->reaches(other) || device_->reaches(other); }

  bool takes(const ConstMemoryRange& range) const override {
    if (host_->takes(range)) return range.count == 0 || !owner_of(range.data);
    return device_->takes(range);
  }
  std::optional<Device> owner_of(const void* memory) const override { return device_->owner_of(memory); }

  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) override {
    Backend& first = backend_of(collectives.front());
    const auto is_there = [&](const Collective& each) { return &backend_of(each) == &first; };
    if (!std::all_of(collectives.begin(), collectives.end(), is_there)) {
      throw InvalidArgument("coalesce: calls on host memory and on device memory\ntry:   a coalesce() for each");
    }
    return first.submit(collectives);
  }

  void run(const Collective& collective) override { backend_of(collective).run(collective); }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) override {
    return device_->allocate(bytes, timeout);
  }

  std::unique_ptr<Backend> split(const GroupMember& of_new, const std::vector<int>& ranks,
                                 std::chrono::milliseconds timeout) override {
    auto host = host_->split(of_new, ranks, timeout);
    auto device = device_->split(of_new, ranks, timeout);
    if (!host || !device) return nullptr;
    return make_two_backends(std::move(host), std::move(device));
  }

  std::shared_ptr<DeviceMemory> device_memory() override { return device_->device_memory(); }
  std::shared_ptr<DeviceArithmetic> device_arithmetic() override { return device_->device_arithmetic(); }

  void abort(const std::string& reason, AbortCause cause) override {
    host_->abort(reason, cause);
    device_->abort(reason, cause);
  }

  void set_failure_listener(FailureListener tell) override { failure_.set(std::move(tell)); }

 private:
  Backend& backend_of(const Collective& collective) const {
    return host_->reaches(collective.input.device) ? *host_ : *device_;
  }

  core::FailureListener failure_;  // of either
  std::unique_ptr<Backend> host_;
  std::unique_ptr<Backend> device_;
};

}  // namespace

std::unique_ptr<Backend> make_two_backends(std::unique_ptr<Backend> host, std::unique_ptr<Backend> device) {
  return std::make_unique<TwoBackends>(std::move(host), std::move(device));
}

}  // namespace ddp::process_group
