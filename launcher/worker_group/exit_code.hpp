// How a worker's end reads from waitpid's status; what follows from it is in rendezvous/membership/failure.hpp.
#pragma once

#include <optional>

#include "rendezvous/membership/failure.hpp"

namespace ddp::launcher {

using rendezvous::Ending;
using rendezvous::is_schedulers_signal;
using rendezvous::signal_name;

Ending ending_of(int wait_status, std::optional<bool> out_of_memory = {});

}  // namespace ddp::launcher
