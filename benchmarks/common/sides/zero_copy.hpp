// The floor, "Z": what collectives cost when all buffers lie in memory that the processes share and nothing is checked.
//
//   all_reduce              each process sums its slice over all buffers and stores it to all of them; one spin barrier
//   all_gather, broadcast   each process copies what it has not; one spin barrier
//   reduce_scatter          a copy of the part that a rank is to have. The sum of P parts moves (P + 1) / 2 times as
//   much. barrier                 the spin barrier alone; it yields at every look where processes outnumber cores
//
// There can be more buffers than processes: what as many ranks would cost if ranks cost nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "benchmarks/common/sides/serve.hpp"

namespace ddp::benchmarks {

// data[b][i] of all buffers b becomes their sum, for first <= i < last.
void sum_to_all(const std::vector<float*>& data, std::size_t first, std::size_t last);

class ZeroCopySide : public Side {
 public:
  struct Place {
    int process = 0;
    int processes = 1;
    int buffers = 1;  // a multiple of processes
  };

  ZeroCopySide(RankLink& link, const Place& place);
  ~ZeroCopySide() override { release(); }
  ZeroCopySide(const ZeroCopySide&) = delete;
  ZeroCopySide& operator=(const ZeroCopySide&) = delete;

  void prepare(const Request& request) override;
  void rewrite() override;
  void call() override;
  bool is_right() override;
  void release() override;

 private:
  enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, barrier };

  RankLink& link_;
  Place place_;
  SpinBarrier barrier_;
  Request prepared_;
  Kind kind_ = Kind::barrier;
  std::size_t count_ = 0, part_ = 0, mapped_bytes_ = 0;
  void* mapping_ = nullptr;
  std::vector<float*> data_;    // of all ranks
  std::vector<float*> output_;  // likewise
};

// `SOCKET PROCESS PROCESSES BUFFERS`; the exit status.
int be_zero_copy_rank(char** arguments);

}  // namespace ddp::benchmarks
