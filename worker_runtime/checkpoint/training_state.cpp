#include "worker_runtime/checkpoint/training_state.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/tensor/shape.hpp"

#include <cstdint>

namespace ddp::checkpoint {
namespace {

void check_tensor_shape(const Parameter& tensor) {
  if (tensor::element_count(tensor.shape) == tensor.values.count) return;
  throw InvalidArgument("tensor " + tensor.name + " of shape " + tensor::shape_text(tensor.shape) + " has " +
                        std::to_string(tensor.values.count) +
                        " values\nwhere: Checkpointer\ntry:   as many values as the product of the shape");
}

Entry entry_of(const Parameter& tensor, int rank) {
  check_tensor_shape(tensor);
  return {{rank, tensor.name}, tensor.shape, 0, tensor.values};
}

Entry entry_of_text(const std::string& name, std::string& text, int rank) {
  return {{rank, name},
          {static_cast<std::int64_t>(text.size())},
          0,
          MemoryRange(text.data(), text.size(), DataType::uint8)};
}

// Of the names that a ShardedOptimizer gives.
std::string renamed(const std::string& tensor, const std::string& optimizer) {
  return optimizer + tensor.substr(std::string("optimizer").size());
}

Entry entry_of(const ShardedOptimizer::Shard& shard, const std::string& optimizer) {
  return {{kAllRanks, renamed(shard.name, optimizer)}, shard.shape, shard.first, shard.values};
}

void want(LoadTargets& targets, const Entry& entry) {
  targets.wanted.push_back({entry.key, entry.values.type, entry.shape, entry.first, entry.values.count});
  targets.memory.push_back(entry.values);
}

void want_text(LoadTargets& targets, const Manifest& manifest, const NamedText& of, int rank) {
  const std::string& name = of.name;
  const auto found = manifest.tensors.find({rank, name});
  if (found == manifest.tensors.end()) throw CheckpointError("it has no text " + name);
  const ManifestTensor& tensor = found->second;
  if (tensor.type != DataType::uint8 || tensor.shape.size() != 1) throw CheckpointError(name + " is no text");
  std::uint64_t stored = 0;  // a manifest may say anything, but its pieces are within its parts
  for (const Piece& piece : tensor.pieces) stored += piece.count;
  if (static_cast<std::uint64_t>(tensor.shape[0]) > stored)
    throw CheckpointError("not all of text " + name + " is there");
  auto& filled = targets.texts.emplace_back();
  filled.of = &of;
  filled.text.resize(static_cast<std::size_t>(tensor.shape[0]));
  want(targets, entry_of_text(name, filled.text, rank));
}

}  // namespace

void require_reachable(const Device& device, const Device& of_group) {
  if (device == Device{} || device == of_group) return;
  throw InvalidArgument("a tensor in the memory of cuda:" + std::to_string(device.index) +
                        ", which the group does not reach\nwhere: Checkpointer\n"
                        "try:   a group of the backend cpu:cpu,cuda:nccl on that device");
}

void TrainingState::add(Parameter tensor) {
  check_tensor_shape(tensor);
  tensors_.push_back(std::move(tensor));
}

std::vector<Entry> TrainingState::shared_tensors() {
  std::vector<Entry> entries;
  for (const Parameter& tensor : tensors_) entries.push_back(entry_of(tensor, kAllRanks));
  for (auto& [name, optimizer] : optimizers_) {
    optimizer.wait();  // its parameters may be on their way, and are among the tensors
    Parameter steps = optimizer.steps();
    steps.name = renamed(steps.name, name);
    entries.push_back(entry_of(steps, kAllRanks));
    if (optimizer.sharding() != Sharding::none) continue;
    for (const auto& shard : optimizer.shards()) entries.push_back(entry_of(shard, name));
  }
  return entries;
}

std::vector<Entry> TrainingState::shards() {
  std::vector<Entry> entries;
  for (auto& [name, optimizer] : optimizers_) {
    if (optimizer.sharding() == Sharding::none) continue;
    for (const auto& shard : optimizer.shards()) entries.push_back(entry_of(shard, name));
  }
  return entries;
}

std::vector<Entry> TrainingState::to_save(int rank, int rank_count, std::list<std::string>& texts) {
  std::vector<Entry> entries = share_of(shared_tensors(), rank, rank_count);
  for (Entry& shard : shards()) entries.push_back(std::move(shard));
  if (rank == 0) {
    for (const NamedText& each : texts_) {
      entries.push_back(entry_of_text(each.name, texts.emplace_back(each.text.give()), kAllRanks));
    }
  }
  for (const auto& tensors : own_) {
    for (const Parameter& tensor : tensors()) entries.push_back(entry_of(tensor, rank));
  }
  for (const NamedText& each : own_texts_) {
    entries.push_back(entry_of_text(each.name, texts.emplace_back(each.text.give()), rank));
  }
  return entries;
}

LoadTargets TrainingState::to_load(const Manifest& manifest, int rank, bool has_own) {
  LoadTargets targets;
  for (const Entry& entry : shared_tensors()) want(targets, entry);
  for (const Entry& shard : shards()) want(targets, shard);
  for (const NamedText& each : texts_) {
    if (each.may_be_missing && !manifest.tensors.contains({kAllRanks, each.name})) continue;
    want_text(targets, manifest, each, kAllRanks);
  }
  if (!has_own) return targets;
  for (const auto& tensors : own_) {
    for (const Parameter& tensor : tensors()) want(targets, entry_of(tensor, rank));
  }
  for (const NamedText& each : own_texts_) want_text(targets, manifest, each, rank);
  return targets;
}

}  // namespace ddp::checkpoint
