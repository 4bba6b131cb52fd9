#include "worker_runtime/backends/nccl/nccl_backend.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>

#include "base/boot_id.hpp"
#include "base/host_name.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"
#include "worker_runtime/backends/nccl/cuda_memory.hpp"
#include "worker_runtime/backends/nccl/device_choice.hpp"
#include "worker_runtime/backends/nccl/group.hpp"
#include "worker_runtime/backends/nccl/unique_id.hpp"
#include "worker_runtime/core/bootstrap/store_agreement.hpp"
#include "worker_runtime/core/failure/store_news.hpp"

namespace ddp::nccl_backend {

namespace {

using process_group::AbortCause;
using process_group::Collective;
using process_group::GroupMember;

class NcclBackend : public process_group::Backend {
 public:
  explicit NcclBackend(std::unique_ptr<Group> group) : group_(std::move(group)) {
    try {
      memory_ = make_cuda_memory(group_->device(), group_->status());
      arithmetic_ = make_cuda_arithmetic(group_->device(), memory_);
    } catch (...) {
      close();
      throw;
    }
  }

  ~NcclBackend() override {
    if (group_->in_forked_child()) {
      static_cast<void>(group_.release());  // leaked: it is the parent's
    } else {
      close();
    }
  }
  NcclBackend(const NcclBackend&) = delete;
  NcclBackend& operator=(const NcclBackend&) = delete;

  Device device() const override { return {Device::Kind::cuda, group_->device()}; }
  std::optional<Device> owner_of(const void* memory) const override { return device_of(memory); }

  std::shared_ptr<Work::State> submit(std::span<const Collective> collectives) override {
    group_->require_own_process();
    return group_->begin(collectives);
  }

  void run(const Collective& collective) override {
    group_->require_own_process();
    group_->begin({&collective, 1})->wait();
  }

  RegisteredMemory allocate(std::size_t bytes, std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    return group_->allocate(bytes, timeout);
  }

  std::unique_ptr<Backend> split(const GroupMember& of_new, const std::vector<int>& ranks,
                                 std::chrono::milliseconds timeout) override {
    group_->require_own_process();
    auto made = group_->split(of_new, ranks, timeout);
    return made ? std::make_unique<NcclBackend>(std::move(made)) : nullptr;
  }

  std::shared_ptr<process_group::DeviceMemory> device_memory() override { return memory_; }
  std::shared_ptr<process_group::DeviceArithmetic> device_arithmetic() override { return arithmetic_; }

  void abort(const std::string& reason, AbortCause cause) override {
    group_->require_own_process();
    group_->abort(reason, cause);
  }

  void set_failure_listener(FailureListener tell) override { group_->set_failure_listener(std::move(tell)); }

 private:
  void close() noexcept {
    try {
      group_->close();
    } catch (const std::exception&) {  // CUDA has been unloaded: the process ends
    }
  }

