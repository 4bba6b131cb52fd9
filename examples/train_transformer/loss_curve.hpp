// The loss over the steps, as a picture.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace transformer {

struct LossPoint {
  std::uint64_t step = 0;
  double loss = 0;
};

// An SVG file with axes, labels and one line. Requires at least one point; their steps rise.
std::string loss_curve_svg(const std::vector<LossPoint>& points, const std::string& title);

// Throws std::runtime_error.
void write_loss_curve(const std::filesystem::path& file, const std::vector<LossPoint>& points,
                      const std::string& title);

}  // namespace transformer
