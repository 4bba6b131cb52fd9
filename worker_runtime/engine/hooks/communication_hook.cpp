#include "ddp/communication_hook.hpp"

#include "ddp/error.hpp"

namespace ddp {

CommunicationHook::~CommunicationHook() = default;

void CommunicationHook::begin(ProcessGroup&, const std::vector<GradientBucket>&, CollectiveOptions) {}

void CommunicationHook::gradients_end() noexcept {}

void CommunicationHook::parameters_unused(const std::vector<std::size_t>&) noexcept {}

bool CommunicationHook::averages_over_all_ranks() const { return false; }

void CommunicationHook::scale_gradients(double) {
  throw InvalidArgument(
      "a communication hook that averages over all ranks and leaves no gradients in the buckets can't scale "
      "them\nwhere: "
      "CommunicationHook::scale_gradients, for UnevenInputs::divide_by_active\ntry:   override scale_gradients()");
}

bool CommunicationHook::leaves_gradients() const { return true; }

std::vector<Parameter> CommunicationHook::state() { return {}; }

}  // namespace ddp
