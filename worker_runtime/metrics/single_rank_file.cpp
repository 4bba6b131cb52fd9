#include "worker_runtime/metrics/single_rank_file.hpp"

#include "base/json_depth.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/files/whole_file.hpp"

#include <array>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

namespace ddp::metrics {
namespace {

constexpr const char* kSamplesPerSecond = "samples_per_second";
constexpr std::size_t kBytesMax = 4096;
constexpr int kDepthMax = 8;

std::optional<double> figure_in(std::string_view text) {
  if (base::is_nested_deeper(text, kDepthMax)) return std::nullopt;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains(kSamplesPerSecond)) return std::nullopt;
  const auto& value = json.at(kSamplesPerSecond);
  if (!value.is_number() || !(value.get<double>() > 0)) return std::nullopt;
  return value.get<double>();
}

}  // namespace

std::optional<double> read_single_rank_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::array<char, kBytesMax> text{};
  file.read(text.data(), text.size());
  const auto figure = figure_in({text.data(), static_cast<std::size_t>(file.gcount())});
  if (figure) return figure;
  throw InvalidArgument(path + " has no samples per second of one rank\nwhere: the efficiency of training steps\n" +
                        "try:   another path, or remove the file: a run with one rank writes it");
}

void write_single_rank_file(const std::string& path, double samples_per_second) {
  const nlohmann::ordered_json json{{"ranks", 1}, {kSamplesPerSecond, samples_per_second}};
  try {
    files::WholeFile file(path);
    file.append(json.dump() + "\n");
    file.commit();
  } catch (const std::system_error& error) {
    throw Error(std::string(error.what()) + "\nwhere: the samples per second of one rank\ntry:   another path");
  }
}

}  // namespace ddp::metrics
