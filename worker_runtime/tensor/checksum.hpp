// The checksum of bytes: XXH3 with 64 bits. It finds differences, not attacks. Pure.
//
// Source: https://github.com/Cyan4973/xxHash
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ddp::tensor {

std::uint64_t checksum_of(std::span<const std::byte> data);

// Of data that come one piece after the other.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::span<const std::byte> data);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddp::tensor
