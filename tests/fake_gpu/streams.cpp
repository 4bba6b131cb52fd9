#include "tests/fake_gpu/streams.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::fake_gpu {

namespace {

struct Piece {
  std::function<void()> work;
  std::vector<Point> after;
};

}  // namespace

// Guarded by Engine::mutex.
class Capture {
 public:
  const Stream* origin = nullptr;
  std::vector<std::function<void()>> works;
  std::map<const Stream*, std::uint64_t>
      not_joined;  // of the other streams: how many works there were after their last
  bool is_spoilt = false;
  bool is_over = false;
};

class Stream {
 public:
  StreamOptions options;
  bool legacy = false;
  // Guarded by Engine::mutex, as is all that follows.
  std::thread thread;
  std::deque<Piece> queue;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  bool closing = false;
  std::shared_ptr<Capture> capture;  // may be over
};

namespace {

// One lock for all streams: they are few and their work is short or does not hold it.
struct Engine {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Stream>> streams;  // whose threads have not ended
  std::vector<std::thread> ended;                // by end_all_streams(), for it to join
  bool lost = false;
  bool ending = false;
};

// Never destroyed: streams may still be at work when the process exits.
Engine& engine() {
  static Engine& one = *new Engine;
  return one;
}

thread_local bool is_stream_thread = false;

bool is_reached(const Point& point) {
  return point.capture == nullptr && (point.stream == nullptr || point.stream->done >= point.done);
}

bool can_begin(const Stream& stream) {
  return !stream.queue.empty() &&
         std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(), is_reached);
}

void serve(const std::shared_ptr<Stream>& stream) {
  is_stream_thread = true;
  Engine& at = engine();
  std::unique_lock lock(at.mutex);
  for (;;) {
    at.changed.wait(lock, [&] { return can_begin(*stream) || (stream->closing && stream->queue.empty()); });
    if (stream->queue.empty()) break;
    Piece piece = std::move(stream->queue.front());
    stream->queue.pop_front();
    const bool lost = at.lost;
    lock.unlock();
    if (!lost) piece.work();
    piece = {};  // what it holds may take the lock when it is let go
    lock.lock();
    ++stream->done;
    at.changed.notify_all();
  }
  if (at.ending) {
    at.ended.push_back(std::move(stream->thread));
  } else {
    stream->thread.detach();
  }
  at.streams.erase(std::find(at.streams.begin(), at.streams.end(), stream));
  at.changed.notify_all();
}

// With the lock held, which the new thread takes first.
std::shared_ptr<Stream> start(std::shared_ptr<Stream> stream) {
  stream->thread = base::start_quiet_thread([stream] { serve(stream); });
  engine().streams.push_back(stream);
  return stream;
}

std::shared_ptr<Capture> capture_of(const Stream& stream) {
  return stream.capture && !stream.capture->is_over ? stream.capture : nullptr;
}

Point end_of(const std::shared_ptr<Stream>& stream) {
  if (auto capture = capture_of(*stream)) return {stream, capture->works.size(), std::move(capture)};
  return {stream, stream->enqueued};
}

// What CUDA makes every piece of work of the legacy stream wait for, and every piece of a blocking one.
void add_implicit_waits(const Stream& stream, std::vector<Point>& after) {
  if (!stream.options.blocking) return;
  for (const auto& other : engine().streams) {
    const bool related = other->options.blocking && other->options.device == stream.options.device;
    if (related && other->legacy != stream.legacy) after.push_back({other, other->enqueued});
  }
}

Point add(const std::shared_ptr<Stream>& stream, std::function<void()> work, std::vector<Point> after) {
  if (const auto capture = capture_of(*stream)) {
    capture->works.push_back(std::move(work));
    if (stream.get() != capture->origin) capture->not_joined[stream.get()] = capture->works.size();
    return end_of(stream);
  }
  add_implicit_waits(*stream, after);
  stream->queue.push_back({std::move(work), std::move(after)});
  ++stream->enqueued;
  engine().changed.notify_all();
  return end_of(stream);
}

}  // namespace

std::shared_ptr<Stream> open_stream(const StreamOptions& options) {
  auto stream = std::make_shared<Stream>();
  stream->options = options;
  const std::lock_guard lock(engine().mutex);
  return start(std::move(stream));
}

