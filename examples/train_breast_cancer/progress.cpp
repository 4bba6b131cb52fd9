#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace train {
namespace {

constexpr std::chrono::milliseconds kDrawInterval{100};
constexpr std::size_t kBarWidthMax = 40;
constexpr std::size_t kBarWidthMin = 10;    // a smaller one says nothing
constexpr std::size_t kTerminalWidth = 80;  // where a terminal does not know its own

// Asked anew for each drawing, so a window that changes its size is followed.
std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kTerminalWidth;
  return size.ws_col;
}

template <class... Values>
std::string format(const char* form, Values... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), form, values...);
  return text.data();
}

double share_done(const Progress& progress) {
  const double batches = std::max<double>(1, static_cast<double>(progress.batches));
  const double epochs = std::max<double>(1, static_cast<double>(progress.epochs));
  const double done = (static_cast<double>(progress.epoch) + static_cast<double>(progress.batch) / batches) / epochs;
  return std::clamp(done, 0.0, 1.0);
}

std::string epoch_text(const Progress& progress) {
  return format("epoch %*llu/%llu", static_cast<int>(std::to_string(progress.epochs).size()),
                static_cast<unsigned long long>(progress.epoch + 1), static_cast<unsigned long long>(progress.epochs));
}

}  // namespace

std::string render_bar(const Progress& progress, std::size_t width) {
  const double done = share_done(progress);
  const std::string head = epoch_text(progress) + format(" %3d %%", static_cast<int>(100 * done));
  const std::string tail = format("loss %.4f, %.0f samples/s", progress.loss, progress.samples_per_second);
  const std::size_t text_width = head.size() + tail.size() + 4;  // two blanks and the bar's brackets
  std::string line = head;
  if (width >= text_width + kBarWidthMin) {
    const std::size_t bar_width = std::min(kBarWidthMax, width - text_width);
    const auto full = static_cast<std::size_t>(done * static_cast<double>(bar_width));
    line += " [" + std::string(full, '=') + std::string(bar_width - full, ' ') + "] ";
  } else {
    line += " ";
  }
  line += tail;
  line.resize(width, ' ');
  return line;
}

ProgressDisplay::ProgressDisplay(bool visible) : visible_(visible), on_terminal_(::isatty(STDOUT_FILENO) == 1) {}

ProgressDisplay::~ProgressDisplay() { end_bar(); }

void ProgressDisplay::print_line(const std::string& text) {
  if (!visible_) return;
  end_bar();
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);  // a pipe or a file would keep it until the end
}

void ProgressDisplay::batch_done(const Progress& progress) {
  if (!visible_ || !on_terminal_) return;
  if (progress.epoch + 1 == progress.epochs && progress.batch == progress.batches) return;  // epoch_done() draws it
  const auto now = std::chrono::steady_clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawInterval;
  draw(progress);
}

void ProgressDisplay::epoch_done(const Progress& progress) {
  if (!visible_) return;
  if (on_terminal_) {
    if (progress.epoch + 1 == progress.epochs) draw(progress);  // the last one, full, stays
    return;
  }
  print_line(epoch_text(progress) + format("  loss %.4f  %.0f samples/s", progress.loss, progress.samples_per_second));
}

void ProgressDisplay::draw(const Progress& progress) {
  // One column stays free: a character in the last one makes some terminals start a new line. \33[K clears the rest.
  std::printf("\r%s\33[K", render_bar(progress, std::max<std::size_t>(terminal_width(), 2) - 1).c_str());
  std::fflush(stdout);
  bar_drawn_ = true;
}

void ProgressDisplay::end_bar() {
  if (!bar_drawn_) return;
  std::printf("\n");
  std::fflush(stdout);
  bar_drawn_ = false;
}

}  // namespace train
