// What is included before the pragma is compiled for any CPU, so nothing that other files share gets AVX2 from here.
#include "worker_runtime/backends/cpu/reduce/reduce_kernels.hpp"

#if DDP_HAVE_AVX_KERNELS
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#define DDP_VECTOR_BYTES 32
#define DDP_KERNELS kAvx2Kernels
#include "worker_runtime/backends/cpu/reduce/reduce_kernels.inc"
#pragma GCC pop_options
#endif
