// What the gradient engine itself costs in a group of one rank: for each step, each parameter and each bucket, in
// instructions and in nanoseconds.
//
// A step here is begin_step(), ready() of each parameter, and finish(), without a model. Steps of several numbers of
// parameters and of buckets give the three unknowns. Instructions come from the processor's counter
// (perf_event_open), or, on a machine that has none, from callgrind, which this program starts if it is on PATH.
#pragma once

namespace ddp::benchmarks {

int print_overhead();  // the exit status

// So many steps, for callgrind to count.
int make_steps(const char* parameters, const char* buckets, const char* steps);

}  // namespace ddp::benchmarks
