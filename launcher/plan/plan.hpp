// What --dry-run prints: everything that a launch would do, and nothing is started.
//
// Pure. What only the start or the meeting of the nodes decides is shown in angle brackets.
#pragma once

#include <string>
#include <vector>

#include "launcher/binding/binding.hpp"
#include "launcher/command_line/launch_config.hpp"

namespace ddp::launcher {

// `environment`: ddprun's own, as "NAME=value"; `bindings`: of each worker, or none. Throws UsageError where a launch
// would.
std::string plan_text(const LaunchConfig& config, const std::vector<std::string>& environment,
                      const std::vector<Binding>& bindings);

}  // namespace ddp::launcher
