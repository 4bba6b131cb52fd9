// What the ways in which data moves know of the other ranks' progress.
#pragma once

#include <functional>

namespace ddp::cpu_backend {

// Returns once all ranks of the host have called it as often as this rank; throws where one never will.
using Meet = std::function<void()>;

}  // namespace ddp::cpu_backend
