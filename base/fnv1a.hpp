// FNV-1a of 64 bits: finds mistakes, not attacks. Source: Fowler, Noll and Vo,
// http://www.isthe.com/chongo/tech/comp/fnv.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ddp::base {

class Fnv1a {
 public:
  void add(std::string_view text) {
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  // As one step, though it is not a byte as in the source: quicker, and as good for numbers that are small.
  void add(std::uint64_t number) { state_ = (state_ ^ number) * 0x100000001b3; }

  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

inline std::uint64_t fnv1a(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.value();
}

}  // namespace ddp::base
