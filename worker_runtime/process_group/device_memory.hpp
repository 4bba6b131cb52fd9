// What the library itself does with memory on a device, beside the collectives: zeroes it, copies it to the host and
// back, and writes and looks at the flags by which ranks tell each other of unused parameters.
//
// `stream` is that of CollectiveOptions: a call is in order behind what the stream holds, and before what it is given
// later. In host memory there is no stream, and all is done when a call returns.
//
// Lifetime: it does not need the group that it was taken from, nor that group's communicator: it serves also after they
//           have failed.
// Threads:  any; one caller at a time for each object.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ddp/memory.hpp"

namespace ddp::process_group {

// One element of a float32 or float64 range: 0 where it is not raised. A sum or average of flags over ranks is 0 only
// where all wrote 0.
struct Flag {
  MemoryRange range;
  std::size_t index = 0;
};

// A look at flags that is under way.
class FlagReading {
 public:
  virtual ~FlagReading() = default;

  // Whether one of them was raised. Waits until that is known, no longer than the collectives before it may take;
  // throws what they failed with.
  virtual bool is_raised() = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Device device() const = 0;

  virtual void zero(const MemoryRange& range, void* stream) = 0;
  virtual void write_flag(const Flag& flag, bool is_raised, void* stream) = 0;

  // Whether a FlagReading knows at once, without making the host wait for a device. Else it is looked at a step later.
  virtual bool reads_at_once() const = 0;

  // Begins to look at the flags as they are on the stream then. The flags may be written anew on it at once.
  virtual std::unique_ptr<FlagReading> begin_read_flags(std::span<const Flag> flags, void* stream) = 0;

  // Waits until the device has done all that this process gave it, on whatever stream. Of the host: nothing.
  virtual void wait_for_all() = 0;

  // These return when the copy is there: both sides may be used at once. They wait for the device, and so are not for
  // the inside of a step.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, void* stream) = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes, void* stream) = 0;
};

// Of host memory.
std::shared_ptr<DeviceMemory> host_memory();

}  // namespace ddp::process_group
