// Streams of the fake: each is a thread that does its work in order. What waits for work of another stream waits for a
// point of it. What is given to a stream that is being captured is kept, in the order in which it was given, and not
// done.
//
// Threads: any. Work runs with no lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ddp::fake_gpu {

class Stream;
class Capture;

// Is reached once the first `done` pieces of work of a stream are done; an empty one is reached always. In a capture:
// behind the first `done` pieces of it, never reached.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t done = 0;
  std::shared_ptr<Capture> capture{};
};

struct StreamOptions {
  int device = 0;
  bool blocking = true;  // waits for the device's legacy stream, and that one for it
};

// Throws std::system_error where no thread can be had.
std::shared_ptr<Stream> open_stream(const StreamOptions& options);
// The stream that a null handle means; made when it is first asked for.
std::shared_ptr<Stream> legacy_stream(int device);
int device_of(const Stream& stream);

// Its thread ends when its work is done; returns at once.
void close_stream(const std::shared_ptr<Stream>& stream);

// Adds work that begins once all before it is done and all points of `after` are reached. Returns the point of its end.
Point enqueue(const std::shared_ptr<Stream>& stream, std::function<void()> work, std::vector<Point> after = {});
// False, and nothing added, where a captured stream and one that is not, or is in another capture, would wait for each
// other. A stream that waits for a point of a capture takes part in it.
bool enqueue_wait(const std::shared_ptr<Stream>& stream, std::function<void()> work, const Point& point);
Point last_point(const std::shared_ptr<Stream>& stream);
std::vector<Point> last_points(int device);  // of all its streams, also of closed ones that are still at work

bool reached(const Point& point);
// Returns early, with false, when `give_up` turns true; whoever brings that about calls wake_waiting() after it.
bool wait_for(const Point& point, const std::function<bool()>& give_up = nullptr);
void wake_waiting();

// False where it is being captured already, or is the legacy stream.
bool begin_capture(const std::shared_ptr<Stream>& stream);
bool is_captured(const Stream& stream);
bool is_any_captured();
void spoil_captures();  // by a call that is not allowed meanwhile
struct Captured {
  std::vector<std::function<void()>> works;
  bool is_spoilt = false;
  bool is_joined = true;  // the stream waits for all that others have in the capture
};
// Nothing where the capture did not begin on this stream.
std::optional<Captured> end_capture(const std::shared_ptr<Stream>& stream);

// Work that is not yet begun is counted as done, but not done: the device is lost.
void stop_working();

// Work that never ends, or only by end_all_streams().
void hang_until_restart();

// Whether the caller is work of a stream, which must not call CUDA.
bool on_stream_thread();

// Lets go what hangs, waits for all work, ends all threads and works again.
void end_all_streams();

}  // namespace ddp::fake_gpu
