// The stand-ins for kernels and cuBLAS themselves: what they compute, and that they take no other memory than a GPU
// would.
#include <cublas_v2.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/fake_gpu/host_kernels_launch.hpp"

namespace ddp::fake_gpu {
namespace {

using testing::ElementsAre;

class FakeKernels : public testing::Test {
 protected:
  void TearDown() override { fake_gpu_restart(); }

  static float* on_device(const std::vector<float>& values) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(float)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice), cudaSuccess);
    return static_cast<float*>(memory);
  }
  static std::vector<float> read(const float* memory, std::size_t count) {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), memory, count * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
};

TEST_F(FakeKernels, RunInTheOrderOfTheirStream) {
  float* const memory = on_device({1});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(launch_kernel("double", nullptr, {{memory, 1}}, [memory] { *memory *= 2; }), cudaSuccess);
  }
  EXPECT_THAT(read(memory, 1), ElementsAre(8));
  EXPECT_EQ(fake_gpu_calls("cudaLaunchKernel"), 3U);
}

TEST_F(FakeKernels, LoseTheDeviceWhereTheyTouchOtherMemory) {
  std::vector<float> host(4);
  const struct {
    const char* what;
    std::size_t count;
    bool is_on_host;
  } cases[] = {{"the host's", 4, true}, {"one element beyond", 5, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const float* const memory = c.is_on_host ? host.data() : on_device(host);
    bool has_run = false;
    EXPECT_EQ(launch_kernel("stray", nullptr, {{memory, c.count}}, [&] { has_run = true; }), cudaSuccess);
    static_cast<void>(
        cudaStreamSynchronize(nullptr));  // fails, or not, by whether the kernel has begun before the call
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT_FALSE(has_run);
    fake_gpu_restart();
  }
}

// c (2 by 3) = a (2 by 2) b (2 by 3), by columns, each with a gap below its columns, for all four ways to store the
// factors.
TEST_F(FakeKernels, SgemmMultipliesByColumns) {
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const float* const a = on_device({1, 2, -1, 3, 4});             // (1 3; 2 4)
  const float* const a_transposed = on_device({1, 3, -1, 2, 4});  // (1 2; 3 4)
  const float* const b = on_device({5, 6, -1, 7, 8, -1, 9, 10});
  const float* const b_transposed = on_device({5, 7, 9, -1, 6, 8, 10});
  const float alpha = 1, beta = 0;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      SCOPED_TRACE(std::to_string(ta) + " " + std::to_string(tb));
      float* const c = on_device({-1, -1, -7, -1, -1, -7, -1, -1});
      EXPECT_EQ(cublasSgemm(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, 2, 3, 2, &alpha,
                            ta ? a_transposed : a, 3, tb ? b_transposed : b, tb ? 4 : 3, &beta, c, 3),
                CUBLAS_STATUS_SUCCESS);
      EXPECT_THAT(read(c, 8), ElementsAre(23, 34, -7, 31, 46, -7, 39, 58));
    }
  }
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

TEST_F(FakeKernels, SgemmRefusesColumnsThatAreTooShort) {
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const float one = 1;
  float* const memory = on_device(std::vector<float>(100));
  const auto multiply = [&](cublasOperation_t a, int a_stride, int b_stride, int c_stride) {
    return cublasSgemm(handle, a, CUBLAS_OP_N, 3, 4, 5, &one, memory, a_stride, memory, b_stride, &one, memory,
                       c_stride);
  };
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 5, 3), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 2, 5, 3), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_T, 4, 5, 3), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 4, 3), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 5, 2), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace ddp::fake_gpu
