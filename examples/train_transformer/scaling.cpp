#include "scaling.hpp"

#include <cstdio>
#include <fstream>
#include <stdexcept>

namespace transformer {
namespace {

std::string unknown(const std::string& why) { return "scaling efficiency: unknown, " + why; }

std::string store(const Rate& rate, const std::filesystem::path& file) {
  std::ofstream out(file);
  out << rate.model << '\n' << rate.samples_per_second << '\n' << std::flush;
  if (!out) {
    throw std::runtime_error("can't write the rate of one rank\nwhere: " + file.string() +
                             "\ntry:   --baseline with a file in a folder that exists");
  }
  return "rate of one rank written to " + file.string();
}

}  // namespace

std::string scaling_efficiency(const Rate& rate, const std::filesystem::path& file) {
  if (file.empty()) return unknown("because --baseline names no file with the rate of one rank");
  if (rate.ranks == 1) return store(rate, file);
  std::ifstream in(file);
  std::string model;
  double one = 0;
  if (!std::getline(in, model) || !(in >> one) || one <= 0) {
    return unknown("because " + file.string() + " has no rate: run once with one rank to store it there");
  }
  if (model != rate.model) return unknown("because the rate in " + file.string() + " is of " + model);
  char text[128];
  std::snprintf(text, sizeof text, "scaling efficiency: %.1f %% (%.0f samples/s with %d ranks, %.0f with one)",
                100 * rate.samples_per_second / (rate.ranks * one), rate.samples_per_second, rate.ranks, one);
  return text;
}

}  // namespace transformer
