#include "worker_runtime/trace/tracer.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <utility>

#include "base/host_name.hpp"
#include "base/process_wide.hpp"
#include "ddp/error.hpp"
#include "ddp/trace.hpp"
#include "worker_runtime/files/whole_file.hpp"

namespace ddp::trace {

namespace {

std::atomic<bool> on{false};
std::atomic<int> known_rank{-1};
std::atomic<std::uint64_t> recordings_begun{0};
std::terminate_handler terminate_before = nullptr;

TimePoint now() { return std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now()); }

[[noreturn]] void fail(const std::string& what) {
  throw Error(
      what +
      "\nwhere: the trace of this process\ntry:   a file in a folder that exists and that this user may write to");
}

void complain(const char* what) { std::fprintf(stderr, "libddp: %s\n", what); }

[[noreturn]] void terminate_after_writing() {
  tracer().finish_last(true);
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

void watch_end_of_process() {
  static std::once_flag once;
  std::call_once(once, [] {
    std::atexit([] { tracer().finish_last(false); });
    terminate_before = std::set_terminate(terminate_after_writing);
  });
}

int present_rank() {
  if (const int rank = known_rank.load(); rank >= 0) return rank;
  const char* const rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

// "train 4711": its name as the kernel has it, and its number.
std::string thread_track() {
  char name[16] = "thread";
  ::pthread_getname_np(::pthread_self(), name, sizeof name);
  return std::string(name) + " " + std::to_string(::gettid());
}

}  // namespace

bool is_on() { return on.load(std::memory_order_relaxed); }

Tracer& tracer() { return base::process_wide<Tracer>(); }

std::uint64_t Tracer::begin(const std::string& path, std::size_t events_max, bool is_default) {
  if (events_max == 0) throw InvalidArgument("a trace of no events\nwhere: ddp::Trace\ntry:   events_max above 0");
  const std::lock_guard lock(mutex_);
  if (is_default && has_begun_) return 0;
  if (recording_ && !recording_->is_default) {
    throw InvalidArgument("a trace is being written to " + recording_->path +
                          "\nwhere: ddp::Trace\ntry:   finish() it before the next one");
  }
  try {
    const files::WholeFile can_be_written(path);
  } catch (const std::system_error& error) {
    fail(error.what());
  }
  watch_end_of_process();
  has_begun_ = true;
  recording_.emplace(Recording{++recordings_begun, path, is_default, Timeline(events_max)});
  on.store(true, std::memory_order_relaxed);
  return recording_->number;
}

void Tracer::finish(std::uint64_t number) {
  std::optional<Recording> finished;
  {
    const std::lock_guard lock(mutex_);
    if (!recording_ || recording_->number != number) return;
    on.store(false, std::memory_order_relaxed);
    finished = std::exchange(recording_, std::nullopt);
  }
  try {
    write(*finished);
  } catch (const std::system_error& error) {
    fail(error.what());
  }
}

void Tracer::finish_last(bool is_sudden) noexcept {
  try {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!is_sudden) {
      lock.lock();
    } else if (!lock.try_lock()) {
      return complain("the trace is not written, because the process ends in the midst of one of its events");
    }
    if (!recording_) return;
    on.store(false, std::memory_order_relaxed);
    const std::optional<Recording> finished = std::exchange(recording_, std::nullopt);
    write(*finished);
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

void Tracer::write(const Recording& recording) {
  files::WholeFile file(recording.path);
  recording.timeline.write({present_rank(), ::getpid(), base::host_name()},
                           [&](std::string_view text) { file.append(text); });
  file.commit();
}

void Tracer::add(const Span& span) {
  const std::lock_guard lock(mutex_);
  if (!recording_) return;
  Timeline& timeline = recording_->timeline;
  timeline.add({timeline.text(span.track), timeline.text(span.name), span.begin, span.end, span.collective});
}

Tracer::Name Tracer::name(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (!recording_) return {};
  return {recording_->number, recording_->timeline.text(name)};
}

void Tracer::add_thread_span(const Name& name, TimePoint begin, TimePoint end) {
  static thread_local Name track;  // of this thread in the present trace
  const std::lock_guard lock(mutex_);
  if (!recording_ || recording_->number != name.recording) return;
  if (track.recording != name.recording) track = {name.recording, recording_->timeline.text(thread_track())};
  recording_->timeline.add({track.text, name.text, begin, end, std::nullopt});
}

void set_rank(int rank) { known_rank.store(rank); }

void begin_default(const std::string& prefix, int rank) {
  try {
    tracer().begin(prefix + std::to_string(rank) + ".json", TraceOptions{}.events_max, true);
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

}  // namespace ddp::trace

namespace ddp {

Trace::Trace(const std::string& path, const TraceOptions& options)
    : session_(trace::tracer().begin(path, options.events_max, false)) {}

Trace::~Trace() {
  try {
    finish();
  } catch (const std::exception& error) {
    trace::complain(error.what());
  }
}

void Trace::finish() {
  if (const auto session = std::exchange(session_, 0); session != 0) trace::tracer().finish(session);
}

TraceSpan::TraceSpan(std::string_view name) {
  if (!trace::is_on()) return;
  const auto named = trace::tracer().name(name);
  session_ = named.recording;
  name_ = named.text;
  begin_ns_ = trace::now().time_since_epoch().count();
}

TraceSpan::~TraceSpan() {
  if (session_ == 0) return;
  trace::tracer().add_thread_span({session_, name_}, trace::TimePoint(std::chrono::nanoseconds(begin_ns_)),
                                  trace::now());
}

void DDP_ABI::trace_span(std::string_view track, std::string_view name, trace::TimePoint begin, trace::TimePoint end) {
  if (trace::is_on()) trace::tracer().add({track, name, begin, end, std::nullopt});
}

bool DDP_ABI::is_tracing() { return trace::is_on(); }

}  // namespace ddp
