#include "worker_runtime/engine/sharded/optimizer_state.hpp"

#include <cstdint>
#include <string>
#include <utility>

#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::gradient_engine {

bool has_master(const Parameter& parameter) { return size_of(parameter.values.type) == sizeof(std::uint16_t); }

OptimizerState::OptimizerState(const std::vector<Parameter>& parameters, std::size_t moment_count, ProcessGroup& group)
    : parameters_(parameters),
      moment_count_(moment_count),
      memory_(group.impl()->backend().device_memory()),
      arithmetic_(group.impl()->backend().device_arithmetic()) {
  const char* const suffixes[] = {".m", ".v"};
  for (std::size_t which = 0; which < moment_count; ++which) arrays_.push_back({suffixes[which]});
  arrays_.push_back({".master", true});
}

void OptimizerState::begin(std::vector<Piece> pieces, int owner, void* stream) {
  pieces_ = std::move(pieces);
  owner_ = owner;
  stream_ = stream;
  for (Array& array : arrays_) lay_out(array);
  has_masters_ = false;
}

void OptimizerState::redivide(std::vector<Piece> pieces, ProcessGroup& group, int owner, CollectiveOptions options) {
  if (pieces_.empty()) return begin(std::move(pieces), owner, options.stream);
  stream_ = options.stream;
  make_masters();
  const std::vector<Move> moves = moves_between(pieces_, pieces);
  const std::vector<Piece> old_pieces = std::exchange(pieces_, std::move(pieces));
  for (Array& array : arrays_) {
    Array old = std::move(array);
    lay_out(array);
    Work sent = group.coalesce(
        [&] {
          for (const Move& move : moves) {
            if (!is_in(array, pieces_[move.to])) continue;
            const int from = old_pieces[move.from].owner, to = pieces_[move.to].owner;
            float* const source = old.at(move.from) + move.from_first;
            float* const target = array.at(move.to) + move.to_first;
            const Device device = memory_->device();
            if (from == owner && to == owner) {
              memory_->copy(target, source, move.count * sizeof(float), stream_);
            } else if (from == owner) {
              static_cast<void>(group.send_async({source, move.count, DataType::float32, device}, to, options));
            } else if (to == owner) {
              static_cast<void>(group.receive_async({target, move.count, DataType::float32, device}, from, options));
            }
          }
        },
        options);
    sent.wait();
  }
}

void OptimizerState::make_masters() {
  if (std::exchange(has_masters_, true)) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    float* const to = master(i);
    if (piece.owner != owner_ || to == nullptr) continue;
    const MemoryRange& values = parameters_[piece.parameter].values;
    auto* const from = static_cast<std::uint16_t*>(values.data) + piece.first;
    arithmetic_->widen({from, piece.count, values.type, values.device},
                       {to, piece.count, DataType::float32, values.device}, stream_);
  }
}

float* OptimizerState::moment(std::size_t which, std::size_t piece) {
  return which < moment_count_ ? arrays_[which].at(piece) : nullptr;
}

float* OptimizerState::master(std::size_t piece) {
  Array& masters = arrays_.back();
  return is_in(masters, pieces_[piece]) ? masters.at(piece) : nullptr;
}

std::vector<ShardedOptimizer::Shard> OptimizerState::shards() {
  std::vector<ShardedOptimizer::Shard> shards;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    if (piece.owner != owner_) continue;
    const Parameter& parameter = parameters_[piece.parameter];
    for (Array& array : arrays_) {
      if (!is_in(array, piece)) continue;
      shards.push_back({"optimizer." + parameter.name + array.suffix, parameter.shape, piece.first,
                        MemoryRange(array.at(i), piece.count, DataType::float32, memory_->device())});
    }
  }
  return shards;
}

bool OptimizerState::is_in(const Array& array, const Piece& piece) const {
  return !array.is_of_masters || has_master(parameters_[piece.parameter]);
}

// As the pieces are. The values are zeros.
void OptimizerState::lay_out(Array& array) const {
  std::vector<std::size_t> next;  // by owner
  array.places.clear();
  for (const Piece& piece : pieces_) {
    const auto owner = static_cast<std::size_t>(piece.owner);
    if (owner >= next.size()) next.resize(owner + 1);
    array.places.push_back(next[owner]);
    if (is_in(array, piece)) next[owner] += piece.count;
  }
  const auto own = static_cast<std::size_t>(owner_);
  array.values = memory_->allocate((own < next.size() ? next[own] : 0) * sizeof(float), stream_);
}

}  // namespace ddp::gradient_engine
