#include "training_state.hpp"

#include "input_error.hpp"

#include <algorithm>

namespace train {
namespace {

constexpr const char* kPositionName = "position";  // I64 [3]: step, epoch, samples
constexpr const char* kSeedKey = "seed";

std::string momentum_name(const ddp::Parameter& parameter) { return "momentum." + parameter.name; }

}  // namespace

std::filesystem::path save_state(ddp::CheckpointDirectory& directory, const ddp::RoundId& round,
                                 const std::vector<ddp::Parameter>& parameters, Sgd& optimizer,
                                 const Position& position, const RunIdentity& identity) {
  const std::vector<std::int64_t> numbers = {position.step, position.epoch, position.samples};
  std::vector<ddp::NamedTensor> tensors = {{kPositionName, {3}, numbers}};
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    tensors.push_back({parameters[p].name, parameters[p].shape, parameters[p].values});
    tensors.push_back({momentum_name(parameters[p]), parameters[p].shape, optimizer.velocities()[p]});
  }
  return directory.save(round, static_cast<std::uint64_t>(position.step), tensors,
                        {{kSeedKey, std::to_string(identity.seed)}, {"program", "train_breast_cancer"}});
}

Position load_state(const ddp::SafetensorsFile& file, const std::vector<ddp::Parameter>& parameters, Sgd& optimizer,
                    const RunIdentity& identity) {
  const auto seed = file.metadata().find(kSeedKey);
  if (seed == file.metadata().end() || seed->second != std::to_string(identity.seed)) {
    throw InputError("the checkpoint is of a run with another seed (" +
                     (seed == file.metadata().end() ? "none" : seed->second) + ", this run's is " +
                     std::to_string(identity.seed) + ")\nwhere: " + file.path().string() +
                     "\ntry:   the same --seed, or another --checkpoint-dir");
  }
  std::vector<std::int64_t> numbers(3);
  file.read(kPositionName, {3}, numbers);
  if (std::any_of(numbers.begin(), numbers.end(), [](std::int64_t number) { return number < 0; })) {
    throw ddp::CheckpointError("the position in training is negative\nwhere: " + file.path().string() +
                               "\ntry:   another checkpoint, or start afresh");
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    file.read(parameters[p].name, parameters[p].shape, parameters[p].values);
    file.read(momentum_name(parameters[p]), parameters[p].shape, optimizer.velocities()[p]);
  }
  return {numbers[0], numbers[1], numbers[2]};
}

void broadcast_state(ddp::ProcessGroup& world, Sgd& optimizer, Position& position) {
  std::vector<std::int64_t> numbers = {position.step, position.epoch, position.samples};
  world.broadcast(numbers, 0);
  position = {numbers[0], numbers[1], numbers[2]};
  for (std::vector<float>& velocity : optimizer.velocities()) world.broadcast(velocity, 0);
}

}  // namespace train
