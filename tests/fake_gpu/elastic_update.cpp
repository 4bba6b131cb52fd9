#include "tests/nccl/elastic_update.hpp"

#include <memory>

namespace ddp::nccl_test {

namespace {

struct Work {
  std::int64_t* parameters;
  const std::int64_t* sums;
  std::size_t count;
};

void run(void* argument) {
  const std::unique_ptr<const Work> work(static_cast<const Work*>(argument));
  for (std::size_t i = 1; i < work->count; ++i) {
    work->parameters[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(work->parameters[i]) * 3 +
                                                    static_cast<std::uint64_t>(work->sums[i]));
  }
}

}  // namespace

// A host function on the stream, where a program would launch a kernel.
cudaError_t update(std::int64_t* parameters, const std::int64_t* sums, std::size_t count) {
  auto work = std::make_unique<Work>(Work{parameters, sums, count});
  const cudaError_t launched = cudaLaunchHostFunc(nullptr, run, work.get());
  if (launched == cudaSuccess) static_cast<void>(work.release());
  return launched;
}

}  // namespace ddp::nccl_test
