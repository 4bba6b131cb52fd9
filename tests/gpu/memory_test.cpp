// The memory that a group of the backend nccl allocates on a GPU.
#include <cuda.h>
#include <dlfcn.h>
#include <gmock/gmock.h>

#include "tests/nccl/rank.hpp"
#include "worker_runtime/backends/nccl/nccl_library.hpp"

namespace ddp::nccl_test {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;

template <class Function>
Function* driver_function(const char* name) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW);
  return driver == nullptr ? nullptr : reinterpret_cast<Function*>(::dlsym(driver, name));
}

// As ncclMemAlloc makes it, and cudaMalloc does not: of allocations that can be mapped elsewhere, as by another
// process.
bool is_mapped_memory(void* memory) {
  auto* const retain = driver_function<CUresult(CUmemGenericAllocationHandle*, void*)>("cuMemRetainAllocationHandle");
  auto* const release = driver_function<CUresult(CUmemGenericAllocationHandle)>("cuMemRelease");
  CUmemGenericAllocationHandle handle{};
  if (retain == nullptr || release == nullptr || retain(&handle, memory) != CUDA_SUCCESS) return false;
  release(handle);
  return true;
}

TEST(Memory, IsThatOfNcclWhereItHasAny) {
  run_ranks(2, [](int) {
    auto group = join();
    const Array<float> plain(group.device(), 10);
    EXPECT_FALSE(is_mapped_memory(plain.range().data));
    const RegisteredMemory memory = group.allocate(1 << 20);
    const nccl_backend::NcclLibrary& nccl = nccl_backend::NcclLibrary::of_process();
    EXPECT_TRUE(is_mapped_memory(memory.data()))
        << nccl.name() << "; its ncclMemAlloc is a cudaMalloc where NCCL_CUMEM_ENABLE=0, or the driver maps no memory";
    group.all_reduce({memory.data(), 1 << 18, DataType::float32, group.device()});
    group.barrier();
  });
}

TEST(Memory, ThatNoGpuHasIsRefusedAndTheGroupGoesOn) {
  run_ranks(2, [](int) {
    auto group = join();
    const auto error = thrown_by<Error>([&] { group.allocate(std::size_t{1} << 46); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("can't have 70368744177664 bytes of device memory"));
    const RegisteredMemory memory = group.allocate(1000);
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp::nccl_test
