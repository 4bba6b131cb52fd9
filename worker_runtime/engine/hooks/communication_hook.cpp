#include "ddp/communication_hook.hpp"

namespace ddp {

CommunicationHook::~CommunicationHook() = default;

void CommunicationHook::begin(ProcessGroup&, const std::vector<GradientBucket>&, CollectiveOptions) {}

void CommunicationHook::gradients_end() noexcept {}

bool CommunicationHook::leaves_gradients() const { return true; }

std::vector<Parameter> CommunicationHook::state() { return {}; }

}  // namespace ddp
