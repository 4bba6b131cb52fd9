#include "worker_runtime/tensor/checksum.hpp"

// Its functions can only be inlined if they are optimised: see CMakeLists.txt.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddp::tensor {

struct Checksum::State {
  XXH3_state_t state;
};

std::uint64_t checksum_of(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->state); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> data) { XXH3_64bits_update(&state_->state, data.data(), data.size()); }
std::uint64_t Checksum::value() const { return XXH3_64bits_digest(&state_->state); }

}  // namespace ddp::tensor
