#include "worker_runtime/metrics/progress_text.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace ddp::metrics {
namespace {

constexpr std::size_t kBarWidthMax = 40;
constexpr std::size_t kBarWidthMin = 10;  // a smaller one says nothing

template <class... Values>
std::string progress_format(const char* form, Values... values) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), form, values...);
  return text.data();
}

double share_done(const ProgressState& state) {
  if (state.total == 0) return 0;
  return std::clamp(static_cast<double>(state.done) / static_cast<double>(state.total), 0.0, 1.0);
}

// "step  412/1000  41 %"; the number has the width of the total, so that the bar stays where it is.
std::string progress_head(const ProgressState& state) {
  std::string head = state.label;
  if (head.empty()) {
    const std::string total = std::to_string(state.total);
    const std::string done = std::to_string(state.done);
    const std::size_t blanks = total.size() > done.size() ? total.size() - done.size() : 0;
    head = "step " + std::string(blanks, ' ') + done + (state.total == 0 ? "" : "/" + total);
  }
  if (state.total == 0) return head;
  return head + progress_format(" %3d %%", static_cast<int>(100 * share_done(state)));
}

// "0:42", "1:02:03", "3 d 4:05:06".
std::string duration_text(std::chrono::seconds duration) {
  const auto count = static_cast<long long>(duration.count());
  const long long days = count / 86'400;
  const long long hours = count / 3'600 % 24;
  const long long minutes = count / 60 % 60;
  const long long seconds = count % 60;
  if (days > 0) return progress_format("%lld d %lld:%02lld:%02lld", days, hours, minutes, seconds);
  if (hours > 0) return progress_format("%lld:%02lld:%02lld", hours, minutes, seconds);
  return progress_format("%lld:%02lld", minutes, seconds);
}

std::string progress_tail(const ProgressState& state) {
  std::string tail;
  const auto add = [&](const std::string& part) { tail += (tail.empty() ? "" : ", ") + part; };
  if (state.loss) add(progress_format("loss %.4f", *state.loss));
  if (state.samples_per_second > 0) {
    add(progress_format("%.*f samples/s", state.samples_per_second < 10 ? 1 : 0, state.samples_per_second));
  }
  if (state.left) add(duration_text(*state.left) + " left");
  return tail;
}

}  // namespace

std::string progress_bar(const ProgressState& state, std::size_t width) {
  std::string line = progress_head(state);
  const std::string tail = progress_tail(state);
  const std::size_t text_width = line.size() + tail.size() + 4;  // two blanks and the bar's brackets
  if (state.total > 0 && width >= text_width + kBarWidthMin) {
    const std::size_t bar_width = std::min(kBarWidthMax, width - text_width);
    const auto full = static_cast<std::size_t>(share_done(state) * static_cast<double>(bar_width));
    line += " [" + std::string(full, '=') + std::string(bar_width - full, ' ') + "]";
  }
  if (!tail.empty()) line += " " + tail;
  return line.substr(0, width);
}

std::string progress_line(const ProgressState& state) {
  const std::string tail = progress_tail(state);
  return progress_head(state) + (tail.empty() ? "" : "  " + tail);
}

}  // namespace ddp::metrics
