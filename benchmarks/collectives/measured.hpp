// The figures of one row, and what they say of the targets.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/collectives/tables.hpp"

namespace ddp::benchmarks {

// One element for each round; nanoseconds.
struct Figures {
  std::vector<double> medians;
  std::vector<double> p99s;
  double least = 0;  // of all calls, or of all batches of them
};

struct MeasuredRow {
  Row row;
  std::map<std::string, Figures> of_column;  // without those that are left out
};

struct Verdict {
  std::string figure;  // "4 MiB: ours, plain"
  std::string of;      // "of Open MPI tuned", or "us"
  double at_most = 1;
  double measured = 0;  // the median of the rounds' ratios
  double least = 0;     // that of the fastest calls of all: what a busy machine disturbs least
  bool is_met = false;
};

// The median over the rounds of what one column takes as a multiple of another.
double ratio(const Figures& column, const Figures& to);

// Nothing where a column that it needs was left out.
std::optional<Verdict> verdict_on(const Target& target, const MeasuredRow& measured);

std::string time_text(double ns);  // "12.3 us"

}  // namespace ddp::benchmarks
