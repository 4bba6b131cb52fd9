#include "base/with_limit.hpp"

#include <future>
#include <memory>
#include <system_error>
#include <utility>

#include "base/quiet_thread.hpp"

namespace ddp::base {

std::optional<std::string> run_with_limit(std::chrono::milliseconds limit, std::function<std::string()> work) {
  const auto task = std::make_shared<std::packaged_task<std::string()>>(std::move(work));
  std::future<std::string> result = task->get_future();
  try {
    start_quiet_thread([task] { (*task)(); }).detach();
  } catch (const std::system_error&) {
    (*task)();
  }
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace ddp::base
