// A rank of the tests of the fake NCCL: the library, a device of its own, a stream, and memory.
//
// Threads: one for each rank.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/library.hpp"
#include "tests/fake_gpu/fake_gpu.h"
#include "tests/integration/rank_processes.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"

namespace ddp::fake_gpu {

constexpr auto kInt64 = nccl_backend::abi::DataType::int64;

namespace abi = nccl_backend::abi;
using abi::Result;

struct Nccl {
  explicit Nccl(const std::string& path) : library(path) {
    EXPECT_TRUE(library) << library.error();
    const bool complete =
        library.find("ncclGetVersion", get_version) && library.find("ncclGetUniqueId", get_unique_id) &&
        library.find("ncclGetLastError", get_last_error) && library.find("ncclCommInitRankConfig", init) &&
        library.find("ncclCommSplit", split) && library.find("ncclCommFinalize", finalize) &&
        library.find("ncclCommDestroy", destroy) && library.find("ncclCommAbort", abort) &&
        library.find("ncclCommGetAsyncError", get_async_error) && library.find("ncclGroupStart", group_start) &&
        library.find("ncclGroupEnd", group_end) && library.find("ncclAllReduce", all_reduce) &&
        library.find("ncclBroadcast", broadcast) && library.find("ncclReduce", reduce) &&
        library.find("ncclAllGather", all_gather) && library.find("ncclReduceScatter", reduce_scatter) &&
        library.find("ncclSend", send) && library.find("ncclRecv", recv) && library.find("ncclMemAlloc", mem_alloc) &&
        library.find("ncclMemFree", mem_free) && library.find("ncclCommRegister", register_memory) &&
        library.find("ncclCommDeregister", deregister);
    EXPECT_TRUE(complete);
    has_later = library.find("ncclAlltoAll", all_to_all) && library.find("ncclGather", gather) &&
                library.find("ncclScatter", scatter);
  }

  base::Library library;
  bool has_later = false;
  abi::GetVersion* get_version = nullptr;
  abi::GetUniqueId* get_unique_id = nullptr;
  abi::GetLastError* get_last_error = nullptr;
  abi::CommInitRankConfig* init = nullptr;
  abi::CommSplit* split = nullptr;
  abi::CommFinalize* finalize = nullptr;
  abi::CommDestroy* destroy = nullptr;
  abi::CommAbort* abort = nullptr;
  abi::CommGetAsyncError* get_async_error = nullptr;
  abi::GroupStart* group_start = nullptr;
  abi::GroupEnd* group_end = nullptr;
  abi::AllReduce* all_reduce = nullptr;
  abi::Broadcast* broadcast = nullptr;
  abi::Reduce* reduce = nullptr;
  abi::AllGather* all_gather = nullptr;
  abi::ReduceScatter* reduce_scatter = nullptr;
  abi::Send* send = nullptr;
  abi::Recv* recv = nullptr;
  abi::MemAlloc* mem_alloc = nullptr;
  abi::MemFree* mem_free = nullptr;
  abi::CommRegister* register_memory = nullptr;
  abi::CommDeregister* deregister = nullptr;
  abi::AlltoAll* all_to_all = nullptr;
  abi::Gather* gather = nullptr;
  abi::Scatter* scatter = nullptr;
};

inline const Nccl& nccl() {
  static const Nccl& one = *new Nccl(DDP_FAKE_NCCL);
  return one;
}

// How a unique id comes from rank 0 to the others. Shared by the processes of a test; zeroed.
struct Meeting {
  std::atomic<int> made;
  abi::UniqueId id;

  abi::UniqueId unique_id(int rank) {
    if (rank == 0) {
      EXPECT_EQ(nccl().get_unique_id(&id), Result::success);
      made.store(1);
    }
    testing::wait_until([this] { return made.load() == 1; });
    return id;
  }
};

// Device memory with values.
template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&memory_, count_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  static Array zeros(std::size_t count) { return Array(std::vector<T>(count)); }
  ~Array() { cudaFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  std::size_t count() const { return count_; }

  // Once the stream's work is done.
  std::vector<T> values(cudaStream_t stream) const {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::vector<T> read(count_);
    EXPECT_EQ(cudaMemcpy(read.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return read;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_ = 0;
};

inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

// What a communicator says once it is no longer in progress.
inline Result settled(abi::Comm comm) {
  Result state = Result::in_progress;
  testing::wait_until([&] {
    EXPECT_EQ(nccl().get_async_error(comm, &state), Result::success);
    return state != Result::in_progress;
  });
  return state;
}

// That a call was taken, and has begun.
inline void expect_begun(Result result, abi::Comm comm) {
  EXPECT_TRUE(result == Result::success || result == Result::in_progress) << static_cast<int>(result);
  EXPECT_EQ(settled(comm), Result::success);
}

// Non-blocking, as libddp makes them, unless a test says otherwise. The device is `rank`.
struct Rank {
  Rank(Meeting& meeting, int rank_, int size_, int blocking = 0) : rank(rank_), size(size_) {
    EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
    stream = make_stream();
    abi::Config config;
    config.blocking = blocking;
    began = nccl().init(&comm, size, meeting.unique_id(rank), rank, &config);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void expect_begun(Result result) const { fake_gpu::expect_begun(result, comm); }
  void finish() const {
    expect_begun(nccl().finalize(comm));
    EXPECT_EQ(nccl().destroy(comm), Result::success);
  }

  int rank;
  int size;
  cudaStream_t stream = nullptr;
  abi::Comm comm = nullptr;
  Result began = Result::success;
};

// Forks `size` ranks; each runs the body with a communicator of all of them.
template <class Body>
void with_communicator(int size, const Body& body) {
  testing::Shared<Meeting> meeting;
  testing::run_ranks(size, [&](int rank) {
    Rank self(*meeting, rank, size);
    self.expect_begun(self.began);
    body(self);
    self.finish();
    EXPECT_EQ(fake_gpu_live("ncclComm"), 0U);
  });
}

inline void set_faults(const std::string& faults) { ::setenv("FAKE_GPU_FAULTS", faults.c_str(), 1); }

}  // namespace ddp::fake_gpu
