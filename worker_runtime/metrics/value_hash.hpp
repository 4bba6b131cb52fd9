// A hash of 64 bits of many bytes, at about the speed of memory: finds differences, not attacks. Pure.
//
// Four lanes of multiplications, which do not wait for each other. Source: the rounds and constants of xxHash's XXH64,
// https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; the end of the text is treated in another way.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace ddp::metrics {

class ValueHash {
 public:
  // Counts as one piece: add("ab"), add("c") is another hash than add("a"), add("bc").
  void add(const void* data, std::size_t bytes) {
    std::array<std::uint64_t, 4> lanes{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    const auto* from = static_cast<const unsigned char*>(data);
    std::size_t left = bytes;
    for (; left >= sizeof lanes; left -= sizeof lanes, from += sizeof lanes) {
      std::array<std::uint64_t, 4> words;
      std::memcpy(words.data(), from, sizeof words);
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = round(lanes[i], words[i]);
    }
    if (left > 0) {
      std::array<std::uint64_t, 4> words{};
      std::memcpy(words.data(), from, left);
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = round(lanes[i], words[i]);
    }
    for (const std::uint64_t lane : lanes) add(lane);
    add(static_cast<std::uint64_t>(bytes));
  }

  void add(std::uint64_t number) { state_ = std::rotl(state_ ^ round(0, number), 27) * kPrime1 + kPrime4; }

  std::uint64_t value() const {
    std::uint64_t mixed = (state_ ^ (state_ >> 33)) * kPrime2;
    mixed = (mixed ^ (mixed >> 29)) * kPrime3;
    return mixed ^ (mixed >> 32);
  }

 private:
  static constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87;
  static constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4F;
  static constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9;
  static constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63;

  static std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
  }

  std::uint64_t state_ = kPrime3;
};

}  // namespace ddp::metrics
