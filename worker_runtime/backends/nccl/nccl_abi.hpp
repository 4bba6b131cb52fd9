// The part of NCCL's C interface that libddp uses, declared here so that it compiles without NCCL's headers and runs
// with any NCCL from 2.19.3 on: the library is reached by dlopen only (nccl_library.hpp).
//
// Source: nccl.h 2.28.9, which tests/unit compares with this file where it is found. NCCL keeps its C interface stable
// within 2.x: functions are added, none changes, and ncclConfig_t only grows, told apart by its `size` and `version`.
#pragma once

#include <climits>
#include <cstddef>

struct CUstream_st;  // what cudaStream_t points to

namespace ddp::nccl_backend::abi {

struct OpaqueComm;
using Comm = OpaqueComm*;
using Stream = CUstream_st*;

constexpr std::size_t kUniqueIdBytes = 128;
struct UniqueId {
  char internal[kUniqueIdBytes];
};

enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  timeout = 8,  // from 2.30 on; before that the number of results
};

enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8_e4m3 = 10,  // 2.24, as the next
  float8_e5m2 = 11,
};

enum class RedOp : int {
  sum = 0,
  product = 1,
  max = 2,
  min = 3,
  average = 4,  // behind it, those that a program has made
};

enum class ScalarResidence : int {
  device = 0,
  host_immediate = 1,  // read before the call returns
};

// As NCCL_VERSION() of nccl.h, for 2.9 and later.
constexpr int version_code(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }
// Earlier ones may hang in an abort while another thread is in a call (github.com/NVIDIA/nccl, issue 992).
constexpr int kVersionOldest = version_code(2, 19, 3);
constexpr int kVersionWithFloat8 = version_code(2, 24, 3);
constexpr int kVersionWithTrafficClass = version_code(2, 26, 2);
constexpr int kVersionWithNames = version_code(2, 27, 3);  // of communicators

constexpr int kUndefinedInt = INT_MIN;
constexpr int kSplitNoColor = -1;

// ncclConfig_t as of 2.27, but for what came behind the name. A newer library takes the fields that are beyond `size`
// or `version` for undefined, an older one reads none behind its own. See communicator_config.hpp.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = kVersionOldest;
  int blocking = kUndefinedInt;
  int cga_cluster_size = kUndefinedInt;
  int min_ctas = kUndefinedInt;
  int max_ctas = kUndefinedInt;
  const char* net_name = nullptr;
  int split_share = kUndefinedInt;
  int traffic_class = kUndefinedInt;  // from 2.26.2 on; padding before
  const char* comm_name = nullptr;    // from 2.27.3 on
};

// Types of functions, so that `extern "C" abi::AllReduce ncclAllReduce;` declares one and `abi::AllReduce*` points to
// one.
using GetVersion = Result(int* version);
using GetUniqueId = Result(UniqueId* id);
using GetErrorString = const char*(Result result);
using GetLastError = const char*(Comm comm);  // comm may be null

using CommInitRankConfig = Result(Comm* comm, int size, UniqueId id, int rank, Config* config);
using CommSplit = Result(Comm comm, int color, int key, Comm* made, Config* config);
using CommFinalize = Result(Comm comm);
using CommDestroy = Result(Comm comm);
using CommAbort = Result(Comm comm);
using CommGetAsyncError = Result(Comm comm, Result* error);
using CommCount = Result(const Comm comm, int* count);

using CommRegister = Result(const Comm comm, void* memory, std::size_t bytes, void** handle);
using CommDeregister = Result(const Comm comm, void* handle);
using MemAlloc = Result(void** memory, std::size_t bytes);
using MemFree = Result(void* memory);

using GroupStart = Result();
using GroupEnd = Result();

// An operator is of use to calls on its communicator, and may be destroyed once the last of them has returned.
using RedOpCreatePreMulSum = Result(RedOp* made, void* scalar, DataType, ScalarResidence, Comm);
using RedOpDestroy = Result(RedOp, Comm);

using AllReduce = Result(const void* input, void* output, std::size_t count, DataType, RedOp, Comm, Stream);
using Broadcast = Result(const void* input, void* output, std::size_t count, DataType, int root, Comm, Stream);
using Reduce = Result(const void* input, void* output, std::size_t count, DataType, RedOp, int root, Comm, Stream);
using AllGather = Result(const void* input, void* output, std::size_t input_count, DataType, Comm, Stream);
using ReduceScatter = Result(const void* input, void* output, std::size_t output_count, DataType, RedOp, Comm, Stream);
using Send = Result(const void* input, std::size_t count, DataType, int peer, Comm, Stream);
using Recv = Result(void* output, std::size_t count, DataType, int peer, Comm, Stream);

// 2.28; `count` is that of one rank's part.
using AlltoAll = Result(const void* input, void* output, std::size_t count, DataType, Comm, Stream);
using Gather = Result(const void* input, void* output, std::size_t count, DataType, int root, Comm, Stream);
using Scatter = Result(const void* input, void* output, std::size_t count, DataType, int root, Comm, Stream);

}  // namespace ddp::nccl_backend::abi
