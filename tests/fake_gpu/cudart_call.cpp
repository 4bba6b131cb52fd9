#include "tests/fake_gpu/cudart_call.hpp"

#include <atomic>
#include <utility>

#include "tests/fake_gpu/streams.hpp"

namespace ddp::fake_gpu {

namespace {

std::atomic<cudaError_t> sticky_error{cudaSuccess};
thread_local cudaError_t last_error_of_thread = cudaSuccess;
thread_local int device_of_thread = 0;

}  // namespace

Begun begin_call(const char* name) {
  const Fault fault = enter(name);
  if (in_forked_child()) return {.error = cudaErrorInitializationError, .fault = {}};
  if (on_stream_thread()) return {.error = cudaErrorNotPermitted, .fault = {}};
  if (fault.kind == Fault::Kind::sticky) make_sticky(static_cast<cudaError_t>(fault.number));
  if (const cudaError_t sticky = sticky_error.load(); sticky != cudaSuccess) return {.error = sticky, .fault = {}};
  if (fault.kind == Fault::Kind::return_code) return {.error = static_cast<cudaError_t>(fault.number), .fault = {}};
  return {.error = cudaSuccess, .fault = fault};
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error_of_thread = error;
  return error;
}

cudaError_t last_error(bool forget) {
  if (const cudaError_t sticky = sticky_error.load(); sticky != cudaSuccess) return sticky;
  return forget ? std::exchange(last_error_of_thread, cudaSuccess) : last_error_of_thread;
}

void make_sticky(cudaError_t error) {
  sticky_error.store(error);
  stop_working();
}

bool device_is_lost() { return sticky_error.load() != cudaSuccess; }

std::function<void()> with_fault(const Fault& fault, std::function<void()> work) {
  if (fault.kind == Fault::Kind::hang) return hang_until_restart;
  if (fault.kind != Fault::Kind::delay) return work;
  return [fault, work = std::move(work)] {
    suffer(fault);
    work();
  };
}

int current_device() { return device_of_thread; }

void set_current_device(int device) { device_of_thread = device; }

void forget_errors() {
  sticky_error.store(cudaSuccess);
  last_error_of_thread = cudaSuccess;
}

}  // namespace ddp::fake_gpu
