// The hash of memory, in the place of hash_kernel.cu: the host's loop as work of the stand-in's streams.
#include "worker_runtime/backends/nccl/hash_kernel.hpp"

#include <cstddef>
#include <utility>
#include <vector>

#include "tests/fake_gpu/host_kernels_launch.hpp"
#include "worker_runtime/tensor/checksum.hpp"

namespace ddp::nccl_backend::kernels {

cudaError_t add_hashes(const Batch& batch, std::uint64_t* hashes, cudaStream_t stream) {
  const std::vector<Range> ranges(batch.ranges, batch.ranges + batch.count);
  std::vector<fake_gpu::Touched> touched{{hashes, ranges.size()}};
  for (const Range& each : ranges) touched.push_back(fake_gpu::touched_bytes(each.data, each.count));
  return fake_gpu::launch_kernel("add_hashes", stream, std::move(touched), [ranges, hashes] {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      hashes[i] += tensor::hash_by_blocks({static_cast<const std::byte*>(ranges[i].data), ranges[i].count});
    }
  });
}

}  // namespace ddp::nccl_backend::kernels
