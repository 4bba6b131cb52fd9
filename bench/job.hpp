// Measures with one number of ranks: starts them by the ddprun beside this program, and takes what rank 0 prints.
//
// Threads: one, the main one; no other may run.
#pragma once

#include "bench/result.hpp"
#include "bench/settings.hpp"
#include "ddp/error.hpp"

namespace ddp::bench {

// The measurement failed, and the ranks or ddprun have said why on standard error.
class JobFailed : public Error {
 public:
  using Error::Error;
};

// Throws JobFailed; Error if ddprun can't be started, std::system_error for want of descriptors or processes. When this
// process dies, ddprun gets a SIGTERM.
Result measure_with(int ranks, const Settings& settings);

}  // namespace ddp::bench
