#include "device_spans.hpp"

#include <ddp/trace.hpp>

#include <utility>

namespace train {

DeviceSpans::Event DeviceSpans::make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "making an event");
  return Event(event);
}

DeviceSpans::DeviceSpans(cudaStream_t stream) : stream_(stream) {
  if (ddp::is_tracing()) set_zero();
}

// The event comes at some time between two looks at the clock: of a few tries the one where these are nearest is taken.
void DeviceSpans::set_zero() {
  auto nearest = std::chrono::nanoseconds::max();
  for (int i = 0; i < 5; ++i) {
    Event event = make_event();
    const auto before = std::chrono::system_clock::now();
    check(cudaEventRecord(event.get(), stream_), "recording an event");
    check(cudaEventSynchronize(event.get()), "waiting for an event");
    const std::chrono::nanoseconds length = std::chrono::system_clock::now() - before;
    if (length >= nearest) continue;
    nearest = length;
    zero_ = std::move(event);
    zero_time_ = before + length / 2;
  }
}

DeviceSpans::Open DeviceSpans::begin(const char* what, const std::string& of) {
  if (!zero_ || spans_.size() >= kSpansMax) return Open(stream_, nullptr);
  Span span{what + of, make_event(), make_event()};
  check(cudaEventRecord(span.begin.get(), stream_), "recording an event");
  spans_.push_back(std::move(span));
  return Open(stream_, spans_.back().end.get());
}

void DeviceSpans::finish() {
  check(cudaStreamSynchronize(stream_), "waiting for a stream");
  const auto time_of = [this](const Event& event) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, zero_.get(), event.get()), "asking for the time of an event");
    return zero_time_ + std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(ms) * 1e6));
  };
  for (const Span& span : spans_) ddp::trace_span("compute stream", span.name, time_of(span.begin), time_of(span.end));
  spans_.clear();
}

}  // namespace train
