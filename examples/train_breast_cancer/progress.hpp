// Shows how training goes: a bar that is drawn over itself on a terminal, a line for each epoch anywhere else.
//
// Threads: one at a time. Writes to standard output, where a launcher and a log file expect it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace train {

struct Progress {
  std::uint64_t epoch = 0;   // index of the one under way
  std::uint64_t epochs = 0;  // to do in all
  std::size_t batch = 0;     // batches done in this epoch
  std::size_t batches = 0;   // of an epoch
  double loss = 0;           // mean over the epoch so far
  double samples_per_second = 0;
};

// One line of exactly `width` characters; what does not fit goes, the bar first.
std::string render_bar(const Progress& progress, std::size_t width);

class ProgressDisplay {
 public:
  // visible: false shows nothing at all, which is for every rank but one
  explicit ProgressDisplay(bool visible);
  ProgressDisplay(const ProgressDisplay&) = delete;
  ProgressDisplay& operator=(const ProgressDisplay&) = delete;
  ~ProgressDisplay();  // ends the bar's line

  void print_line(const std::string& text);
  void batch_done(const Progress& progress);
  void epoch_done(const Progress& progress);

 private:
  void draw(const Progress& progress);
  void end_bar();

  bool visible_;
  bool on_terminal_;
  bool bar_drawn_ = false;
  std::chrono::steady_clock::time_point next_draw_{};
};

}  // namespace train
