#include "worker_runtime/core/operation/operation.hpp"

#include <algorithm>

#include "worker_runtime/core/failure/fingerprint.hpp"

namespace ddp::core {

namespace {

bool is_pair_call(const Collective& call) {
  return call.kind == CollectiveKind::send || call.kind == CollectiveKind::receive;
}

}  // namespace

Operation::Operation(std::span<const Collective> calls, const flight_recorder::Ticket& ticket,
                     const base::Deadline& deadline_)
    : deadline(deadline_), ticket_(ticket), first_call_(calls.front()), call_count_(calls.size()) {
  for (const Collective& call : calls) bytes_ += std::max(call.input.bytes(), call.output.bytes());
  if (!std::all_of(calls.begin(), calls.end(), is_pair_call)) return;
  for (const Collective& call : calls) {
    if (std::find(peers_.begin(), peers_.end(), call.root) == peers_.end()) peers_.push_back(call.root);
  }
}

std::string Operation::describe() const {
  const std::string first = core::describe(fingerprint_of(first_call_));
  return call_count_ == 1 ? first : std::to_string(call_count_) + " coalesced calls, the first " + first;
}

Failure Operation::failure(Cause cause, int rank) const {
  return {.cause = cause,
          .rank = rank,
          .what = {},
          .number = number(),
          .operation = describe(),
          .bytes = bytes_,
          .peers = peers_,
          .limit = deadline.full_time()};
}

}  // namespace ddp::core
