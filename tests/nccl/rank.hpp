// A rank of the tests of the backend nccl: its group, and device memory with values.
//
// The device's work is looked at by plain CUDA calls that block, as a program's own would; the library itself makes
// none.
//
// Threads: the rank's main thread.
#pragma once

#include <cuda_runtime_api.h>
#include <ddp/ddp.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "tests/nccl/place.hpp"

namespace ddp::nccl_test {

inline void set_variable(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

// What is not given is as the place has it.
struct JoinOptions {
  std::optional<int> device{};
  std::optional<bool> share_device{};
  NcclOptions nccl{};
  std::string backend = "nccl";
};
inline ProcessGroup join(std::chrono::milliseconds timeout = testing::kPatience, const JoinOptions& wanted = {}) {
  const Place place = take_place();
  InitOptions options;
  options.backend = wanted.backend;
  options.timeout = timeout;
  options.device = wanted.device ? wanted.device : place.device;
  options.nccl = wanted.nccl;
  options.share_device = wanted.share_device.value_or(place.share_device);
  return init_process_group(options);
}

// These do nothing where nobody counts.
inline void expect_live(const char* kind, unsigned long count) { EXPECT_EQ(live(kind).value_or(count), count) << kind; }
inline void wait_until_gone(const char* kind) {
  testing::wait_until([&] { return live(kind).value_or(0) == 0; });
}

// One that does not wait for the default stream.
inline cudaStream_t make_stream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

// Device memory with values.
template <class T>
class Array {
 public:
  Array(Device device, const std::vector<T>& values) : device_(device), count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&memory_, count_ * sizeof(T)), cudaSuccess);
    write(values);
  }
  Array(Device device, std::size_t count) : Array(device, std::vector<T>(count)) {}
  ~Array() { cudaFree(memory_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  MemoryRange range() const { return {memory_, count_, DataTypeOf<T>::value, device_}; }
  MemoryRange part(std::size_t begin, std::size_t count) const {
    return {static_cast<T*>(memory_) + begin, count, DataTypeOf<T>::value, device_};
  }

  // Both wait for the work of the default stream.
  void write(const std::vector<T>& values) const {
    EXPECT_EQ(cudaMemcpy(memory_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  std::vector<T> values() const {
    std::vector<T> read(count_);
    EXPECT_EQ(cudaMemcpy(read.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return read;
  }

 private:
  Device device_;
  void* memory_ = nullptr;
  std::size_t count_ = 0;
};

// Lets NCCL make the connections that later calls need, for which it makes the host wait: so a test of what follows
// does not meet that.
inline void connect(ProcessGroup& group) {
  const Array<float> value(group.device(), 1), received(group.device(), static_cast<std::size_t>(group.size()));
  group.all_reduce(value.range());
  group
      .coalesce([&] {
        for (int peer = 0; peer < group.size(); ++peer) {
          if (peer == group.rank()) continue;
          static_cast<void>(group.send_async(value.range(), peer));
          static_cast<void>(group.receive_async(received.part(static_cast<std::size_t>(peer), 1), peer));
        }
      })
      .wait();
  group.barrier();
}

}  // namespace ddp::nccl_test
