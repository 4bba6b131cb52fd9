#include "worker_runtime/backends/cpu/group/present_call.hpp"

#include <vector>

namespace ddp::cpu_backend {

using flight_recorder::operation_of;

Ticket PresentCall::record(std::span<const Collective> collectives) {
  if (collectives.size() == 1) return log_.record(operation_of(collectives.front()));
  std::vector<flight_recorder::Operation> operations;
  for (const Collective& collective : collectives) operations.push_back(operation_of(collective));
  return log_.record(operations);
}

void PresentCall::record_now() {
  Late& late = *std::exchange(late_, nullptr);
  const flight_recorder::Moment begin = clock_.now();
  late.deadline = process_group::deadline_after(late.collective.timeout, begin.steady);
  ticket_ = log_.record_started(operation_of(late.collective), begin.wall);
}

void PresentCall::refuse_unless_joined() {
  record_late();
  if (ticket_ && life_.refuse()) log_.refuse(*ticket_);
}

void PresentCall::fail() {
  const Ticket ticket = *std::exchange(ticket_, std::nullopt);
  if (life_.fail()) log_.fail(ticket);
}

std::string PresentCall::end_by(const std::exception& error) {
  record_late();
  if (ticket_ && life_.fail()) log_.fail(*ticket_);
  return is_aborted_elsewhere_ ? error.what() : error.what() + log_.write_failure(error.what());
}

}  // namespace ddp::cpu_backend
