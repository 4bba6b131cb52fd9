// Streams of the fake: each is a thread that does its work in order. What waits for work of another stream waits for a
// point of it.
//
// Threads: any. Work runs with no lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ddp::fake_gpu {

class Stream;

// Is reached once the first `done` pieces of work of a stream are done; an empty one is reached always.
struct Point {
  std::shared_ptr<Stream> stream;
  std::uint64_t done = 0;
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
Point last_point(const std::shared_ptr<Stream>& stream);
std::vector<Point> last_points(int device);  // of all its streams, also of closed ones that are still at work

bool reached(const Point& point);
// Returns early, with false, when `give_up` turns true; whoever brings that about calls wake_waiting() after it.
bool wait_for(const Point& point, const std::function<bool()>& give_up = nullptr);
void wake_waiting();

// Work that is not yet begun is counted as done, but not done: the device is lost.
void stop_working();

// Work that never ends, or only by end_all_streams().
void hang_until_restart();

// Whether the caller is work of a stream, which must not call CUDA.
bool on_stream_thread();

// Lets go what hangs, waits for all work, ends all threads and works again.
void end_all_streams();

}  // namespace ddp::fake_gpu
