// Work on files that may hang, because a disk or a network file system does not answer.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace ddp::base {

// Runs `work`, which must not throw, on a thread of its own and waits for its result. Empty if there is none within
// `limit`: the thread then goes on by itself, until `work` returns or the process ends. So `work` owns all that it
// uses. If no thread can be had, runs `work` before it returns.
//
// Threads: any.
std::optional<std::string> run_with_limit(std::chrono::milliseconds limit, std::function<std::string()> work);

}  // namespace ddp::base
