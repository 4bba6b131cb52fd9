// What the example needs of CUDA: errors as exceptions, and owners of memory, streams and events.
//
// Threads: as CUDA: whatever is made belongs to the device that is current then.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace train {

// Throws std::runtime_error, which says what failed while doing what.
void check(cudaError_t code, const char* what);
void check(cublasStatus_t code, const char* what);

struct FreeOnDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};

// `count` elements in device memory. Their contents are undefined at first.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(std::size_t count) : count_(count) {
    void* memory = nullptr;
    if (count > 0) check(cudaMalloc(&memory, count * sizeof(T)), "allocating device memory");
    data_.reset(static_cast<T*>(memory));
  }
  // A copy of the host's values, there for all streams when this returns: cudaMemcpy() alone does not wait for its last
  // part.
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (values.empty()) return;
    check(cudaMemcpy(data(), values.data(), bytes(), cudaMemcpyHostToDevice), "copying to the device");
    check(cudaStreamSynchronize(nullptr), "waiting for the copy");
  }

  T* data() const { return data_.get(); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return count_ * sizeof(T); }

 private:
  std::unique_ptr<T, FreeOnDevice> data_;
  std::size_t count_ = 0;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void synchronize() const { check(cudaStreamSynchronize(stream_), "waiting for a stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace train
