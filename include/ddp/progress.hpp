// Shows how training goes, once for the whole job: a bar that is redrawn in place if the stream is a terminal, and
// plain lines elsewhere.
//
//   ddp::Progress progress(world.rank());
//   progress.begin(steps);
//   for (...) {
//     ...
//     progress.step(world.size() * batch_size, loss);
//   }
//
//   step  412/1000  41 % [================                        ] loss 0.0812, 5120 samples/s, 0:42 left
//
// Under ddprun a worker's stream is a terminal where ddprun's is one, so the bar is seen there too.
//
// Rank 0 shows everything; on other ranks all calls do nothing. Takes no collective: the loss is that of rank 0, or
// what the program has averaged. Threads: one at a time. What cannot be written is lost, without an error.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Options of a Progress.
struct ProgressOptions {
  std::FILE* file = stdout;  // open as long as the Progress
  // Where the stream is no terminal: a line in the first step, then at most one in this time, and one at the end.
  std::chrono::milliseconds line_interval{10'000};
  std::uint64_t line_steps = 0;                                    // > 0: a line every so many steps instead
  bool lines = true;                                               // false: none but print_line()
  std::function<std::chrono::steady_clock::time_point()> clock{};  // empty: std::chrono::steady_clock
};

// The bar, or the lines, of one run; an example is at the top of this file.
class DDP_EXPORT Progress {
 public:
  // rank: of the whole job. Only rank 0 shows anything.
  explicit Progress(int rank, ProgressOptions options = {});
  ~Progress();  // as finish()
  Progress(Progress&&) noexcept;
  Progress& operator=(Progress&&) noexcept;

  // Rates count from here, and so do steps: `done` of `total` are behind, after resuming. A total of 0 is not known:
  // there is no bar then, and no time left. Without a call, the construction counts as begin(0).
  void begin(std::uint64_t total, std::uint64_t done = 0);

  // One step is done, with so many samples of all ranks. A loss stays until the next is given.
  void step(std::uint64_t samples, std::optional<double> loss = {});

  // What stands before the share done, such as "epoch 3/30". Empty: the number of the step.
  void set_label(const std::string& label);

  // A line of the program's own. On a terminal it comes above the bar.
  void print_line(const std::string& text);

  // Shows the last state, and ends the bar's line. The next step() begins a new one.
  void finish();

  // Whether there is a bar. False on other ranks than 0.
  bool is_on_terminal() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace DDP_ABI
}  // namespace ddp
