// How many bytes a rank sends, from the traces that the ranks of a side left.
//
// A trace has each collective that reached the process group, with its bytes: also those by which the engine agrees on
// something. Ranks of one host share memory and send nothing, so the bytes are those of the usual ring between hosts,
// as NCCL and Gloo count them: of N ranks each sends 2 (N - 1) / N of the buffer in an all_reduce, and (N - 1) / N of
// the larger buffer in an all_gather, in a reduce_scatter and, on average over the ranks, in a broadcast.
#pragma once

#include <string>
#include <vector>

namespace ddp::benchmarks {

// The mean over ranks. paths: the file of each rank. Throws std::runtime_error for a file that can't be read, and a
// collective that is not one of these.
double sent_bytes(const std::vector<std::string>& paths);

}  // namespace ddp::benchmarks
