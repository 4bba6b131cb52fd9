// Communication hooks that send less than all gradients. They work on float32, in host memory; compressed_all_reduce
// also on a GPU. Making a DistributedDataParallel of anything else throws InvalidArgument. Options out of their ranges
// do so here.
//
// "Memory" below is what a hook takes on each rank, beside the gradients.
//
// Errors: what a hook does not send in a step is added to the gradients of the next one, also after a cancelled step,
//         and on a rank that has called join(). It is in the units of these gradients: with a scaled loss, keep the
//         scale constant. It is a part of the sum over ranks, and is divided when it is sent: with
//         UnevenInputs::divide_by_active by the ranks that are active then. What is sent for gradients that nobody
//         uses (CommunicationHook::parameters_unused) is kept for later again. What a step sends for other gradients
//         is lost if that step fails or is cancelled. Infinite and NaN gradients reach the other ranks, and are not
//         kept.
// State:  complete once the model is made. For the same bits after a restart, buckets must be the same, too.
#pragma once

#include <cstdint>
#include <memory>

#include "ddp/communication_hook.hpp"
#include "ddp/export.hpp"
#include "ddp/memory.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Sends gradients as numbers of 16 bits: half the bytes. A gradient has the precision of `type` afterwards. In host
// memory the numbers are averaged in float32, and the mean is rounded once. On a GPU NCCL multiplies each rank's
// numbers by 1 / size() and adds them, and may round to 16 bits at every step: the error grows with the number of
// ranks, and the bits depend on the algorithm that NCCL takes. All ranks have the same bits. Memory: half of the
// gradients.
struct CompressionOptions {
  DataType type = DataType::bfloat16;  // or float16, whose largest number is 65504: beyond that a gradient is infinite
};
DDP_EXPORT std::shared_ptr<CommunicationHook> compressed_all_reduce(CompressionOptions options = {});

// PowerSGD (Vogels, Karimireddy and Jaggi, 2019): sends a gradient of n rows and m columns as two matrices of (n + m) *
// rank numbers, whose product is the mean gradient as far as a matrix of that rank can be. What is lost is added to the
// next step's gradient. A parameter of shape [n, ...] is a matrix of n rows; one whose matrices would not be smaller by
// `compression_rate_min` is averaged as it is, as are vectors.
//
// Memory: the gradients of the compressed parameters once more, for the errors; the matrices.
// State:  of each compressed parameter <name>, "power_sgd.<name>.error" (this rank's own) and "power_sgd.<name>.q"
//         [rank, m] (the same on all ranks); "power_sgd.step".
struct PowerSgdOptions {
  int rank = 1;                     // of the approximation; > 0
  std::uint64_t start_step = 1000;  // steps with Sync::on before it average exactly: gradients change most at first
  double compression_rate_min = 2;  // > 0; n * m / ((n + m) * rank) must be more
  bool error_feedback = true;       // without it, what is lost is lost. Saves the memory for errors
  bool warm_start = true;           // each step goes on with the last step's q, else with random ones
  double epsilon = 0;               // >= 0; added to a column's norm when it is divided by that
  std::uint64_t seed = 0;           // of the first q; the same on all ranks
};
DDP_EXPORT std::shared_ptr<CommunicationHook> power_sgd(PowerSgdOptions options = {});

// Sends the largest gradients of each bucket, by magnitude, with their places; the others are added to the next step's.
// Each rank chooses its own. A rank receives 2 * ratio * size() times the bytes of its gradients, which pays off with
// few ranks. The errors of a frozen parameter compete with the gradients of its bucket for what is sent, in vain:
// freeze parameters whose errors are small, or all of a bucket.
//
// Memory: the gradients once more, for the errors; the largest bucket; what is sent and received.
// State:  "top_k.<name>.error" of each parameter, this rank's own.
struct TopKOptions {
  double ratio = 0.01;  // 0 < ratio <= 1: the part of a bucket's elements that is sent, at least one
};
DDP_EXPORT std::shared_ptr<CommunicationHook> top_k(TopKOptions options = {});

}  // namespace DDP_ABI
}  // namespace ddp
