// What the workers of this launch are bound to on this machine.
#pragma once

#include <string>
#include <vector>

#include "launcher/binding/binding.hpp"
#include "launcher/command_line/launch_config.hpp"

namespace ddp::launcher {

// One for each worker, by local rank. Empty where neither a binding nor its display is asked for; with the display
// alone, what workers inherit. `environment` is ddprun's own, as "NAME=value". Throws UsageError.
std::vector<Binding> worker_bindings(const LaunchConfig& config, const std::vector<std::string>& environment);

}  // namespace ddp::launcher
