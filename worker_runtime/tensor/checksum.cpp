#include "worker_runtime/tensor/checksum.hpp"

#include <algorithm>
#include <array>

// Its functions can only be inlined if they are optimised: see CMakeLists.txt.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddp::tensor {

struct Checksum::State {
  XXH3_state_t state;
};

std::uint64_t checksum_of(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

std::uint64_t hash_by_blocks(std::span<const std::byte> data) {
  std::uint64_t sum = 0, number = 0;
  for (; data.size() >= kHashBlock; data = data.subspan(kHashBlock)) {
    sum += hash_of_block(checksum_of(data.first<kHashBlock>()), number++);
  }
  if (data.empty()) return sum;
  std::array<std::byte, kHashBlock> last{};
  std::copy(data.begin(), data.end(), last.begin());
  return sum + hash_of_block(checksum_of(last), number);
}

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> data) { XXH3_64bits_update(&state_->state, data.data(), data.size()); }
std::uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->state); }

}  // namespace ddp::tensor
