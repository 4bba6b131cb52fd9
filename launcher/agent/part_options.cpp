#include "launcher/agent/part_options.hpp"

#include <chrono>
#include <cstddef>
#include <utility>

#include "base/host_name.hpp"

namespace ddp::launcher {
namespace {

// Slurm signals every process of a step within this time.
constexpr std::chrono::milliseconds kSignalWindow{200};

}  // namespace

std::string run_id_of(const LaunchConfig& config, const RoundId& term) {
  const auto text = to_string(term);
  return config.rendezvous.run_id.empty() ? text.substr(0, text.rfind('-')) : config.rendezvous.run_id;
}

std::shared_ptr<const security::Security> security_of(const LaunchConfig& config) {
  const auto& tokens = config.rendezvous.tokens;
  return tokens ? std::make_shared<security::Security>(*tokens) : nullptr;
}

NodeOptions node_options(const LaunchConfig& config) {
  NodeOptions options;
  options.workers = config.workers;
  options.nodes_max = config.rendezvous.nodes_max;
  options.grace = config.grace;
  if (config.in_slurm_step) options.signal_window = kSignalWindow;
  options.restart_window = config.restart_window;
  options.leaves_when_stopped = config.leaves_when_stopped;
  options.host_name = base::host_name();
  options.time_limit = config.time_limit;
  if (config.time_limit.count() > 0) options.time_is_over_at = TimePoint::clock::now() + config.time_limit;
  return options;
}

store::ServerOptions store_options(const LaunchConfig& config, base::Warn warn) {
  store::ServerOptions options;
  options.allow = config.store_allow;
  options.total_bytes_max = static_cast<std::size_t>(config.rendezvous.store_memory_mib) << 20;
  options.memory_option = "--rdzv-conf=store_memory";
  options.warn = std::move(warn);
  return options;
}

}  // namespace ddp::launcher
