// A premul_sum: a plain sum of elements that each rank has multiplied by its factor before, in memory of its own. So no
// rank needs another's factor, all ranks get the same bits, and nothing of the caller's is written before all ranks
// have called the same.
//
// Threads: any.
#pragma once

#include <functional>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::cpu_backend {

inline bool is_premultiplied(const process_group::Collective& collective) {
  return collective.op == ReduceOp::premul_sum;
}

// Calls `exchange` once with the same collective on multiplied elements. Requires is_premultiplied().
using Exchange = std::function<void(const process_group::Collective& sum)>;
void exchange_premultiplied(const process_group::Collective& collective, const Exchange& exchange);

}  // namespace ddp::cpu_backend
