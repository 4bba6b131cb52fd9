#include "base/with_limit.hpp"

#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::base {

std::optional<std::string> run_with_limit(std::chrono::milliseconds limit, std::function<std::string()> work) {
  std::future<std::string> result = run_detached(std::move(work));
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace ddp::base
