#include "bench/plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace ddp::bench {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 440;
constexpr double kLeft = 64;  // of the area in which lines are drawn
constexpr double kTop = 76;
constexpr double kRight = kWidth - 28;
constexpr double kBottom = kHeight - 58;
constexpr double kLabelDistance = 30;  // labels of the x axis that are closer would touch
constexpr double kTicksMax = 8;        // of the y axis
constexpr const char* kInk = "#333333";
constexpr const char* kGrid = "#e4e4e4";
constexpr const char* kIdeal = "#9a9a9a";
constexpr const char* kMeasured = "#1f6fb4";

template <class... Values>
std::string svg_text(const char* form, Values... values) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), form, values...);
  return text.data();
}

std::string line_between(double x1, double y1, double x2, double y2, const char* colour, const char* more) {
  return svg_text("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" %s/>\n", x1, y1, x2, y2, colour,
                  more);
}

std::string words_at(double x, double y, const char* anchor, const std::string& words, const char* more = "") {
  return svg_text("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" %s>", x, y, anchor, more) + words + "</text>\n";
}

// 1, 2 or 5 times a power of ten, so that there are at most kTicksMax ticks.
double tick_distance(double max) {
  for (double power = 0.1;; power *= 10) {
    for (const double factor : {1, 2, 5}) {
      if (max / (factor * power) <= kTicksMax) return factor * power;
    }
  }
}

// Both axes begin at 0.
class Axes {
 public:
  Axes(double x_max, double y_max) : x_max_(x_max), y_max_(y_max) {}
  double x(double ranks) const { return kLeft + (kRight - kLeft) * ranks / x_max_; }
  double y(double speedup) const { return kBottom - (kBottom - kTop) * speedup / y_max_; }
  double y_max() const { return y_max_; }

 private:
  double x_max_;
  double y_max_;
};

std::string grid(const Axes& axes) {
  std::string svg;
  const double distance = tick_distance(axes.y_max());
  for (int i = 0; i * distance <= axes.y_max() + 1e-9; ++i) {
    const double y = axes.y(i * distance);
    svg += line_between(kLeft, y, kRight, y, i == 0 ? kInk : kGrid, "stroke-width=\"1\"");
    svg += words_at(kLeft - 10, y + 4, "end", svg_text("%g", i * distance));
  }
  return svg + words_at(20, (kTop + kBottom) / 2, "middle", "speedup over one rank",
                        svg_text("transform=\"rotate(-90 20 %.1f)\"", (kTop + kBottom) / 2).c_str());
}

// From the right, because the largest number of ranks always has its label.
std::string rank_labels(const Axes& axes, const std::vector<PlotPoint>& points) {
  std::string svg;
  double last = kWidth + kLabelDistance;
  for (auto point = points.rbegin(); point != points.rend(); ++point) {
    const double x = axes.x(point->ranks);
    svg += line_between(x, kBottom, x, kBottom + 5, kInk, "stroke-width=\"1\"");
    if (last - x < kLabelDistance) continue;
    svg += words_at(x, kBottom + 20, "middle", std::to_string(point->ranks));
    last = x;
  }
  return svg + words_at((kLeft + kRight) / 2, kBottom + 44, "middle", "ranks");
}

std::string measured(const Axes& axes, const std::vector<PlotPoint>& points) {
  std::string path;
  std::string dots;
  double last = -kLabelDistance;
  for (const PlotPoint& point : points) {
    const double x = axes.x(point.ranks);
    const double y = axes.y(point.speedup);
    path += svg_text("%s%.1f,%.1f", path.empty() ? "" : " ", x, y);
    dots += svg_text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y, kMeasured);
    if (point.ranks == 1 || x - last < kLabelDistance + 8) continue;  // that of one rank is 1 by definition
    dots += words_at(x, y + 20, "middle", svg_text("%.2f", point.speedup), svg_text("fill=\"%s\"", kMeasured).c_str());
    last = x;
  }
  return "<polyline points=\"" + path + svg_text("\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", kMeasured) +
         dots;
}

// Beside the title.
std::string legend() {
  constexpr double kX = kRight - 108;
  constexpr double kY = 26;
  return line_between(kX, kY, kX + 28, kY, kMeasured, "stroke-width=\"2\"") +
         svg_text("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", kX + 14, kY, kMeasured) +
         words_at(kX + 36, kY + 4, "start", "measured") +
         line_between(kX, kY + 20, kX + 28, kY + 20, kIdeal, "stroke-width=\"2\" stroke-dasharray=\"6 4\"") +
         words_at(kX + 36, kY + 24, "start", "ideal");
}

}  // namespace

std::string speedup_plot(const std::vector<PlotPoint>& points, const std::string& subtitle) {
  const int ranks_max = points.back().ranks;
  double speedup_max = ranks_max;
  for (const PlotPoint& point : points) speedup_max = std::max(speedup_max, point.speedup);
  const Axes axes(ranks_max * 1.08, speedup_max * 1.08);
  std::string svg = svg_text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "font-family=\"DejaVu Sans, Verdana, Arial, sans-serif\" font-size=\"13\" fill=\"%s\">\n",
      kWidth, kHeight, kWidth, kHeight, kInk);
  svg += svg_text("<rect width=\"%g\" height=\"%g\" fill=\"#ffffff\"/>\n", kWidth, kHeight);
  svg += words_at(kLeft, 30, "start", "Speedup of data-parallel training", "font-size=\"17\" font-weight=\"bold\"");
  svg += words_at(kLeft, 50, "start", subtitle, "font-size=\"12\" fill=\"#666666\"");
  svg += grid(axes) + rank_labels(axes, points);
  svg += line_between(axes.x(0), axes.y(0), axes.x(ranks_max), axes.y(ranks_max), kIdeal,
                      "stroke-width=\"2\" stroke-dasharray=\"6 4\"");
  return svg + measured(axes, points) + legend() + "</svg>\n";
}

}  // namespace ddp::bench
