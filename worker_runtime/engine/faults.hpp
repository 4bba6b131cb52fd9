// What becomes of the faults of a window that its flags tell all ranks of: they learn the details from each other, and
// throw the same error everywhere.
//
// Threads: as the group.
#pragma once

#include <string>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/engine/plan/plan.hpp"

namespace ddp::gradient_engine {

// The ranks have frozen different parameters. Unlike a MismatchError of a collective it leaves the group usable.
struct FrozenMismatch : MismatchError {
  using MismatchError::MismatchError;
};

// These throw GradientError, or FrozenMismatch, or what the collective failed with. All but the last are collective.
// names: by parameter.
[[noreturn]] void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
                       const FindUnused& action);
[[noreturn]] void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
                       const FindMiscounts& action);
[[noreturn]] void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
                       const FindNonFinite& action);
[[noreturn]] void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
                       const FindFrozen& action);
[[noreturn]] void tell(ProcessGroup& group, CollectiveOptions options, const std::vector<std::string>& names,
                       const TellCancelled& action);

}  // namespace ddp::gradient_engine
