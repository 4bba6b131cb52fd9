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
    case CollectiveKind::reduce: return "reduce";
    case CollectiveKind::gather: return "gather";
    case CollectiveKind::scatter: return "scatter";
    case CollectiveKind::all_to_all: return "all_to_all";
    case CollectiveKind::send: return "send";
    case CollectiveKind::receive: return "receive";
    case CollectiveKind::all_gather_v: return "all_gather_v";
    case CollectiveKind::reduce_scatter_v: return "reduce_scatter_v";
    case CollectiveKind::all_to_all_v: return "all_to_all_v";
  }
  return "a collective that does not exist";
}

const char* name_of(Within within) {
  switch (within) {
    case Within::nothing: return "";
    case Within::split: return "split";
    case Within::new_group: return "new_group";
    case Within::making_a_group: return "the making of a new group";
    case Within::model_check: return "the making of a DistributedDataParallel";
    case Within::unused_check: return "the search for unused parameters";
    case Within::state_sync: return "the exchange of an elastic state";
    case Within::checkpoint: return "saving or loading a checkpoint";
    case Within::all_gather_v: return "all_gather_v";
    case Within::reduce_scatter_v: return "reduce_scatter_v";
    case Within::all_to_all_v: return "all_to_all_v";
  }
  return "?";
}

const char* name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::average: return "average";
    case ReduceOp::product: return "product";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::premul_sum: return "premul_sum";
  }
  return "an operator that does not exist";
}

bool has_op(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ||
         kind == CollectiveKind::reduce || kind == CollectiveKind::reduce_scatter_v;
}

bool has_root(CollectiveKind kind) {
  return kind == CollectiveKind::broadcast || kind == CollectiveKind::reduce || kind == CollectiveKind::gather ||
         kind == CollectiveKind::scatter || kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

}  // namespace ddp::process_group
