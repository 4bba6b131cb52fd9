#include "benchmarks/collectives/measured.hpp"

#include <algorithm>
#include <cstdio>

#include "benchmarks/common/measure.hpp"

namespace ddp::benchmarks {

namespace {

double median_ratio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) ratios.push_back(a[i] / b[i]);
  return median(ratios);
}

double least_of(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

}  // namespace

double ratio(const Figures& column, const Figures& to) { return median_ratio(column.medians, to.medians); }

std::optional<Verdict> verdict_on(const Target& target, const MeasuredRow& measured) {
  const auto ours = measured.of_column.find(target.column);
  if (ours == measured.of_column.end()) return std::nullopt;
  Verdict out;
  out.figure = measured.row.name + (target.is_p99 ? ", p99: " : ": ") + target.column;
  out.at_most = target.at_most;
  if (target.of.empty()) {
    out.of = "us";
    out.measured = median(ours->second.medians) / 1e3;
    out.least = ours->second.least / 1e3;
  } else {
    const Figures* fastest = nullptr;
    for (const std::string& label : target.of) {
      const auto found = measured.of_column.find(label);
      if (found == measured.of_column.end()) continue;
      if (fastest == nullptr || median(found->second.medians) < median(fastest->medians)) {
        fastest = &found->second;
        out.of = "of " + label;
      }
    }
    if (fastest == nullptr) return std::nullopt;
    out.measured = target.is_p99 ? median_ratio(ours->second.p99s, fastest->p99s) : ratio(ours->second, *fastest);
    out.least =
        target.is_p99 ? least_of(ours->second.p99s) / least_of(fastest->p99s) : ours->second.least / fastest->least;
  }
  out.is_met = out.measured <= out.at_most;
  return out;
}

std::string time_text(double ns) {
  const struct {
    double of;
    const char* unit;
  } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
  for (const auto& unit : units) {
    if (ns < unit.of && unit.of > 1) continue;
    const double value = ns / unit.of;
    char text[32];
    std::snprintf(text, sizeof text, "%.*f %s", value < 10 ? 2 : (value < 100 ? 1 : 0), value, unit.unit);
    return text;
  }
  return "";
}

}  // namespace ddp::benchmarks
