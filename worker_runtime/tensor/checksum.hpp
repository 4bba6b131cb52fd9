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

// One that many threads compute at once, in any order: of data cut into blocks of kHashBlock bytes, the last one filled
// with zeros, the sum of what hash_of_block() makes of each block's checksum and number. It does not know how many
// zeros were filled in.
constexpr std::size_t kHashBlock = 1024;
constexpr std::uint64_t hash_of_block(std::uint64_t checksum, std::uint64_t number) {
  std::uint64_t mixed = checksum + (number + 1) * 0x9e3779b97f4a7c15;  // 2^64 by the golden ratio
  mixed = (mixed ^ (mixed >> 37)) * 0x165667919e3779f9;                // as XXH3 ends
  return mixed ^ (mixed >> 32);
}
std::uint64_t hash_by_blocks(std::span<const std::byte> data);

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
