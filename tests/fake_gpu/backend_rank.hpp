// A rank of the tests of the backend nccl (tests/nccl) with what only the stand-in has: faults, and a ledger of calls.
//
// Threads: the rank's main thread.
#pragma once

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/nccl/gate.hpp"
#include "tests/nccl/rank.hpp"

namespace ddp::fake_gpu {

using nccl_test::Array;
using nccl_test::Gate;
using nccl_test::join;
using nccl_test::set_variable;

inline void set_faults(const std::string& faults) { set_variable("FAKE_GPU_FAULTS", faults); }

}  // namespace ddp::fake_gpu
