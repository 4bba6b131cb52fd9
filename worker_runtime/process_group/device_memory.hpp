// What the library itself does with memory on a device, beside the collectives: zeroes it, and copies it to the host
// and back.
//
// `stream` is that of CollectiveOptions: a call is in order behind what the stream holds, and before what it is given
// later. In host memory there is no stream, and all is done when a call returns.
//
// Lifetime: it does not need the group that it was taken from, nor that group's communicator: it serves also after they
//           have failed.
// Threads:  any; one caller at a time for each object.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "ddp/memory.hpp"

namespace ddp::process_group {

// A copy of a few bytes of the device that is on the way to the host.
class HostCopy {
 public:
  virtual ~HostCopy() = default;

  // Waits until the bytes are there, no longer than the collectives before may take; throws what these failed with. The
  // bytes live as long as this object.
  virtual std::span<const std::byte> bytes() = 0;
};

// The number that was copied. Waits and throws as bytes().
template <class Number>
Number value_of(HostCopy& copy) {
  Number number{};
  std::memcpy(&number, copy.bytes().data(), sizeof number);
  return number;
}

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;

  // Whether what the stream is given becomes part of a CUDA graph, and is not done now.
  virtual bool is_captured(void* stream) const {
    static_cast<void>(stream);
    return false;
  }

  virtual void zero(const MemoryRange& range, void* stream) = 0;

  // Both sides are on the device.
  virtual void copy(void* to, const void* from, std::size_t bytes, void* stream) = 0;

  // Memory of the device, all zeros for what the stream is given later. Not for the inside of a step: to allocate it,
  // or to give it back, may wait for the device. Throws Error where there is none.
  virtual std::shared_ptr<void> allocate(std::size_t bytes, void* stream) = 0;

  // For a few bytes, inside of a step: neither makes the host wait.
  // Writes `bytes`, which the caller may change when the call returns.
  virtual void write(void* to, std::span<const std::byte> bytes, void* stream) = 0;
  // Begins to copy what is there on the stream then. It may be written anew on the stream at once.
  virtual std::unique_ptr<HostCopy> begin_read(const void* from, std::size_t bytes, void* stream) = 0;

  // Waits until the device has done all that this process gave it, on whatever stream. Of the host: nothing.
  virtual void wait_for_all() = 0;

  // These return when all copies are there: both sides may be used at once. They wait for the device, once for all of
  // them, and so are not for the inside of a step. What is not of allocate_on_host(), is more than 1 MiB together, and
  // goes to the device costs a second wait.
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  virtual void copy_to_host(std::span<const Copy> copies, void* stream) = 0;
  virtual void copy_from_host(std::span<const Copy> copies, void* stream) = 0;

  // Host memory for such copies, of any contents, which may outlive this object: of a GPU pinned, where that can be
  // had.
  virtual std::shared_ptr<std::byte[]> allocate_on_host(std::size_t bytes) = 0;
};

// Of host memory.
std::shared_ptr<DeviceMemory> host_memory();

}  // namespace ddp::process_group
