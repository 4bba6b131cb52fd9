// The fake of NCCL: what all versions from 2.19 on have. What came later is in fake_nccl_later.cpp.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/random_key.hpp"
#include "tests/fake_gpu/memory_table.hpp"
#include "tests/fake_gpu/nccl_call.hpp"
#include "tests/fake_gpu/nccl_log.hpp"

namespace ddp::fake_gpu {

namespace {

// Listeners that unique ids of this process lead to, until rank 0 takes its own.
struct Listeners {
  std::mutex mutex;
  std::map<std::string, base::UniqueFd> by_name;
};

Listeners& listeners() {
  static Listeners& one = *new Listeners;
  return one;
}

base::UniqueFd take_listener(const std::string& name) {
  Listeners& at = listeners();
  const std::lock_guard lock(at.mutex);
  const auto found = at.by_name.find(name);
  if (found == at.by_name.end()) return {};
  base::UniqueFd listener = std::move(found->second);
  at.by_name.erase(found);
  return listener;
}

void make_unique_id(abi::UniqueId& id) {
  const std::string name = "fake_nccl/" + base::random_key();
  base::UniqueFd listener = listen_at(address_of(name, 0));
  Listeners& at = listeners();
  const std::lock_guard lock(at.mutex);
  at.by_name[name] = std::move(listener);
  id = {};
  std::memcpy(id.internal, name.data(), name.size());
}

bool is_blocking(const abi::Config* config, bool by_default) {
  if (const char* const choice = std::getenv("NCCL_COMM_BLOCKING")) return std::strcmp(choice, "0") != 0;
  if (config == nullptr || config->blocking == abi::kUndefinedInt) return by_default;
  return config->blocking != 0;
}

int version() {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  return text == nullptr ? FAKE_NCCL_VERSION_BY_DEFAULT : std::atoi(text);
}

// As NCCL, which compares the two also where one is not given. What is given is counted, for a test to see.
Result take_config(const abi::Config* config) {
  if (config == nullptr) return Result::success;
  if (config->min_ctas > config->max_ctas) return refuse(Result::invalid_argument, "invalid min/max channels");
  const auto note = [](const char* name, int value) {
    if (value != abi::kUndefinedInt) count(("ncclConfig " + std::string(name) + " " + std::to_string(value)).c_str());
  };
  note("minCTAs", config->min_ctas);
  note("maxCTAs", config->max_ctas);
  if (version() >= abi::kVersionWithTrafficClass) note("trafficClass", config->traffic_class);
  const bool has_name = version() >= abi::kVersionWithNames && config->size >= sizeof(abi::Config);
  if (has_name && config->comm_name != nullptr)
    count(("ncclConfig commName " + std::string(config->comm_name)).c_str());
  return Result::success;
}

Result init(abi::Comm* made_comm, const Place& place, const abi::UniqueId& id, const abi::Config* config,
            const Fault& fault) {
  if (place.size < 1 || place.rank < 0 || place.rank >= place.size)
    return refuse(Result::invalid_argument, "there is no such rank");
  if (const Result taken = take_config(config); taken != Result::success) return taken;
  const std::string name(id.internal, ::strnlen(id.internal, sizeof id.internal));
  base::UniqueFd listener = place.rank == 0 ? take_listener(name) : base::UniqueFd{};
  if (place.rank == 0 && !listener)
    return refuse(Result::invalid_usage,
                  "the fake wants the unique id from the process of rank 0, for one communicator");
  const auto communicator = std::make_shared<Communicator>(
      CommunicatorOptions{.place = place, .name = name, .blocking = is_blocking(config, true)});
  *made_comm = handle_of(communicator);
  const Use use(*made_comm);
  return communicator->begin_meeting(std::move(listener), fault);
}

const char* text_of(Result result) {
  switch (result) {
    case Result::success: return "no error";
    case Result::unhandled_cuda_error: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case Result::system_error: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case Result::internal_error: return "internal error - please report this issue to the NCCL developers";
    case Result::invalid_argument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case Result::invalid_usage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case Result::remote_error: return "remote process exited or there was a network error";
    case Result::in_progress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

}  // namespace

}  // namespace ddp::fake_gpu

using namespace ddp::fake_gpu;
using Kind = Request::Kind;

FAKE_NCCL_EXPORT abi::MemAlloc ncclMemAlloc;
FAKE_NCCL_EXPORT abi::MemFree ncclMemFree;
FAKE_NCCL_EXPORT abi::CommRegister ncclCommRegister;
FAKE_NCCL_EXPORT abi::CommDeregister ncclCommDeregister;
FAKE_NCCL_EXPORT abi::GetVersion ncclGetVersion;
FAKE_NCCL_EXPORT abi::GetUniqueId ncclGetUniqueId;
FAKE_NCCL_EXPORT abi::GetErrorString ncclGetErrorString;
FAKE_NCCL_EXPORT abi::GetLastError ncclGetLastError;
FAKE_NCCL_EXPORT abi::CommInitRankConfig ncclCommInitRankConfig;
FAKE_NCCL_EXPORT abi::CommSplit ncclCommSplit;
FAKE_NCCL_EXPORT abi::CommFinalize ncclCommFinalize;
FAKE_NCCL_EXPORT abi::CommDestroy ncclCommDestroy;
FAKE_NCCL_EXPORT abi::CommAbort ncclCommAbort;
FAKE_NCCL_EXPORT abi::CommGetAsyncError ncclCommGetAsyncError;
FAKE_NCCL_EXPORT abi::CommCount ncclCommCount;
FAKE_NCCL_EXPORT abi::GroupStart ncclGroupStart;
FAKE_NCCL_EXPORT abi::GroupEnd ncclGroupEnd;
FAKE_NCCL_EXPORT abi::RedOpCreatePreMulSum ncclRedOpCreatePreMulSum;
FAKE_NCCL_EXPORT abi::RedOpDestroy ncclRedOpDestroy;
FAKE_NCCL_EXPORT abi::AllReduce ncclAllReduce;
FAKE_NCCL_EXPORT abi::Broadcast ncclBroadcast;
FAKE_NCCL_EXPORT abi::Reduce ncclReduce;
FAKE_NCCL_EXPORT abi::AllGather ncclAllGather;
FAKE_NCCL_EXPORT abi::ReduceScatter ncclReduceScatter;
FAKE_NCCL_EXPORT abi::Send ncclSend;
FAKE_NCCL_EXPORT abi::Recv ncclRecv;

Result ncclGetVersion(int* out) {
  return short_nccl_call("ncclGetVersion", [&] {
    *out = version();
    return Result::success;
  });
}

Result ncclGetUniqueId(abi::UniqueId* id) {
  return short_nccl_call("ncclGetUniqueId", [&] {
    make_unique_id(*id);
    return Result::success;
  });
}

const char* ncclGetErrorString(Result result) { return text_of(result); }

const char* ncclGetLastError(abi::Comm) {
  thread_local std::string text;
  text = last_error_text();
  return text.c_str();
}

Result ncclCommInitRankConfig(abi::Comm* comm, int size, abi::UniqueId id, int rank, abi::Config* config) {
  return nccl_call("ncclCommInitRankConfig", [&](const Fault& fault) {
    return init(comm, {.rank = rank, .size = size, .device = current_device()}, id, config, fault);
  });
}

// The new handle is there once this communicator is no longer in progress, as with NCCL from 2.23 on.
Result ncclCommSplit(abi::Comm comm, int color, int key, abi::Comm* made_comm, abi::Config* config) {
  return nccl_call("ncclCommSplit", [&](const Fault& fault) {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    if (const Result ready = use->readiness(); ready != Result::success) return ready;
    if (const Result taken = take_config(config); taken != Result::success) return taken;
    const auto take = [made_comm](std::shared_ptr<Communicator> made_one) {
      *made_comm = made_one == nullptr ? nullptr : handle_of(std::move(made_one));
    };
    return use->begin_split(color, key, is_blocking(config, use->blocking()), take, fault);
  });
}

Result ncclCommFinalize(abi::Comm comm) {
  return nccl_call("ncclCommFinalize", [&](const Fault& fault) {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    const Result ready = use->readiness();
    return ready == Result::success ? use->begin_finalize(fault) : ready;
  });
}

Result ncclCommDestroy(abi::Comm comm) {
  return nccl_call("ncclCommDestroy", [&](const Fault& fault) {
    Use use(comm);
    if (!use) return Result::invalid_argument;
    if (use->state() == Result::in_progress) return use->readiness();
    if (use->readiness() == Result::success) use->finalize_now(fault);
    use.forget_handle();
    use->abort();
    static_cast<void>(cudaFree(nullptr));  // as NCCL frees what it had on the device
    return Result::success;
  });
}

// What was under way ends in any case; with a fault it is the call that does not come back, as NCCL's where a rank of
// the same host is stopped.
Result ncclCommAbort(abi::Comm comm) {
  return nccl_call("ncclCommAbort", [&](const Fault& fault) {
    {
      Use use(comm, Use::Abort{});
      if (!use) return Result::invalid_argument;
      use.forget_handle();
      use->abort();
    }
    static_cast<void>(cudaFree(nullptr));
    suffer(fault);
    return Result::success;
  });
}

Result ncclCommGetAsyncError(abi::Comm comm, Result* error) {
  return nccl_call("ncclCommGetAsyncError", [&](const Fault& fault) {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    suffer(fault);
    if (fault.kind == Fault::Kind::async) use->fail(static_cast<Result>(fault.number));
    *error = device_is_lost() ? Result::unhandled_cuda_error : use->state();
    return Result::success;
  });
}

Result ncclCommCount(const abi::Comm comm, int* size) {
  return nccl_call("ncclCommCount", [&](const Fault&) {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    *size = use->place().size;
    return use->readiness();
  });
}

Result ncclGroupStart() {
  return short_nccl_call("ncclGroupStart", [] {
    group_start();
    return Result::success;
  });
}

Result ncclGroupEnd() {
  return short_nccl_call("ncclGroupEnd", [] { return group_end(); });
}

Result ncclRedOpCreatePreMulSum(abi::RedOp* op, void* scalar, abi::DataType type, abi::ScalarResidence residence,
                                abi::Comm comm) {
  return short_nccl_call("ncclRedOpCreatePreMulSum", [&] {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    if (const Result ready = use->readiness(); ready != Result::success) return ready;
    if (residence != abi::ScalarResidence::host_immediate || element_bytes(type) == 0) {
      return refuse(Result::invalid_argument, "the fake takes a scalar of the host, of a type that exists");
    }
    ddp::tensor::Scalar factor{};
    std::memcpy(factor.data(), scalar, element_bytes(type));
    *op = use->make_operator(type, factor);
    return Result::success;
  });
}

Result ncclRedOpDestroy(abi::RedOp op, abi::Comm comm) {
  return short_nccl_call("ncclRedOpDestroy", [&] {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    return use->destroy_operator(op) ? Result::success : refuse(Result::invalid_argument, "there is no such operator");
  });
}

Result ncclAllReduce(const void* input, void* output, std::size_t count, abi::DataType type, abi::RedOp op,
                     abi::Comm comm, abi::Stream stream) {
  return collective("ncclAllReduce", {Kind::all_reduce, input, output, count, type, op}, comm, stream);
}

Result ncclBroadcast(const void* input, void* output, std::size_t count, abi::DataType type, int root, abi::Comm comm,
                     abi::Stream stream) {
  return collective("ncclBroadcast", {Kind::broadcast, input, output, count, type, abi::RedOp::sum, root}, comm,
                    stream);
}

Result ncclReduce(const void* input, void* output, std::size_t count, abi::DataType type, abi::RedOp op, int root,
                  abi::Comm comm, abi::Stream stream) {
  return collective("ncclReduce", {Kind::reduce, input, output, count, type, op, root}, comm, stream);
}

Result ncclAllGather(const void* input, void* output, std::size_t count, abi::DataType type, abi::Comm comm,
                     abi::Stream stream) {
  return collective("ncclAllGather", {Kind::all_gather, input, output, count, type}, comm, stream);
}

Result ncclReduceScatter(const void* input, void* output, std::size_t count, abi::DataType type, abi::RedOp op,
                         abi::Comm comm, abi::Stream stream) {
  return collective("ncclReduceScatter", {Kind::reduce_scatter, input, output, count, type, op}, comm, stream);
}

Result ncclSend(const void* input, std::size_t count, abi::DataType type, int peer, abi::Comm comm,
                abi::Stream stream) {
  return collective("ncclSend", {Kind::send, input, nullptr, count, type, abi::RedOp::sum, peer}, comm, stream);
}

Result ncclRecv(void* output, std::size_t count, abi::DataType type, int peer, abi::Comm comm, abi::Stream stream) {
  return collective("ncclRecv", {Kind::receive, nullptr, output, count, type, abi::RedOp::sum, peer}, comm, stream);
}

Result ncclMemAlloc(void** memory, std::size_t bytes) {
  return short_nccl_call("ncclMemAlloc", [&] {
    if (device_is_lost()) return refuse(Result::unhandled_cuda_error, "the device is lost");
    *memory = allocate("ncclMemAlloc", current_device(), bytes);
    return *memory == nullptr ? refuse(Result::unhandled_cuda_error, "out of memory") : Result::success;
  });
}

Result ncclMemFree(void* memory) {
  return short_nccl_call("ncclMemFree", [&] {
    if (memory == nullptr || release("ncclMemAlloc", memory)) return Result::success;
    return refuse(Result::invalid_argument, "this memory is not from ncclMemAlloc");
  });
}

Result ncclCommRegister(const abi::Comm comm, void* memory, std::size_t bytes, void** handle) {
  return short_nccl_call("ncclCommRegister", [&] {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    if (const Result ready = use->readiness(); ready != Result::success) return ready;
    const auto block = block_of(memory, bytes);
    if (!block || !block->on_device() || block->device != use->place().device)
      return refuse(Result::invalid_argument, "this is not memory of the communicator's device");
    *handle = use->register_memory();
    return Result::success;
  });
}

Result ncclCommDeregister(const abi::Comm comm, void* handle) {
  return short_nccl_call("ncclCommDeregister", [&] {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    return use->deregister(handle) ? Result::success
                                   : refuse(Result::invalid_argument, "there is no such registration");
  });
}
