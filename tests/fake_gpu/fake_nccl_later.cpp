// The fake of NCCL: what is newer than 2.19 and may be missing. libfake_nccl_old.so is made without it.
#include "tests/fake_gpu/nccl_call.hpp"

using namespace ddp::fake_gpu;
using Kind = Request::Kind;

FAKE_NCCL_EXPORT abi::AlltoAll ncclAlltoAll;
FAKE_NCCL_EXPORT abi::Gather ncclGather;
FAKE_NCCL_EXPORT abi::Scatter ncclScatter;

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
