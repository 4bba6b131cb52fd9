// The files of a checkpoint, which may hold anything: a safetensors file (first byte even), or the manifest of several
// parts (odd). Either is refused, or all of its tensors can be read, and nothing is larger than the input.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/error.hpp"
#include "tests/fuzz/targets.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

namespace {

using namespace ddp::checkpoint;
using ddp::fuzz::require;

void read_file(std::string_view input) {
  const ddp::base::UniqueFd fd(::memfd_create("checkpoint", MFD_CLOEXEC));
  require(::write(fd.get(), input.data(), input.size()) == static_cast<ssize_t>(input.size()), "the file is written");
  try {
    const auto file = ddp::SafetensorsFile::open("/proc/self/fd/" + std::to_string(fd.get()));
    std::size_t all = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      const std::size_t bytes = tensor.count * ddp::size_of(tensor.type);
      all += bytes;
      require(all <= input.size(), "tensors are within the file");
      std::vector<std::byte> values(bytes);
      file.read(name, tensor.shape, {values.data(), tensor.count, tensor.type});
    }
  } catch (const ddp::CheckpointError&) {
  }
}

void read_manifest(std::string_view input) {
  Manifest manifest;
  try {
    manifest = parse_manifest(input);
  } catch (const ddp::CheckpointError&) {
    return;
  }
  const std::string text = encode(manifest);
  require(encode(parse_manifest(text)) == text, "what is read is written again");
  for (const auto& [key, tensor] : manifest.tensors) {
    std::uint64_t count = 1;
    for (const std::int64_t extent : tensor.shape) count *= static_cast<std::uint64_t>(extent);
    const std::vector<WantedPiece> wanted{{key, tensor.type, tensor.shape, 0, count}};
    std::uint64_t next = 0;  // byte of the tensor; the reads are in the order of parts
    try {
      for (const Read& read : plan_reads(manifest, wanted)) {
        require(read.part < manifest.parts.size(), "a part is there");
        const std::uint64_t part_bytes = manifest.parts[read.part].bytes;
        require(read.from <= part_bytes && read.bytes <= part_bytes - read.from, "bytes are within their part");
        next += read.bytes;
      }
      require(next == count * ddp::size_of(tensor.type), "each byte is read once");
    } catch (const ddp::CheckpointError&) {
    }
  }
}

}  // namespace

void ddp::fuzz::checkpoint(std::string_view input) {
  const bool is_manifest = take_byte(input) % 2 == 1;
  is_manifest ? read_manifest(input) : read_file(input);
}
