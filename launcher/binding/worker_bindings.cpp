#include "launcher/binding/worker_bindings.hpp"

#include "launcher/binding/gpus.hpp"
#include "launcher/binding/this_topology.hpp"
#include "launcher/environment/worker_environment.hpp"

namespace ddp::launcher {

std::vector<Binding> worker_bindings(const LaunchConfig& config, const std::vector<std::string>& environment) {
  const auto mode = config.binding.mode;
  if (mode == BindingOptions::Mode::none && !config.binding.display) return {};
  const auto cpus = usable_cpus();
  if (mode == BindingOptions::Mode::none) {
    Binding inherited;
    inherited.cpus = cpus;
    return std::vector<Binding>(static_cast<std::size_t>(config.workers), inherited);
  }
  auto topology = read_topology(cpus);
  topology.gpus = find_gpus();
  return bind_workers(topology, mode, config.workers, value_of("CUDA_VISIBLE_DEVICES", environment));
}

}  // namespace ddp::launcher
