#include "ddp/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "worker_runtime/metrics/progress_text.hpp"

namespace ddp {
namespace {

constexpr std::chrono::milliseconds kDrawInterval{100};
constexpr double kSecondsLeftMax = 1e9;     // more is not shown
constexpr std::size_t kTerminalWidth = 80;  // where a terminal does not know its own

// Asked anew for each drawing, so a window that changes its size is followed.
std::size_t terminal_width(std::FILE* file) {
  winsize size{};
  if (::ioctl(::fileno(file), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kTerminalWidth;
  return size.ws_col;
}

}  // namespace

class Progress::Impl {
 public:
  explicit Impl(ProgressOptions options)
      : options_(std::move(options)), is_on_terminal_(::isatty(::fileno(options_.file)) == 1) {
    if (!options_.clock) options_.clock = [] { return std::chrono::steady_clock::now(); };
    began_ = options_.clock();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() { finish(); }

  void begin(std::uint64_t total, std::uint64_t done) {
    state_.total = total;
    state_.done = first_step_ = done;
    samples_ = 0;
    next_show_ = began_ = options_.clock();
  }

  void step(std::uint64_t samples, std::optional<double> loss) {
    ++state_.done;
    samples_ += samples;
    if (loss) state_.loss = loss;
    is_news_ = true;
    const auto now = options_.clock();
    if (!is_due(now)) return;
    next_show_ = now + (is_on_terminal_ ? kDrawInterval : options_.line_interval);
    show(now);
  }

  void set_label(const std::string& label) { state_.label = label; }

  void print_line(const std::string& text) {
    // A full bar stays; any other moves below the line.
    if (is_bar_drawn_ && state_.done == state_.total) end_bar();
    std::fprintf(options_.file, "%s%s\n", is_bar_drawn_ ? "\r\33[K" : "", text.c_str());
    if (is_bar_drawn_) draw(options_.clock());
    std::fflush(options_.file);  // a pipe or a file would keep it until the end
  }

  void finish() {
    if (is_on_terminal_) return end_bar();
    if (is_news_ && options_.lines) show(options_.clock());
  }

  bool is_on_terminal() const { return is_on_terminal_; }

 private:
  bool is_due(std::chrono::steady_clock::time_point now) const {
    const bool by_steps = !is_on_terminal_ && options_.line_steps > 0;
    if (!is_on_terminal_ && !options_.lines) return false;
    if (by_steps) return state_.done % options_.line_steps == 0;
    return now >= next_show_ || state_.done == state_.total;
  }

  void show(std::chrono::steady_clock::time_point now) {
    is_news_ = false;
    if (is_on_terminal_) return draw(now);
    update_rates(now);
    std::fprintf(options_.file, "%s\n", metrics::progress_line(state_).c_str());
    std::fflush(options_.file);
  }

  void draw(std::chrono::steady_clock::time_point now) {
    update_rates(now);
    // One column stays free: a character in the last one makes some terminals start a new line. \33[K clears the rest.
    const std::size_t width = std::max<std::size_t>(terminal_width(options_.file), 2) - 1;
    std::fprintf(options_.file, "\r%s\33[K", metrics::progress_bar(state_, width).c_str());
    std::fflush(options_.file);
    is_bar_drawn_ = true;
  }

  void end_bar() {
    if (is_news_) show(options_.clock());
    if (!is_bar_drawn_) return;
    std::fputc('\n', options_.file);
    std::fflush(options_.file);
    is_bar_drawn_ = false;
  }

  void update_rates(std::chrono::steady_clock::time_point now) {
    const double seconds = std::chrono::duration<double>(now - began_).count();
    const auto steps = static_cast<double>(state_.done - first_step_);
    state_.samples_per_second = seconds > 0 ? static_cast<double>(samples_) / seconds : 0;
    state_.left.reset();
    if (steps <= 0 || seconds <= 0 || state_.total <= state_.done) return;
    const double left = seconds / steps * static_cast<double>(state_.total - state_.done) + 0.5;
    if (left < kSecondsLeftMax) state_.left = std::chrono::seconds(static_cast<std::int64_t>(left));
  }

  ProgressOptions options_;
  bool is_on_terminal_;
  metrics::ProgressState state_;
  std::uint64_t first_step_ = 0;
  std::uint64_t samples_ = 0;  // since began_
  std::chrono::steady_clock::time_point began_;
  std::chrono::steady_clock::time_point next_show_{};
  bool is_news_ = false;  // there was a step since the last show()
  bool is_bar_drawn_ = false;
};

Progress::Progress(int rank, ProgressOptions options)
    : impl_(rank == 0 ? std::make_unique<Impl>(std::move(options)) : nullptr) {}

Progress::~Progress() = default;
Progress::Progress(Progress&&) noexcept = default;
Progress& Progress::operator=(Progress&&) noexcept = default;

void Progress::begin(std::uint64_t total, std::uint64_t done) {
  if (impl_) impl_->begin(total, done);
}

void Progress::step(std::uint64_t samples, std::optional<double> loss) {
  if (impl_) impl_->step(samples, loss);
}

void Progress::set_label(const std::string& label) {
  if (impl_) impl_->set_label(label);
}

void Progress::print_line(const std::string& text) {
  if (impl_) impl_->print_line(text);
}

void Progress::finish() {
  if (impl_) impl_->finish();
}

bool Progress::is_on_terminal() const { return impl_ && impl_->is_on_terminal(); }

}  // namespace ddp
