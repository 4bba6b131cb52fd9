// A collective that has become part of a CUDA graph. Each launch of the graph does it again, so it has no single end to
// wait for; wait() only orders streams within the graph.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/process_group/backend.hpp"

namespace ddp::nccl_backend {

class CapturedWork : public Work::State {
 public:
  // end: recorded after the collective, in the capture. streams: those that wait() lets wait for it.
  CapturedWork(int device, std::shared_ptr<Event> end, std::vector<cudaStream_t> streams)
      : device_(device), end_(std::move(end)), streams_(std::move(streams)) {}

  void wait() override {
    const DeviceGuard guard(device_);
    for (auto* const stream : streams_) end_->hold_up(stream);
  }
  bool is_completed() const override { return false; }
  std::optional<std::chrono::nanoseconds> duration() const override { return std::nullopt; }
  bool wait_until(std::chrono::steady_clock::time_point) override { refuse("wait_for"); }
  void on_completed(Callback) override { refuse("on_completed"); }

 private:
  [[noreturn]] static void refuse(const char* call) {
    throw InvalidArgument(std::string("this collective is part of a CUDA graph, which may be launched often\nwhere: ") +
                          "Work::" + call + "\ntry:   wait for the stream on which the graph is launched");
  }

  int device_;
  std::shared_ptr<Event> end_;
  std::vector<cudaStream_t> streams_;
};

}  // namespace ddp::nccl_backend