std::shared_ptr<Stream> legacy_stream(int device) {
  Engine& at = engine();
  const std::lock_guard lock(at.mutex);
  for (const auto& stream : at.streams) {
    if (stream->legacy && stream->options.device == device && !stream->closing) return stream;
  }
  auto stream = std::make_shared<Stream>();
  stream->options.device = device;
  stream->legacy = true;
  return start(std::move(stream));
}

int device_of(const Stream& stream) { return stream.options.device; }

void close_stream(const std::shared_ptr<Stream>& stream) {
  Engine& at = engine();
  const std::lock_guard lock(at.mutex);
  stream->closing = true;
  at.changed.notify_all();
}

Point enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> work, std::vector<Point> after) {
  const std::lock_guard lock(engine().mutex);
  return add(stream, std::move(work), std::move(after));
}

bool enqueue_wait(const std::shared_ptr<Stream>& stream, std::function<void()> work, const Point& point) {
  const std::lock_guard lock(engine().mutex);
  const auto capture = capture_of(*stream);
  if (point.capture == nullptr) {
    if (capture != nullptr) return false;
    add(stream, std::move(work), {point});
    return true;
  }
  if (point.capture->is_over || (capture != nullptr && capture != point.capture)) return false;
  stream->capture = point.capture;
  if (stream.get() == point.capture->origin) {
    const auto joined = point.capture->not_joined.find(point.stream.get());
    if (joined != point.capture->not_joined.end() && joined->second <= point.done) {
      point.capture->not_joined.erase(joined);
    }
  }
  add(stream, std::move(work), {});
  return true;
}

bool begin_capture(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(engine().mutex);
  if (stream->legacy || capture_of(*stream)) return false;
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream.get();
  return true;
}

bool is_captured(const Stream& stream) {
  const std::lock_guard lock(engine().mutex);
  return capture_of(stream) != nullptr;
}

bool is_any_captured() {
  const std::lock_guard lock(engine().mutex);
  const auto& streams = engine().streams;
  return std::any_of(streams.begin(), streams.end(), [](const auto& each) { return capture_of(*each) != nullptr; });
}

void spoil_captures() {
  const std::lock_guard lock(engine().mutex);
  for (const auto& stream : engine().streams) {
    if (const auto capture = capture_of(*stream)) capture->is_spoilt = true;
  }
}

std::optional<Captured> end_capture(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(engine().mutex);
  const auto capture = capture_of(*stream);
  if (capture == nullptr || capture->origin != stream.get()) return std::nullopt;
  capture->is_over = true;
  return Captured{std::move(capture->works), capture->is_spoilt, capture->not_joined.empty()};
}

Point last_point(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(engine().mutex);
  return end_of(stream);
}

std::vector<Point> last_points(int device) {
  Engine& at = engine();
  const std::lock_guard lock(at.mutex);
  std::vector<Point> points;
  for (const auto& stream : at.streams) {
    if (stream->options.device == device) points.push_back(end_of(stream));
  }
  return points;
}

bool reached(const Point& point) {
  const std::lock_guard lock(engine().mutex);
  return is_reached(point);
}

bool wait_for(const Point& point, const std::function<bool()>& give_up) {
  Engine& at = engine();
  std::unique_lock lock(at.mutex);
  at.changed.wait(lock, [&] { return is_reached(point) || (give_up && give_up()); });
  return is_reached(point);
}

void wake_waiting() {
  Engine& at = engine();
  const std::lock_guard lock(at.mutex);
  at.changed.notify_all();
}

void stop_working() {
  Engine& at = engine();
  const std::lock_guard lock(at.mutex);
  at.lost = true;
}

void hang_until_restart() {
  Engine& at = engine();
  std::unique_lock lock(at.mutex);
  at.changed.wait(lock, [&] { return at.ending; });
}

bool on_stream_thread() { return is_stream_thread; }

void end_all_streams() {
  Engine& at = engine();
  std::unique_lock lock(at.mutex);
  at.ending = true;
  for (const auto& stream : at.streams) stream->closing = true;
  at.changed.notify_all();
  at.changed.wait(lock, [&] { return at.streams.empty(); });
  at.ending = false;
  at.lost = false;
  std::vector<std::thread> ended = std::exchange(at.ended, {});
  lock.unlock();
  for (std::thread& thread : ended) thread.join();  // whoever forks now is alone
}

}  // namespace ddp::fake_gpu
