// Random numbers that are the same on every machine and in every version: SplitMix64, keyed by several numbers.
// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014; constants by S. Vigna.
//
// The standard library's distributions differ from one library to the next, so none is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace ddp::sampler {

constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15U;

constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

// One number of several. Their order and number count: {1} and {0, 1} give different hashes.
constexpr std::uint64_t hash_of(std::initializer_list<std::uint64_t> words) {
  std::uint64_t hash = 0;
  for (const std::uint64_t word : words) hash = mix(hash + kGoldenGamma + word);
  return hash;
}

class RandomWords {
 public:
  explicit constexpr RandomWords(std::uint64_t seed) : seed_(seed) {}
  constexpr RandomWords(std::initializer_list<std::uint64_t> key) : seed_(hash_of(key)) {}

  // The word at a place of the sequence, without those before.
  constexpr std::uint64_t at(std::uint64_t place) const { return mix(seed_ + (place + 1) * kGoldenGamma); }

  constexpr std::uint64_t next() { return at(next_++); }

  // Evenly distributed over 0 to end - 1. Requires end >= 1.
  constexpr std::uint64_t below(std::uint64_t end) {
    // The last words before 2^64 would make some numbers more likely: those with no whole block of `end` words.
    std::uint64_t word = next();
    while (word - word % end > 0 - end) word = next();
    return word % end;
  }

  // Fisher and Yates's shuffle of [first, last).
  template <class Iterator>
  constexpr void shuffle(Iterator first, Iterator last) {
    for (auto count = static_cast<std::uint64_t>(last - first); count > 1; --count) {
      std::swap(first[static_cast<std::ptrdiff_t>(count - 1)], first[static_cast<std::ptrdiff_t>(below(count))]);
    }
  }

 private:
  std::uint64_t seed_;
  std::uint64_t next_ = 0;
};

// The kinds of samplers, as they enter the hash SamplerPosition::order. The numbers are part of checkpoints.
enum class Kind : std::uint64_t { distributed = 1, evaluation = 2, weighted = 3, chunked = 4, stream = 5 };

}  // namespace ddp::sampler
