// Scaling efficiency: the samples per second of N ranks, divided by N times those of one rank.
#pragma once

#include <filesystem>
#include <string>

namespace transformer {

struct Rate {
  std::string model;  // rates of other models are not compared
  int ranks = 1;
  double samples_per_second = 0;
};

// A line for the user. With one rank, writes the rate to `file`; with more, compares it with the rate there.
std::string scaling_efficiency(const Rate& rate, const std::filesystem::path& file);

}  // namespace transformer
