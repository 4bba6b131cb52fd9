// The calls of cuBLAS that examples/train_mlp_cuda makes, by plain loops on the stand-in's streams.
#include <cublas_v2.h>

#include <cstdint>
#include <cstring>

#include "tests/fake_gpu/host_kernels_launch.hpp"

// cuBLAS's own name for what a handle points at.
struct cublasContext {
  cudaStream_t stream = nullptr;
  cublasMath_t mode = CUBLAS_DEFAULT_MATH;
};

namespace {

// By columns, as cuBLAS has them: element (i, j) is at [i + j * stride].
struct Matrix {
  const float* data;
  std::size_t stride;
  bool is_transposed;

  float at(std::size_t i, std::size_t j) const { return is_transposed ? data[j + i * stride] : data[i + j * stride]; }
};

struct Product {
  std::size_t m, n, k;
  Matrix a, b;
  float alpha, beta;
  float* c;
  std::size_t c_stride;
  bool use_tf32;
};

// To nearest with 10 bits of mantissa.
float to_tf32(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0x1000U) & ~0x1fffU;
  std::memcpy(&value, &bits, sizeof bits);
  return value;
}

// c is not read where beta is 0: it may be anything then.
void multiply(const Product& p) {
  for (std::size_t j = 0; j < p.n; ++j) {
    for (std::size_t i = 0; i < p.m; ++i) {
      float sum = 0;
      for (std::size_t l = 0; l < p.k; ++l) {
        const float a = p.a.at(i, l), b = p.b.at(l, j);
        sum += p.use_tf32 ? to_tf32(a) * to_tf32(b) : a * b;
      }
      float& c = p.c[i + j * p.c_stride];
      c = p.alpha * sum + (p.beta == 0 ? 0 : p.beta * c);
    }
  }
}

// From the first element to the last of a matrix of so many rows and columns.
std::size_t extent(int rows, int columns, int stride) {
  return static_cast<std::size_t>(columns - 1) * static_cast<std::size_t>(stride) + static_cast<std::size_t>(rows);
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

// Waits for the device, as cuBLAS does.
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  cudaDeviceSynchronize();
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t a_operation, cublasOperation_t b_operation,
                              int m, int n, int k, const float* alpha, const float* a, int a_stride, const float* b,
                              int b_stride, const float* beta, float* c, int c_stride) {
  const bool is_a_transposed = a_operation != CUBLAS_OP_N, is_b_transposed = b_operation != CUBLAS_OP_N;
  const int a_rows = is_a_transposed ? k : m, b_rows = is_b_transposed ? n : k;
  if (m < 0 || n < 0 || k < 0 || a_stride < a_rows || b_stride < b_rows || c_stride < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  const auto size = [](int value) { return static_cast<std::size_t>(value); };
  const Product product{size(m),
                        size(n),
                        size(k),
                        {a, size(a_stride), is_a_transposed},
                        {b, size(b_stride), is_b_transposed},
                        *alpha,
                        *beta,
                        c,
                        size(c_stride),
                        handle->mode == CUBLAS_TF32_TENSOR_OP_MATH};
  const cudaError_t error =
      ddp::fake_gpu::launch_kernel("cublasSgemm", handle->stream,
                                   {{a, k == 0 ? 0 : extent(a_rows, is_a_transposed ? m : k, a_stride)},
                                    {b, k == 0 ? 0 : extent(b_rows, is_b_transposed ? k : n, b_stride)},
                                    {c, extent(m, n, c_stride)}},
                                   [product] { multiply(product); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "another status";
  }
}

}  // extern "C"
