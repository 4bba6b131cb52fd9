#include "loss_curve.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace transformer {
namespace {

// Of the picture, in pixels.
constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 70;
constexpr double kRight = 25;
constexpr double kTop = 50;
constexpr double kBottom = 60;

// An axis from a round number to a round number, with marks at round distances.
struct Axis {
  double first = 0;
  double last = 1;
  double distance = 1;  // of marks
  double pixel_of_first = 0;
  double pixel_of_last = 0;

  // With as many decimals as the distance of marks has.
  std::string label(double value) const {
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", std::max(0, static_cast<int>(-std::floor(std::log10(distance)))), value);
    return text;
  }

  double pixel(double value) const {
    return pixel_of_first + (value - first) / (last - first) * (pixel_of_last - pixel_of_first);
  }
};

// 1, 2 or 5 times a power of ten, so that there are at most about `marks` marks.
double round_distance(double range, int marks) {
  const double least = range / marks;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least) return factor * power;
  }
  return 10 * power;
}

Axis axis_over(double low, double high, int marks) {
  if (high <= low) high = low + 1;
  Axis axis;
  axis.distance = round_distance(high - low, marks);
  axis.first = axis.distance * std::floor(low / axis.distance);
  axis.last = axis.distance * std::ceil(high / axis.distance);
  return axis;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string attribute(const char* name, double value) {
  char text[64];
  std::snprintf(text, sizeof text, " %s=\"%.1f\"", name, value);
  return text;
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) + attribute("y2", y2) +
         " stroke=\"" + colour + "\"/>\n";
}

// more: further attributes.
std::string text(double x, double y, const std::string& words, const std::string& more) {
  return "<text" + attribute("x", x) + attribute("y", y) + " " + more + ">" + words + "</text>\n";
}

std::string escaped(const std::string& words) {
  std::string result;
  for (const char c : words) {
    if (c == '<') {
      result += "&lt;";
    } else if (c == '&') {
      result += "&amp;";
    } else {
      result += c;
    }
  }
  return result;
}

// Numbers and lines at the marks of both axes, and what the axes are.
std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  const double half = 0.5;
  for (double value = y.first; value <= y.last + half * y.distance; value += y.distance) {
    svg += line(kLeft, y.pixel(value), kWidth - kRight, y.pixel(value), "#dddddd");
    svg += text(kLeft - 8, y.pixel(value) + 4, y.label(value), "text-anchor=\"end\"");
  }
  for (double value = x.first; value <= x.last + half * x.distance; value += x.distance) {
    svg += line(x.pixel(value), kHeight - kBottom, x.pixel(value), kHeight - kBottom + 5, "#333333");
    svg += text(x.pixel(value), kHeight - kBottom + 20, x.label(value), "text-anchor=\"middle\"");
  }
  svg += line(kLeft, kTop, kLeft, kHeight - kBottom, "#333333");
  svg += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#333333");
  svg += text((kLeft + kWidth - kRight) / 2, kHeight - 15, "step", "text-anchor=\"middle\"");
  const double middle = (kTop + kHeight - kBottom) / 2;
  svg += text(20, middle, "loss (nats per character)",
              "text-anchor=\"middle\" transform=\"rotate(-90 20 " + number(middle) + ")\"");
  return svg;
}

}  // namespace

std::string loss_curve_svg(const std::vector<LossPoint>& points, const std::string& title) {
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.loss < b.loss; });
  Axis x = axis_over(0, static_cast<double>(points.back().step), 10);
  x.pixel_of_first = kLeft;
  x.pixel_of_last = kWidth - kRight;
  Axis y = axis_over(low->loss, high->loss, 8);
  y.pixel_of_first = kHeight - kBottom;
  y.pixel_of_last = kTop;

  std::string svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"" + attribute("width", kWidth) +
                    attribute("height", kHeight) + " viewBox=\"0 0 " + number(kWidth) + " " + number(kHeight) +
                    "\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#333333\">\n";
  svg += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
  svg += text(kWidth / 2, 28, escaped(title), "text-anchor=\"middle\" font-size=\"16\"");
  svg += grid(x, y);
  svg += "<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\" points=\"";
  for (const LossPoint& point : points) {
    char pair[64];
    std::snprintf(pair, sizeof pair, "%.1f,%.1f ", x.pixel(static_cast<double>(point.step)), y.pixel(point.loss));
    svg += pair;
  }
  return svg + "\"/>\n</svg>\n";
}

void write_loss_curve(const std::filesystem::path& file, const std::vector<LossPoint>& points,
                      const std::string& title) {
  std::ofstream out(file);
  out << loss_curve_svg(points, title) << std::flush;
  if (!out) {
    throw std::runtime_error("can't write the loss curve\nwhere: " + file.string() +
                             "\ntry:   --loss-curve with a file in a folder that exists");
  }
}

}  // namespace transformer
