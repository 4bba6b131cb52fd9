#include "worker_runtime/agent_link/process_link.hpp"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/slurm/step.hpp"

namespace ddp::agent_link {

namespace {

std::atomic<AgentLink*> the_link{nullptr};

std::optional<std::string> environment_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

AgentLink* open() {
  const auto variable = environment_variable(worker_link::kSocketVariable);
  // Left over from a worker that called srun, it names a socket of another process.
  if (!variable || slurm::is_left_by_another_step(environment_variable)) return nullptr;
  auto socket = take_inherited_socket(*variable);
  if (!socket) return nullptr;
  try {
    the_link.store(std::make_unique<AgentLink>(std::move(socket)).release());
  } catch (const std::system_error& error) {
    throw Error(std::string("no link to ddprun: ") + error.what() +
                "\ntry:   fewer open files, or a higher limit (ulimit -n)");
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
