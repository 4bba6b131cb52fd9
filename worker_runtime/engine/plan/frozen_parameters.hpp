// Which parameters are frozen: on this rank, and as all ranks agreed on last.
//
// Pure. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddp::gradient_engine {

class FrozenParameters {
 public:
  explicit FrozenParameters(std::size_t parameter_count) : own_(parameter_count), agreed_(parameter_count) {}

  void set(std::size_t parameter, bool is_frozen);
  bool is_frozen(std::size_t parameter) const { return own_[parameter]; }
  const std::vector<bool>& own() const { return own_; }

  // A number >= 0 of the parameters that are frozen here; 0 for none. Other parameters give another number, but for one
  // case in 2^31.
  std::int32_t hash() const { return hash_; }

  // Whether the parameters frozen here are others than all ranks agreed on.
  bool is_changed() const { return own_ != agreed_; }

  // All ranks have frozen what is frozen here.
  void agree() { agreed_ = own_; }
  const std::vector<bool>& agreed() const { return agreed_; }

 private:
  std::vector<bool> own_;     // by parameter
  std::vector<bool> agreed_;  // by parameter
  std::int32_t hash_ = 0;
};

}  // namespace ddp::gradient_engine
