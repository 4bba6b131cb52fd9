// What init_process_group() is made of, for those who change their place in the job while they run
// (worker_runtime/elastic).
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/cut.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/core/bootstrap/environment.hpp"

namespace ddp::process_group {

using core::Launch;

// From now on these stand in for the variables of the environment that have their names: for every group of this
// process that is made from here on. The environment itself stays as it is, because other threads may read it.
void set_launch_variables(std::map<std::string, std::string> variables);

// Who this process is now. Throws as launch_from().
Launch present_launch();

// As init_process_group(); `cut`, unless null, ends the meeting before its time by AbortedError.
std::shared_ptr<ProcessGroup::Impl> make_group(const Launch& launch, const InitOptions& options, base::Cut* cut);

}  // namespace ddp::process_group
