// What collectives_benchmark measures: its tables, their rows, and how much each figure of ours may be.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/common/sides/request.hpp"

namespace ddp::benchmarks {

struct Column {
  std::string label;
  std::string side;  // in the catalogue
  std::string memory = "plain";
};

// At most `at_most` times the fastest of the columns `of`; where there are none, `at_most` microseconds.
struct Target {
  std::string column;  // of ours
  double at_most = 1;
  std::vector<std::string> of{};
  bool is_p99 = false;  // of single calls, instead of the median
};

enum class Pace {
  fresh,      // buffers rewritten before each call
  in_a_row,   // batches of calls back to back, of a millisecond or more
  each_call,  // calls back to back, each with a time of its own
};

struct Row {
  std::string name;
  std::string what;
  std::size_t bytes = 0;
  Pace pace = Pace::fresh;
  std::vector<Target> targets{};
  double floor_factor = 1;  // what the floor moves is counted so many times
};

struct Table {
  std::string key;  // for --rows
  std::string title;
  int ranks = 2;
  std::vector<Column> columns;  // the ratios are to the first
  std::vector<Row> rows;
};

std::vector<Table> all_tables();

// Without the sides that take long, and without the largest buffers.
std::vector<Table> quick_tables();

}  // namespace ddp::benchmarks
