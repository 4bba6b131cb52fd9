// What people write by habit from mpirun, srun, accelerate, deepspeed or horovodrun, and what ddprun calls it.
//
// Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddp::launcher {

// name: of an unknown option, without its dashes, with '-' for '_': "np", "hostfile". Returns what to write instead,
// for the `try:` line of an error; empty where no other launcher has such an option, or ddprun nothing that
// corresponds.
std::optional<std::string> instead_of(std::string_view name);

}  // namespace ddp::launcher
