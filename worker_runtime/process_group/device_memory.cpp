#include "worker_runtime/process_group/device_memory.hpp"

#include <cstring>

namespace ddp::process_group {

namespace {

class KnownFlags : public FlagReading {
 public:
  explicit KnownFlags(bool is_raised) : is_raised_(is_raised) {}
  bool is_raised() override { return is_raised_; }

 private:
  bool is_raised_;
};

class HostMemory : public DeviceMemory {
 public:
  Device device() const override { return {}; }

  void zero(const MemoryRange& range, void*) override {
    if (range.count > 0) std::memset(range.data, 0, range.bytes());
  }

  void write_flag(const Flag& flag, bool is_raised, void*) override {
    if (flag.range.type == DataType::float64) {
      static_cast<double*>(flag.range.data)[flag.index] = is_raised ? 1.0 : 0.0;
    } else {
      static_cast<float*>(flag.range.data)[flag.index] = is_raised ? 1.0F : 0.0F;
    }
  }

  bool reads_at_once() const override { return true; }

  std::unique_ptr<FlagReading> begin_read_flags(std::span<const Flag> flags, void*) override {
    bool any = false;
    for (const Flag& flag : flags) any = any || is_raised(flag);
    return std::make_unique<KnownFlags>(any);
  }

  void wait_for_all() override {}
  void copy_to_host(void* to, const void* from, std::size_t bytes, void*) override { copy(to, from, bytes); }
  void copy_from_host(void* to, const void* from, std::size_t bytes, void*) override { copy(to, from, bytes); }

 private:
  static bool is_raised(const Flag& flag) {
    if (flag.range.type == DataType::float64) return static_cast<const double*>(flag.range.data)[flag.index] != 0.0;
    return static_cast<const float*>(flag.range.data)[flag.index] != 0.0F;
  }

  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
};

}  // namespace

std::shared_ptr<DeviceMemory> host_memory() { return std::make_shared<HostMemory>(); }

}  // namespace ddp::process_group
