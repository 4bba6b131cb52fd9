#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "ddp/step_report.hpp"

namespace ddp {
namespace {

double in_milliseconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// About three digits.
std::string milliseconds_text(std::chrono::nanoseconds duration) {
  const double value = in_milliseconds(duration);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", value < 1 ? 3 : value < 100 ? 2 : 0, value);
  return text.data();
}

std::string whole_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.*f", value < 100 ? 1 : 0, value);
  return text.data();
}

}  // namespace

std::string DDP_ABI::to_text(const StepReport& report) {
  std::string line =
      "step " + std::to_string(report.step) + ": " + whole_number(report.samples_per_second) + " samples/s";
  if (report.efficiency) {
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), ", efficiency %.0f %%", 100 * *report.efficiency);
    line += text.data();
  }
  line += "; step " + milliseconds_text(report.compute + report.communication + report.waiting) + " ms: compute " +
          milliseconds_text(report.compute);
  if (report.slowest_rank < 0) return line + ", communication " + milliseconds_text(report.communication);
  line += ", communication " + milliseconds_text(report.communication) + ", waiting " +
          milliseconds_text(report.waiting) + "; rank " + std::to_string(report.slowest_rank) + " was slowest in " +
          std::to_string(report.slowest_steps) + " of " + std::to_string(report.steps) + " steps, by " +
          milliseconds_text(report.slowest_behind) + " ms";
  return line;
}

std::string DDP_ABI::to_json(const StepReport& report) {
  using Json = nlohmann::ordered_json;
  const bool has_slowest = report.slowest_rank >= 0;
  return Json{{"step", report.step},
              {"steps", report.steps},
              {"samples_per_second", report.samples_per_second},
              {"efficiency", report.efficiency ? Json(*report.efficiency) : Json()},
              {"compute_ms", in_milliseconds(report.compute)},
              {"communication_ms", in_milliseconds(report.communication)},
              {"waiting_ms", in_milliseconds(report.waiting)},
              {"slowest_rank", has_slowest ? Json(report.slowest_rank) : Json()},
              {"slowest_steps", report.slowest_steps},
              {"slowest_behind_ms", in_milliseconds(report.slowest_behind)}}
      .dump();
}

}  // namespace ddp
