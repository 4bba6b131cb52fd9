// The measuring loop, the same for every side: a side only says how to do a call.
#pragma once

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/sides/rank_link.hpp"
#include "benchmarks/common/sides/request.hpp"
#include "benchmarks/common/sides/spin_barrier.hpp"

namespace ddp::benchmarks {

class Side {
 public:
  virtual ~Side() = default;
  virtual void prepare(const Request& request) = 0;  // has the buffers for it, until release()
  virtual void rewrite() = 0;                        // writes the whole buffer, as a backward pass would
  virtual void call() = 0;
  virtual bool is_right() = 0;  // after rewrite() and one call()
  virtual void release() = 0;   // harmless where nothing is prepared
};

// Nanoseconds of a call, for each batch.
inline std::vector<double> measure(Side& side, SpinBarrier& pace, const Request& request) {
  using Clock = std::chrono::steady_clock;
  side.prepare(request);
  std::vector<double> out(static_cast<std::size_t>(request.batches));
  side.rewrite();
  pace.wait();
  for (std::size_t batch = 0; batch < out.size(); ++batch) {
    if (request.fresh && batch > 0) side.rewrite();
    if (request.meet) pace.wait();
    const auto begin = Clock::now();
    for (int i = 0; i < request.calls; ++i) side.call();
    out[batch] = std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / request.calls;
    if (request.check && batch == 0) {
      pace.wait();  // nobody rewrites what another still looks at
      if (!side.is_right()) throw std::runtime_error("wrong result of " + request.what);
      pace.wait();
    }
  }
  return out;
}

// Does what the benchmark asks for until it asks no more.
inline void serve(Side& side, RankLink& link, int rank, int ranks) {
  SpinBarrier pace(link.header().pace, rank, ranks);
  while (const auto line = link.line()) {
    std::string answer = "ok";
    try {
      if (*line == "release") {
        side.release();
      } else {
        for (const double ns : measure(side, pace, request_of(*line))) {
          char figure[32];
          std::snprintf(figure, sizeof figure, " %.1f", ns);
          answer += figure;
        }
      }
    } catch (const std::exception& error) {
      answer = std::string("failed ") + error.what();
      for (char& c : answer) c = c == '\n' ? ' ' : c;
    }
    link.say(answer);
  }
}

}  // namespace ddp::benchmarks
