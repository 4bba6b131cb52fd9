#include "worker_runtime/agent_link/process_link.hpp"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::agent_link {

namespace {

std::atomic<AgentLink*> the_link{nullptr};

AgentLink* open() {
  const char* const variable = std::getenv(worker_link::kSocketVariable);
  if (variable == nullptr) return nullptr;
  auto socket = take_inherited_socket(variable);
  if (!socket) return nullptr;
  try {
    the_link.store(std::make_unique<AgentLink>(std::move(socket)).release());
  } catch (const std::system_error& error) {
    throw Error(std::string("no link to ddprun: ") + error.what() +
                "\ntry:   fewer open files or threads, or a higher limit (ulimit -n, -u)");
  }
  return the_link.load();
}

AgentLink* unless_forked(AgentLink* link) { return link == nullptr || link->in_forked_child() ? nullptr : link; }

}  // namespace

AgentLink* open_process_link() {
  static AgentLink* const link = open();
  return unless_forked(link);
}

AgentLink* process_link() { return unless_forked(the_link.load(std::memory_order_acquire)); }

}  // namespace ddp::agent_link
