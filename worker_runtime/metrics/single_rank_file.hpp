// The samples per second of one rank alone, in a file: what the efficiency of more ranks is measured against.
//   {"ranks":1,"samples_per_second":1234.5}
//
// Threads: any, one at a time for each file.
#pragma once

#include <optional>
#include <string>

namespace ddp::metrics {

// Empty if there is no such file. Throws InvalidArgument if it holds something else.
std::optional<double> read_single_rank_file(const std::string& path);

// Replaces the file in one step. Throws Error.
void write_single_rank_file(const std::string& path, double samples_per_second);

}  // namespace ddp::metrics
