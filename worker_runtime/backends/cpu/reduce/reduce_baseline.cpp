#include "worker_runtime/backends/cpu/reduce/reduce_kernels.hpp"

#define DDP_VECTOR_BYTES 16
#define DDP_KERNELS kBaselineKernels
#include "worker_runtime/backends/cpu/reduce/reduce_kernels.inc"
