// A side that measures collectives of float32: its buffers, what is in them, and whether the results are right. What is
// left to a library is where the memory comes from and the calls themselves.
//
//   all_reduce      in place
//   broadcast       from rank 0
//   all_gather      the input is this rank's part of the output
//   reduce_scatter  from an input of all parts into an output of one
//   barrier
// `bytes` is that of the larger buffer.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "benchmarks/common/sides/serve.hpp"
#include "benchmarks/common/sides/values.hpp"

namespace ddp::benchmarks {

class CollectiveSide : public Side {
 public:
  CollectiveSide(int rank, int ranks) : rank_(rank), ranks_(ranks) {}

  void prepare(const Request& request) final {
    if (same_buffers(request, prepared_)) return;
    release();
    operation_ = operation_of(request.what);
    count_ = request.bytes / sizeof(float);
    part_ = count_ / static_cast<std::size_t>(ranks_);
    if (count_ > 0) data_ = allocate(request.memory, count_ * sizeof(float));
    if (operation_ == Operation::reduce_scatter) output_ = allocate(request.memory, part_ * sizeof(float));
    prepared_ = request;
  }

  void rewrite() final { write_values(data_, count_, rank_); }

  void call() final {
    switch (operation_) {
      case Operation::all_reduce: return all_reduce(data_, count_);
      case Operation::broadcast: return broadcast(data_, count_);
      case Operation::all_gather: return all_gather(data_, part_);
      case Operation::reduce_scatter: return reduce_scatter(data_, output_, part_);
      case Operation::barrier: return barrier();
    }
  }

  bool is_right() final {
    switch (operation_) {
      case Operation::all_reduce: return are_sums(data_, count_, ranks_);
      case Operation::broadcast: return are_values(data_, count_, 0);
      case Operation::all_gather: {
        bool all = true;
        for (int rank = 0; rank < ranks_; ++rank) {
          const std::size_t first = static_cast<std::size_t>(rank) * part_;
          all &= are_values(data_ + first, part_, rank, first);
        }
        return all;
      }
      case Operation::reduce_scatter: return are_sums(output_, part_, ranks_, static_cast<std::size_t>(rank_) * part_);
      case Operation::barrier: return true;
    }
    return false;
  }

  void release() final {
    if (data_ != nullptr) deallocate();
    data_ = output_ = nullptr;
    prepared_ = Request{};
  }

 protected:
  virtual float* allocate(const std::string& memory, std::size_t bytes) = 0;
  virtual void deallocate() = 0;  // all of it
  virtual void all_reduce(float* data, std::size_t count) = 0;
  virtual void broadcast(float* data, std::size_t count) = 0;
  virtual void all_gather(float* data, std::size_t part) = 0;
  virtual void reduce_scatter(const float* input, float* output, std::size_t part) = 0;
  virtual void barrier() = 0;

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

 private:
  enum class Operation { all_reduce, broadcast, all_gather, reduce_scatter, barrier };
  static Operation operation_of(const std::string& name) {
    if (name == "all_reduce") return Operation::all_reduce;
    if (name == "broadcast") return Operation::broadcast;
    if (name == "all_gather") return Operation::all_gather;
    if (name == "reduce_scatter") return Operation::reduce_scatter;
    if (name == "barrier") return Operation::barrier;
    throw std::invalid_argument("no collective: " + name);
  }

  int rank_, ranks_;
  Request prepared_;
  Operation operation_ = Operation::barrier;
  float* data_ = nullptr;
  float* output_ = nullptr;
  std::size_t count_ = 0, part_ = 0;
};

// One whose memory is malloc's.
class PlainMemorySide : public CollectiveSide {
 public:
  using CollectiveSide::CollectiveSide;
  ~PlainMemorySide() override { free_all(); }
  PlainMemorySide(const PlainMemorySide&) = delete;
  PlainMemorySide& operator=(const PlainMemorySide&) = delete;

 protected:
  float* allocate(const std::string& memory, std::size_t bytes) override {
    if (memory != "plain") throw std::invalid_argument("no such memory here: " + memory);
    void* const out = std::malloc(bytes);
    if (out == nullptr) throw std::bad_alloc();
    (blocks_[0] == nullptr ? blocks_[0] : blocks_[1]) = out;
    return static_cast<float*>(out);
  }
  void deallocate() override { free_all(); }

 private:
  void free_all() {
    for (void*& block : blocks_) std::free(block), block = nullptr;
  }

  void* blocks_[2] = {};
};

}  // namespace ddp::benchmarks