  std::unique_ptr<Group> group_;
  std::shared_ptr<process_group::DeviceMemory> memory_;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic_;
};

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Containers of one machine share its GPUs, and its boot id.
std::string machine_identity() {
  const std::string boot = base::boot_id();
  return boot.empty() ? base::host_name() : boot;
}

int device_count() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  if (code == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    throw InvalidArgument("the backend nccl needs a GPU and its driver: " + text_of(code) +
                          "\ntry:   `nvidia-smi` tells of the driver; the backend cpu needs neither");
  }
  check(code, "counting GPUs");
  return count;
}

int take_device(const GroupMember& who, const InitOptions& options) {
  const int device = choose_device({.count = device_count(),
                                    .local_rank = who.local_rank,
                                    .local_size = who.local_size,
                                    .named = options.device,
                                    .share_device = options.share_device,
                                    .visible_devices = variable("CUDA_VISIBLE_DEVICES")});
  check(cudaSetDevice(device), "setting the device");
  return device;
}

// "GPU-8f1c2d3e-...", as nvidia-smi writes it; of a part of a GPU (MIG) the part's own.
std::string uuid_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking for a GPU's properties");
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof properties.uuid.bytes; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x",
                  static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// A rank that has no device tells the others, which then need not wait for it.
int take_device_or_tell(const GroupMember& who, const InitOptions& options, core::StoreAgreement* agreement) {
  try {
    return take_device(who, options);
  } catch (const InvalidArgument& error) {
    if (agreement != nullptr) agreement->refuse("rank " + std::to_string(who.rank) + ": " + error.what());
    throw;
  }
}

Arrival arrival_of(const GroupMember& who, int device, const InitOptions& options, const NcclLibrary& nccl) {
  const std::string uuid = uuid_of(device);
  return {.rank = who.rank,
          .host = machine_identity(),
          .gpu = uuid,
          .gpu_name = uuid + " of " + base::host_name(),
          .share_device = options.share_device,
          .nccl_version = nccl.version()};
}

std::unique_ptr<Communicator> connect(const NcclLibrary& nccl, const Communicator::Rank& rank,
                                      const CommunicatorConfig& config, bool share_device, base::Deadline& deadline) {
  auto [outcome, communicator] = Communicator::make(nccl, rank, config, deadline);
  if (outcome.kind == Outcome::Kind::done) return std::move(communicator);
  const std::string where = "\nwhere: rank " + std::to_string(rank.rank) + " of " + std::to_string(rank.size) +
                            ", host " + base::host_name() + ", " + nccl.name();
  if (outcome.kind == Outcome::Kind::timed_out) {
    throw TimeoutError("NCCL did not connect the " + std::to_string(rank.size) + " ranks within " +
                       std::to_string(deadline.full_time().count()) + " ms, though all have come" + where +
                       "\ntry:   " + nccl.log_advice() + "; NCCL_SOCKET_IFNAME names the interface to take");
  }
  std::string message = "NCCL can't connect the ranks: " + outcome.text + where + "\ntry:   ";
  if (share_device && outcome.result == abi::Result::invalid_usage) {
    message += "for ranks that share a GPU, NCCL_HOSTID with another value for each; ";
  }
  message += nccl.log_advice();
  if (outcome.result == abi::Result::remote_error) throw RankFailure(message, {});  // NCCL does not say which
  throw Error(message);
}

}  // namespace

std::unique_ptr<process_group::Backend> make_nccl_backend(core::Bootstrap& bootstrap, const InitOptions& options,
                                                          base::Deadline& deadline) {
  const GroupMember& who = bootstrap.who;
  const std::string key_prefix = bootstrap.key_prefix + "nccl_" + to_string(who.round) + "/";
  const NcclLibrary& nccl = NcclLibrary::of_process();
  const CommunicatorConfig config(options.nccl, nccl);
  std::optional<core::StoreAgreement> agreement;
  if (bootstrap.store) {
    const core::StartingRank own{.backend = "nccl", .rank = who.rank, .size = who.size, .pid = ::getpid()};
    agreement.emplace(own, *bootstrap.store, key_prefix + "start/", deadline);
  }
  const int device = take_device_or_tell(who, options, agreement ? &*agreement : nullptr);
  const abi::UniqueId id =
      agreement ? agree_on_id(arrival_of(who, device, options, nccl), nccl, *agreement) : id_of_one(nccl);
  GroupParts parts{
      .who = who,
      .device = device,
      .communicator = connect(nccl, {who.size, who.rank, id, who.name}, config, options.share_device, deadline),
      .board = {},
      .job_ranks = std::vector<int>(static_cast<std::size_t>(who.size))};
  std::iota(parts.job_ranks.begin(), parts.job_ranks.end(), 0);
  if (bootstrap.news && who.size > 1) {
    const core::StoreNews::Place news{bootstrap.news->host, bootstrap.news->port, bootstrap.news_prefix};
    parts.board = FailureBoard::Place{core::StoreNews::at(news), key_prefix, who.rank, who.size};
  }
  return std::make_unique<NcclBackend>(Group::make(std::move(parts)));
}

std::shared_ptr<process_group::DeviceMemory> memory_of_device(int device) { return make_cuda_memory(device, nullptr); }

}  // namespace ddp::nccl_backend
