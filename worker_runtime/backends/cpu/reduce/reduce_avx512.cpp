// What is included before the pragma is compiled for any CPU, so nothing that other files share gets AVX-512 from here.
#include "worker_runtime/backends/cpu/reduce/reduce_kernels.hpp"

#if DDP_HAVE_AVX_KERNELS
#include <immintrin.h>

// GCC 12 warns of the values left undefined on purpose in its own header.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#define DDP_VECTOR_BYTES 64
#define DDP_KERNELS kAvx512Kernels
#include "worker_runtime/backends/cpu/reduce/reduce_kernels.inc"
#pragma GCC pop_options
#endif
