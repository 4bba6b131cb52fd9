// The fake CUDA runtime itself: what the tests of the nccl backend count on.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/fake_gpu/fake_gpu.h"
#include "tests/nccl/gate.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::Gate;

class Cudart : public ::testing::Test {
 protected:
  // With these faults from now on.
  static void restart(const std::string& faults = "") {
    ::setenv("FAKE_GPU_FAULTS", faults.c_str(), 1);
    fake_gpu_restart();
  }
  void SetUp() override { restart(); }
  void TearDown() override {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    restart();
  }

  static cudaStream_t stream(unsigned int flags = cudaStreamNonBlocking) {
    cudaStream_t made = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&made, flags), cudaSuccess);
    return made;
  }
  static cudaEvent_t event(unsigned int flags = cudaEventDisableTiming) {
    cudaEvent_t made = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&made, flags), cudaSuccess);
    return made;
  }
  static char* device_memory(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
    return static_cast<char*>(memory);
  }
  static char* pinned_memory(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMallocHost(&memory, bytes), cudaSuccess);
    return static_cast<char*>(memory);
  }
};

// Appends its number to the log: work that shows the order in which it ran.
struct Step {
  std::vector<int>* log;
  int number;
  void on(cudaStream_t where) {
    cudaLaunchHostFunc(
        where, [](void* step) { static_cast<Step*>(step)->log->push_back(static_cast<Step*>(step)->number); }, this);
  }
};

TEST_F(Cudart, AStreamRunsInOrderAndDoesNotBlockTheHost) {
  const cudaStream_t s = stream();
  Gate gate;
  gate.close(s);
  std::vector<int> log;
  Step first{&log, 1};
  Step second{&log, 2};
  first.on(s);
  second.on(s);
  EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady);
  gate.open();
  EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_EQ(log, (std::vector{1, 2}));
  EXPECT_EQ(cudaStreamQuery(s), cudaSuccess);
}

TEST_F(Cudart, AStreamWaitsForAnEventOfAnother) {
  const cudaStream_t a = stream();
  const cudaStream_t b = stream();
  const cudaEvent_t e = event();
  Gate gate;
  std::vector<int> log;
  Step first{&log, 1};
  Step second{&log, 2};
  gate.close(a);
  first.on(a);
  EXPECT_EQ(cudaEventRecord(e, a), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
  second.on(b);
  EXPECT_EQ(cudaStreamQuery(b), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(e), cudaErrorNotReady);
  gate.open();
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  EXPECT_EQ(log, (std::vector{1, 2}));
  EXPECT_EQ(cudaEventQuery(e), cudaSuccess);
}

TEST_F(Cudart, AWaitIsForTheRecordThatWasTheLatestAtItsCall) {
  const cudaStream_t a = stream();
  const cudaStream_t b = stream();
  const cudaEvent_t e = event();
  EXPECT_EQ(cudaEventQuery(e), cudaSuccess) << "an event that was never recorded";
  EXPECT_EQ(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(e, a), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(b, e, 0), cudaSuccess);
  Gate gate;
  gate.close(a);
  EXPECT_EQ(cudaEventRecord(e, a), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);  // not behind the gate
  EXPECT_EQ(cudaEventQuery(e), cudaErrorNotReady);
  gate.open();
  cudaStreamSynchronize(a);
}

TEST_F(Cudart, TheDefaultStreamWaitsForBlockingStreamsAndTheyForIt) {
  const cudaStream_t blocking = stream(cudaStreamDefault);
  const cudaStream_t free = stream(cudaStreamNonBlocking);
  Gate gate;
  gate.close(blocking);
  std::vector<int> log;
  Step first{&log, 1};
  Step second{&log, 2};
  first.on(nullptr);
  second.on(blocking);
  EXPECT_EQ(cudaStreamSynchronize(free), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  gate.open();
  EXPECT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(log, (std::vector{1, 2}));
}

TEST_F(Cudart, AHostFunctionMustNotCallCuda) {
  cudaError_t seen = cudaSuccess;
  cudaLaunchHostFunc(
      nullptr, [](void* result) { *static_cast<cudaError_t*>(result) = cudaSetDevice(0); }, &seen);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(seen, cudaErrorNotPermitted);
}

TEST_F(Cudart, CopiesGoToAndFromTheDeviceOnTheirStream) {
  const cudaStream_t s = stream();
  char* const device = device_memory(4);
  char* const host = pinned_memory(4);
  std::memcpy(host, "abc", 4);
  EXPECT_EQ(cudaMemcpyAsync(device, host, 4, cudaMemcpyHostToDevice, s), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device + 1, 'x', 1, s), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(host, device, 4, cudaMemcpyDeviceToHost, s), cudaSuccess);
  EXPECT_EQ(fake_gpu_calls("host synchronisation"), 0U);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaSuccess);
  EXPECT_STREQ(host, "axc");
  char pageable[4] = {};
  EXPECT_EQ(cudaMemcpyAsync(pageable, device, 4, cudaMemcpyDeviceToHost, s), cudaSuccess);
  EXPECT_EQ(fake_gpu_calls("host synchronisation"), 2U) << "the host waits for a copy to pageable memory";
  EXPECT_STREQ(pageable, "axc");
}

