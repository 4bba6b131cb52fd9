// What a progress display shows. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ddp::metrics {

struct ProgressState {
  std::string label{};            // empty: the number of the step
  std::uint64_t done = 0;         // steps
  std::uint64_t total = 0;        // 0: not known
  double samples_per_second = 0;  // 0: not known
  std::optional<double> loss{};
  std::optional<std::chrono::seconds> left{};
};

// At most `width` characters. Of what does not fit the bar goes first, then the end.
std::string progress_bar(const ProgressState& state, std::size_t width);

// The same without a bar.
std::string progress_line(const ProgressState& state);

}  // namespace ddp::metrics
