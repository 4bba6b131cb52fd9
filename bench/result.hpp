// What ddp-bench finds for one number of ranks, and how it is printed. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/settings.hpp"

namespace ddp::bench {

struct Result {
  int ranks = 1;
  std::size_t parameters = 0;  // of the model, exactly
  double samples_per_second = 0;
  double compute_ms = 0;  // these three add up to a step
  double communication_ms = 0;
  double waiting_ms = 0;
  double barrier_us = 0;  // median
};

double step_ms(const Result& result);
double speedup(const Result& result, const Result& one_rank);
double efficiency(const Result& result, const Result& one_rank);

// What rank 0 tells ddp-bench, on one line. Throws Error for another text.
std::string to_line(const Result& result);
Result from_line(std::string_view line);

// "10M parameters, 16 samples per rank and step, 20 steps"
std::string describe(const Settings& settings, std::size_t parameters);

std::string table_head();
std::string table_row(const Result& result, const Result& one_rank);

// results: at least one, the first of one rank.
std::string to_json(const std::vector<Result>& results, const Settings& settings, int core_count);

}  // namespace ddp::bench
