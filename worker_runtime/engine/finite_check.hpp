// Whether the gradients of a window are finite when they become ready, on whatever device they are.
//
// On a GPU each look is a kernel on the stream, and the host waits in take() only.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ddp/process_group.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/process_group/device_memory.hpp"

namespace ddp::gradient_engine {

class FiniteCheck {
 public:
  FiniteCheck(ProcessGroup& group, std::size_t parameter_count, void* stream);

  // Looks at memory of its own. Throws InvalidArgument if libddp has no kernel for it.
  void try_out();

  // Nothing was found in the window that begins.
  void begin_window();
  void begin_step();

  // The gradient of a parameter is ready.
  void look_at(const MemoryRange& gradient, std::size_t parameter);

  void end_step();

  // Parameters of which a gradient in this window was not finite. Throws what the group failed with.
  std::vector<std::size_t> take();

 private:
  bool is_on_host() const { return words_ == nullptr; }
  MemoryRange words() const;

  std::size_t parameter_count_;
  void* stream_;
  std::shared_ptr<process_group::DeviceMemory> memory_;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic_;
  std::shared_ptr<void> words_;  // on a GPU: for each parameter 1 if it is not finite
  std::vector<std::unique_ptr<process_group::HostCopy>> of_steps_;  // on a GPU: the words of the window's steps
  std::vector<std::size_t> found_;                                  // in host memory
};

}  // namespace ddp::gradient_engine