TEST_F(Cudart, ForeignPointersAreRefused) {
  const cudaStream_t s = stream();
  char* const device = device_memory(8);
  char foreign[8] = {};
  EXPECT_EQ(cudaMemcpyAsync(foreign, foreign, 8, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, foreign, 8, cudaMemcpyDeviceToDevice, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device + 1, foreign, 8, cudaMemcpyHostToDevice, s), cudaErrorInvalidValue)
      << "beyond its end";
  EXPECT_EQ(cudaMemsetAsync(foreign, 0, 8, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device, 0, 9, s), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(foreign), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(device + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  cudaPointerAttributes attributes{};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device + 3), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, foreign), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue) << "twice";
}

TEST_F(Cudart, StaleHandlesAreRefusedAndWhatIsHeldIsCounted) {
  const cudaStream_t s = stream();
  const cudaEvent_t e = event();
  EXPECT_EQ(fake_gpu_live("cudaStream") + fake_gpu_live("cudaEvent"), 2U);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(e), cudaSuccess);
  EXPECT_EQ(fake_gpu_live("cudaStream") + fake_gpu_live("cudaEvent"), 0U);
  EXPECT_EQ(cudaStreamDestroy(s), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(e), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(e, stream()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamWaitEvent(s, event(), 0), cudaErrorInvalidResourceHandle);
}

TEST_F(Cudart, ADestroyedStreamFinishesItsWork) {
  const cudaStream_t s = stream();
  const cudaEvent_t e = event();
  Gate gate;
  gate.close(s);
  std::vector<int> log;
  Step step{&log, 1};
  step.on(s);
  cudaEventRecord(e, s);
  EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  gate.open();
  EXPECT_EQ(cudaEventSynchronize(e), cudaSuccess);
  EXPECT_EQ(log, std::vector{1});
}

TEST_F(Cudart, TimeBetweenEventsNeedsTimedAndCompleteOnes) {
  const cudaStream_t s = stream();
  const cudaEvent_t begin = event(cudaEventDefault);
  const cudaEvent_t end = event(cudaEventDefault);
  const cudaEvent_t untimed = event();
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorInvalidResourceHandle) << "not recorded";
  cudaEventRecord(begin, s);
  cudaEventRecord(untimed, s);
  Gate gate;
  gate.close(s);
  cudaEventRecord(end, s);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  gate.open();
  cudaStreamSynchronize(s);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, untimed), cudaErrorInvalidResourceHandle);
}

TEST_F(Cudart, AnErrorIsTheThreadsUntilItIsAskedFor) {
  EXPECT_EQ(cudaFree(this), cudaErrorInvalidValue);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Cudart, AStickyErrorStaysAndEndsAllWork) {
  restart("cudaEventQuery:2:sticky:700");
  const cudaStream_t s = stream();
  const cudaEvent_t e = event();
  EXPECT_EQ(cudaEventQuery(e), cudaSuccess);
  Gate gate;
  gate.close(s);
  std::vector<int> log;
  Step step{&log, 1};
  step.on(s);
  EXPECT_EQ(cudaEventQuery(e), cudaErrorIllegalAddress);
  gate.open();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
  EXPECT_STREQ(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
  restart();
  EXPECT_TRUE(log.empty());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Cudart, FaultsFailHangAndDelayCalls) {
  restart("cudaMalloc:1:return:2;cudaMemsetAsync:2:hang;cudaEventRecord:1:delay:1");
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  char* const device = device_memory(8);
  const cudaStream_t s = stream();
  const cudaStream_t other = stream();
  EXPECT_EQ(cudaMemsetAsync(device, 1, 8, other), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device, 1, 8, s), cudaSuccess);
  const cudaEvent_t e = event();
  EXPECT_EQ(cudaEventRecord(e, other), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(e), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(s), cudaErrorNotReady) << "it hangs, until TearDown() starts anew";
  EXPECT_EQ(fake_gpu_calls("cudaMemsetAsync"), 2U);
}

TEST_F(Cudart, DevicesAreToldApart) {
  ::setenv("CUDA_VISIBLE_DEVICES", "5,2", 1);
  restart();
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2);
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  int device = 0;
  EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 1);
  char id[32] = {};
  EXPECT_EQ(cudaDeviceGetPCIBusId(id, sizeof id, 1), cudaSuccess);
  EXPECT_STREQ(id, "0000:03:00.0");
  EXPECT_EQ(cudaDeviceGetPCIBusId(id, 5, 1), cudaErrorInvalidValue);
  cudaDeviceProp properties{};
  EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
  EXPECT_EQ(std::memcmp(properties.uuid.bytes, "FAKE", 4), 0);
  EXPECT_EQ(properties.uuid.bytes[15], 5);
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorNoDevice);
}

TEST_F(Cudart, DoesNotSurviveAFork) {
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(cudaSetDevice(0) == cudaErrorInitializationError ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Cudart, AMistakeInAFaultEndsTheProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("FAKE_GPU_FAULTS", "cudaMalloc:hang", 1);
    cudaSetDevice(0);
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

}  // namespace
}  // namespace ddp::fake_gpu
