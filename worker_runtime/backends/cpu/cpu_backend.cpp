#include "worker_runtime/backends/cpu/cpu_backend.hpp"

#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "worker_runtime/backends/cpu/group/group.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"

namespace ddp::cpu_backend {

namespace {

class CpuBackend : public process_group::Backend {
 public:
  explicit CpuBackend(std::unique_ptr<Group> group) : group_(std::move(group)) {}

  ~CpuBackend() override {
    if (group_->in_forked_child()) static_cast<void>(group_.release());  // leaked: it is the parent's
  }
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  Device device() const override { return {}; }

  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) override {
    group_->require_own_process();
    return group_->submit(collectives);
  }

  void run(const Collective& collective) override {
    group_->require_own_process();
    group_->run(collective);
  }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    return group_->allocate(bytes, timeout);
  }

  std::unique_ptr<process_group::Backend> split(const GroupMember& of_new, const std::vector<int>& ranks,
                                                std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    auto made = group_->split(of_new, ranks, timeout);
    return made ? std::make_unique<CpuBackend>(std::move(made)) : nullptr;
  }

  std::shared_ptr<process_group::DeviceMemory> device_memory() override { return process_group::host_memory(); }
  std::shared_ptr<process_group::DeviceArithmetic> device_arithmetic() override {
    return process_group::host_arithmetic();
  }

  void abort(const std::string& reason, AbortCause cause) override {
    group_->require_own_process();
    group_->abort(reason, cause);
  }

  void set_failure_listener(FailureListener tell) override { group_->set_failure_listener(std::move(tell)); }

 private:
  std::unique_ptr<Group> group_;
};

}  // namespace

base::UniqueFd make_shared_file(const core::HostLayout& layout, int host) {
  return SharedMemory::make_file(layout, host);
}

std::unique_ptr<process_group::Backend> make_cpu_backend(core::Bootstrap& bootstrap, const InitOptions&,
                                                         base::Deadline& deadline) {
  if (bootstrap.lets_any_read) let_any_process_read_this_one();
  Meeting meeting = std::move(bootstrap.meeting);
  try {
    auto group = std::make_unique<Group>(bootstrap.who, meeting);  // if it fails, the others notice this rank's end
    group->begin(std::move(meeting), deadline);
    return std::make_unique<CpuBackend>(std::move(group));
  } catch (const std::system_error& error) {
    throw Error(std::string("the cpu backend can't start: ") + error.what() +
                "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses");
  }
}

}  // namespace ddp::cpu_backend
