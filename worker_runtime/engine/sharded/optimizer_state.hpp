// This rank's part of an optimizer's state: the moments of the elements that it owns, and float32 master weights of
// those whose parameters have 16 bits.
//
// Errors: redivide() throws what the group fails with. Threads: one at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/sharded_optimizer.hpp"
#include "worker_runtime/engine/sharded/shards.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/process_group/device_memory.hpp"

namespace ddp::gradient_engine {

bool has_master(const Parameter& parameter);  // whether its type has 16 bits

class OptimizerState {
 public:
  // parameters: outlive this object. moment_count: 0 to 2. group: of the parameters' device, where the state is, too.
  OptimizerState(const std::vector<Parameter>& parameters, std::size_t moment_count, ProcessGroup& group);

  // The pieces of all ranks, of which `owner` owns some. Moments are zeros afterwards, and there are no masters.
  // stream: of all that follows.
  void begin(std::vector<Piece> pieces, int owner, void* stream);

  // As begin(), but each element keeps its state. Collective: what goes to another owner is sent.
  void redivide(std::vector<Piece> pieces, ProcessGroup& group, int owner, CollectiveOptions options);

  // Takes master weights from the parameters, unless there are some.
  void make_masters();

  const std::vector<Piece>& pieces() const { return pieces_; }

  // Of the elements of a piece that the owner owns. moment: null for one that is not kept.
  float* moment(std::size_t which, std::size_t piece);
  float* master(std::size_t piece);  // null for a parameter that needs none; requires make_masters() else

  // Requires make_masters().
  std::vector<ShardedOptimizer::Shard> shards();

 private:
  struct Array {
    const char* suffix;  // of its name
    bool is_of_masters = false;
    std::vector<std::size_t> places{};  // by piece: where its elements begin in the values of its owner
    std::shared_ptr<void> values{};
    float* at(std::size_t piece) const { return static_cast<float*>(values.get()) + places[piece]; }
  };

  bool is_in(const Array& array, const Piece& piece) const;
  void lay_out(Array& array) const;

  const std::vector<Parameter>& parameters_;
  std::size_t moment_count_;
  std::shared_ptr<process_group::DeviceMemory> memory_;
  std::shared_ptr<process_group::DeviceArithmetic> arithmetic_;
  void* stream_ = nullptr;
  std::vector<Piece> pieces_;
  int owner_ = 0;
  std::vector<Array> arrays_;  // the moments, and then the masters
  bool has_masters_ = false;
};

}  // namespace ddp::gradient_engine
