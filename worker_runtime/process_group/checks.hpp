// What one rank alone can see to be wrong with a call, before anything is begun: what reaches a backend is in order.
#pragma once

#include <chrono>

#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::process_group {

// The timeout of `options`, or the group's. Throws InvalidArgument for one below 0; `call` names what it is of.
std::chrono::milliseconds checked_timeout(const ProcessGroup::Impl& group, const CollectiveOptions& options,
                                          const char* call);

// Gives `collective` the timeout and stream of `options`; ranges that this rank does not have come to be empty, and on
// the device of the other. Throws InvalidArgument.
void check(const ProcessGroup::Impl& group, Collective& collective, const CollectiveOptions& options);

}  // namespace ddp::process_group
