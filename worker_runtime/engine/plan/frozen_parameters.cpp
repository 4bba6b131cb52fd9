#include "worker_runtime/engine/plan/frozen_parameters.hpp"

namespace ddp::gradient_engine {
namespace {

// The upper 31 bits of a number mixed by the finalizer of MurmurHash3.
std::int32_t mixed(std::uint64_t number) {
  number = (number ^ (number >> 33)) * 0xff51afd7ed558ccd;
  number = (number ^ (number >> 33)) * 0xc4ceb9fe1a85ec53;
  return static_cast<std::int32_t>((number ^ (number >> 33)) >> 33);
}

}  // namespace

void FrozenParameters::set(std::size_t parameter, bool is_frozen) {
  if (own_[parameter] == is_frozen) return;
  own_[parameter] = is_frozen;
  hash_ ^= mixed(parameter + 1);
}

}  // namespace ddp::gradient_engine
