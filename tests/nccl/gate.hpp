// Holds up a stream until the test lets it go on. It must live until the stream has come by.
#pragma once

#include <cuda_runtime_api.h>

#include <future>

namespace ddp::nccl_test {

class Gate {
 public:
  // Whatever comes after this on the stream waits for open().
  void close(cudaStream_t stream) {
    cudaLaunchHostFunc(
        stream, [](void* gate) { static_cast<Gate*>(gate)->opened_.wait(); }, this);
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_{open_.get_future()};
};

}  // namespace ddp::nccl_test
