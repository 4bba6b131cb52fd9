#include "worker_runtime/process_group/backend.hpp"

namespace ddp::process_group {

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::barrier: return "barrier";
    case CollectiveKind::all_reduce: return "all_reduce";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::all_gather: return "all_gather";
    case CollectiveKind::reduce_scatter: return "reduce_scatter";
    case CollectiveKind::allocate: return "allocate";
  }
  return "a collective that does not exist";
}

}  // namespace ddp::process_group
