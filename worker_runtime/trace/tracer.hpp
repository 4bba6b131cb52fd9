// The trace of this process: whoever has something to show adds it here; ddp/trace.hpp is its public face.
//
// Threads: any. Fork: a forked child has a tracer of its own, with no trace.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "worker_runtime/trace/timeline.hpp"

namespace ddp::trace {

// Whether there is a trace: to be asked first, as it is all that most processes ever pay.
bool is_on();

struct Span {
  std::string_view track;
  std::string_view name;
  TimePoint begin{};
  TimePoint end{};
  std::optional<CollectiveFacts> collective{};
};

class Tracer {
 public:
  // Begins one that is written to `path`, in place of one that was begun by `is_default`. Returns its number, above 0.
  // Throws as ddp::Trace. An `is_default` begins nothing where there is, or was, another: then it returns 0.
  std::uint64_t begin(const std::string& path, std::size_t events_max, bool is_default);

  // Ends it and writes its file; does nothing where it has ended. Throws Error.
  void finish(std::uint64_t recording);

  // At the end of the process, however it comes: what goes wrong is said on stderr.
  void finish_last(bool is_sudden) noexcept;

  void add(const Span& span);

  // Of a TraceSpan: the number of a name, and the span once it has ended, if the same trace still goes on.
  struct Name {
    std::uint64_t recording = 0;
    std::uint32_t text = 0;
  };
  Name name(std::string_view name);
  void add_thread_span(const Name& name, TimePoint begin, TimePoint end);

 private:
  struct Recording {
    std::uint64_t number = 0;
    std::string path;
    bool is_default = false;
    Timeline timeline;
  };

  static void write(const Recording& recording);

  std::mutex mutex_;
  std::optional<Recording> recording_;  // guarded by mutex_, as is all that follows
  bool has_begun_ = false;
};

// The one of this process.
Tracer& tracer();

// Which rank this process is; until then the environment's RANK says it.
void set_rank(int rank);

// Begins the trace that DDP_TRACE=prefix asks for. Says on stderr where it can't.
void begin_default(const std::string& prefix, int rank);

}  // namespace ddp::trace
