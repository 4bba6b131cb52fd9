#include "bench/result.hpp"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "ddp/error.hpp"

namespace ddp::bench {
namespace {

using Json = nlohmann::ordered_json;

template <class... Values>
std::string row_text(const char* form, Values... values) {
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), form, values...);
  return text.data();
}

}  // namespace

double step_ms(const Result& result) { return result.compute_ms + result.communication_ms + result.waiting_ms; }

double speedup(const Result& result, const Result& one_rank) {
  return result.samples_per_second / one_rank.samples_per_second;
}

double efficiency(const Result& result, const Result& one_rank) { return speedup(result, one_rank) / result.ranks; }

std::string to_line(const Result& result) {
  return Json{{"ranks", result.ranks},
              {"parameters", result.parameters},
              {"samples_per_second", result.samples_per_second},
              {"compute_ms", result.compute_ms},
              {"communication_ms", result.communication_ms},
              {"waiting_ms", result.waiting_ms},
              {"barrier_us", result.barrier_us}}
      .dump();
}

Result from_line(std::string_view line) {
  try {
    const Json json = Json::parse(line);
    return {.ranks = json.at("ranks"),
            .parameters = json.at("parameters"),
            .samples_per_second = json.at("samples_per_second"),
            .compute_ms = json.at("compute_ms"),
            .communication_ms = json.at("communication_ms"),
            .waiting_ms = json.at("waiting_ms"),
            .barrier_us = json.at("barrier_us")};
  } catch (const nlohmann::json::exception&) {
    throw Error("rank 0 printed \"" + std::string(line.substr(0, 200)) +
                "\" in place of a result\nwhere: ddp-bench\n"
                "try:   run it again without what changes the output of ddprun");
  }
}

std::string describe(const Settings& settings, std::size_t parameters) {
  const auto count = static_cast<double>(parameters);
  const std::string size = count >= 1e9   ? row_text("%.3gG", count / 1e9)
                           : count >= 1e6 ? row_text("%.3gM", count / 1e6)
                                          : row_text("%.3gk", count / 1e3);
  return size + " parameters, " + std::to_string(settings.batch) + " samples per rank and step, " +
         std::to_string(settings.steps) + " steps";
}

std::string table_head() {
  return "ranks  samples/s  speedup  efficiency  step ms  compute  exposed comm  waiting  barrier us\n";
}

std::string table_row(const Result& result, const Result& one_rank) {
  return row_text("%5d  %9.1f  %7.2f  %8.0f %%  %7.2f  %7.2f  %12.2f  %7.2f  %10.1f\n", result.ranks,
                  result.samples_per_second, speedup(result, one_rank), 100 * efficiency(result, one_rank),
                  step_ms(result), result.compute_ms, result.communication_ms, result.waiting_ms, result.barrier_us);
}

std::string to_json(const std::vector<Result>& results, const Settings& settings, int core_count) {
  Json list = Json::array();
  for (const Result& result : results) {
    list.push_back({{"ranks", result.ranks},
                    {"samples_per_second", result.samples_per_second},
                    {"speedup", speedup(result, results.front())},
                    {"efficiency", efficiency(result, results.front())},
                    {"step_ms", step_ms(result)},
                    {"compute_ms", result.compute_ms},
                    {"communication_ms", result.communication_ms},
                    {"waiting_ms", result.waiting_ms},
                    {"barrier_us", result.barrier_us}});
  }
  return Json{{"cores", core_count},
              {"parameters", results.front().parameters},
              {"batch", settings.batch},
              {"steps", settings.steps},
              {"results", list}}
             .dump(2) +
         "\n";
}

}  // namespace ddp::bench
