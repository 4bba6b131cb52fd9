// A timeline of what this process does, in Chrome's trace format, which ui.perfetto.dev and chrome://tracing show.
//
//   ddp::Trace trace("trace_" + std::to_string(rank) + ".json");
//   {
//     ddp::TraceSpan span("forward");
//     forward();
//   }
//
// Collectives record themselves, each group on a track of its own. Without a Trace in the program the variable
// DDP_TRACE=PREFIX starts one at the first init_process_group, which is written to PREFIX<rank>.json at the end. See
// docs/flight_recorder.md, also for putting the files of all ranks together.
//
// The file is written when the trace ends: by finish(), its destructor, the end of main or std::exit, or an exception
// that nobody catches. A process that is killed, or ends by _exit, leaves none.
//
// Threads: any. Fork: a forked child takes no part in its parent's trace.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a Trace.
struct TraceOptions {
  std::size_t events_max = 1'000'000;  // some 100 bytes each; beyond it the oldest go, and the file says how many
};

// One at a time in a process; it takes the place of one that DDP_TRACE has begun.
class DDP_EXPORT Trace {
 public:
  // Throws Error where the file can't be written, InvalidArgument where there is a Trace already, or room for no event.
  explicit Trace(const std::string& path, const TraceOptions& options = {});
  ~Trace();  // as finish(), but what goes wrong is said on stderr
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Ends the trace and writes the file. Throws Error where it can't be written. A second call does nothing.
  void finish();

 private:
  std::uint64_t session_ = 0;  // 0 once it is finished
};

// From its construction to its end, on the track of the calling thread. Costs a few nanoseconds while there is no
// trace. Spans of one thread lie one within the other.
class DDP_EXPORT TraceSpan {
 public:
  explicit TraceSpan(std::string_view name);  // `name` is copied
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  std::uint64_t session_ = 0;  // 0 without a trace
  std::uint32_t name_ = 0;
  std::int64_t begin_ns_ = 0;
};

// A span whose times were taken elsewhere, as by events on a GPU's stream; on a track of that name.
DDP_EXPORT void trace_span(std::string_view track, std::string_view name,
                           std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds> begin,
                           std::chrono::time_point<std::chrono::system_clock, std::chrono::nanoseconds> end);

// Whether spans are being kept: for a caller whose own preparations cost something.
[[nodiscard]] DDP_EXPORT bool is_tracing();

}  // namespace DDP_ABI
}  // namespace ddp
