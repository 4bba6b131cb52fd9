// Writes lines to a descriptor that belongs to others too, such as stderr. A thread of its own does, so the caller
// never waits for a reader, a terminal or a disk. The descriptor's mode stays as it is: others share it. (poll() is no
// help: it reports room, another writer takes it, and the write waits.)
//
// Drop rule: at most kQueuedBytesMax wait for the thread. A line that does not fit is dropped and counted, as on
// ddprun's console (bounded_output.hpp): a line tells how many were dropped, once half of the memory is free again.
//
// The thread starts with the first line. While no thread can be had, lines wait as if the reader did not read.
//
// Threads: any. Fork: of use in the process only that made it.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace ddp::base {

class LineWriter {
 public:
  static constexpr std::size_t kQueuedBytesMax = 1 << 20;

  // Each line begins with `prefix`. `program` begins the line that tells the count.
  LineWriter(int descriptor, const std::string& program, std::string prefix = "");
  // Waits up to 2 s until all is written. A thread that still waits is left behind.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;

  // What a line holds of others is made printable, so it stays one line. A line is cut to what a pipe takes at once.
  void operator()(const std::string& line);

  // Waits until all is written, which is true then, or until the limit is over.
  bool flush(std::chrono::milliseconds limit);

 private:
  struct Queue;
  static void write_all(Queue& queue);

  const std::string prefix_;
  std::shared_ptr<Queue> queue_;  // also the thread's
};

}  // namespace ddp::base
