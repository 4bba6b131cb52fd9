// The fake of NCCL: what is newer than 2.18 and may be missing. libfake_nccl_old.so is made without it.
#include "tests/fake_gpu/memory_table.hpp"
#include "tests/fake_gpu/nccl_call.hpp"

using namespace ddp::fake_gpu;
using Kind = Request::Kind;

FAKE_NCCL_EXPORT abi::MemAlloc ncclMemAlloc;
FAKE_NCCL_EXPORT abi::MemFree ncclMemFree;
FAKE_NCCL_EXPORT abi::CommRegister ncclCommRegister;
FAKE_NCCL_EXPORT abi::CommDeregister ncclCommDeregister;
FAKE_NCCL_EXPORT abi::AlltoAll ncclAlltoAll;
FAKE_NCCL_EXPORT abi::Gather ncclGather;
FAKE_NCCL_EXPORT abi::Scatter ncclScatter;

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

Result ncclAlltoAll(const void* input, void* output, std::size_t count, abi::DataType type, abi::Comm comm,
                    abi::Stream stream) {
  return collective("ncclAlltoAll", {Kind::all_to_all, input, output, count, type}, comm, stream);
}

Result ncclGather(const void* input, void* output, std::size_t count, abi::DataType type, int root, abi::Comm comm,
                  abi::Stream stream) {
  return collective("ncclGather", {Kind::gather, input, output, count, type, abi::RedOp::sum, root}, comm, stream);
}

Result ncclScatter(const void* input, void* output, std::size_t count, abi::DataType type, int root, abi::Comm comm,
                   abi::Stream stream) {
  return collective("ncclScatter", {Kind::scatter, input, output, count, type, abi::RedOp::sum, root}, comm, stream);
}
