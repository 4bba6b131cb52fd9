// Spans of a stream's work for the timeline (ddp/trace.hpp): events mark them on the stream, and once the work is done
// their times become those of the host's clock. Does nothing, and costs nothing, while there is no trace.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "device.hpp"

namespace train {

class DeviceSpans {
 public:
  static constexpr std::size_t kSpansMax = 10'000;  // later ones are left out: a trace of the first steps says it all

  explicit DeviceSpans(cudaStream_t stream);

  // From now to the end of what it returns, on the stream.
  class Open {
   public:
    explicit Open(cudaStream_t stream, cudaEvent_t end) : stream_(stream), end_(end) {}
    ~Open() {
      if (end_ != nullptr) cudaEventRecord(end_, stream_);
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    cudaStream_t stream_;
    cudaEvent_t end_;  // null: nothing is kept
  };
  [[nodiscard]] Open begin(const char* what, const std::string& of = "");

  // Waits for the stream and hands all spans to the trace.
  void finish();

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<CUevent_st, Destroy>;
  struct Span {
    std::string name;
    Event begin, end;
  };
  static Event make_event();
  void set_zero();

  cudaStream_t stream_;
  Event zero_;  // whose time on the host is known; none without a trace
  std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds> zero_time_;
  std::vector<Span> spans_;
};

}  // namespace train
