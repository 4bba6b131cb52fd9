#include "ddp/checkpoint.hpp"

#include "base/unique_fd.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"
#include "worker_runtime/checkpoint/read_at.hpp"
#include "worker_runtime/checkpoint/safetensors_header.hpp"
#include "worker_runtime/checkpoint/write_safetensors.hpp"
#include "worker_runtime/tensor/shape.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

static_assert(std::endian::native == std::endian::little, "safetensors stores little-endian numbers");

namespace ddp {

using tensor::shape_text;

namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw CheckpointError("can't read " + path.string() + ": " + reason +
                        "\nwhere: reading a checkpoint\ntry:   another checkpoint, or start afresh");
}

std::string reason_of(int error) { return std::generic_category().message(error); }

void read_at(const std::filesystem::path& path, int fd, void* data, std::size_t bytes, std::size_t offset) {
  try {
    checkpoint::read_at(fd, {static_cast<std::byte*>(data), bytes}, offset);
  } catch (const CheckpointError& error) {
    refuse(path, error.what());
  }
}

std::size_t file_bytes(const std::filesystem::path& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) refuse(path, reason_of(errno));
  if (!S_ISREG(status.st_mode)) refuse(path, "it is not a regular file");
  return static_cast<std::size_t>(status.st_size);
}

checkpoint::Header read_header(const std::filesystem::path& path, int fd) {
  const std::size_t bytes = file_bytes(path, fd);
  std::uint64_t header_bytes = 0;
  if (bytes < checkpoint::kLengthBytes) refuse(path, "it has " + std::to_string(bytes) + " bytes, not even a length");
  read_at(path, fd, &header_bytes, sizeof header_bytes, 0);
  const std::uint64_t rest_bytes = bytes - checkpoint::kLengthBytes;
  if (header_bytes > checkpoint::kHeaderBytesMax || header_bytes > rest_bytes) {
    refuse(path, "a header of " + std::to_string(header_bytes) + " bytes is announced, in a file of " +
                     std::to_string(bytes));
  }
  std::string json(header_bytes, '\0');
  read_at(path, fd, json.data(), json.size(), checkpoint::kLengthBytes);
  try {
    return checkpoint::parse_header(json, rest_bytes - header_bytes);
  } catch (const CheckpointError& error) {
    refuse(path, error.what());
  }
}

void check_tensor(const NamedTensor& named) {
  const auto refuse_tensor = [&](const std::string& what) {
    throw InvalidArgument("tensor " + named.name + " " + what + "\nwhere: saving a checkpoint\n" +
                          "try:   values in host memory, as many as the product of the shape");
  };
  if (named.values.device.kind != Device::Kind::cpu) refuse_tensor("is not in host memory");
  if (tensor::element_count(named.shape) != named.values.count) {
    refuse_tensor("of shape " + shape_text(named.shape) + " has " + std::to_string(named.values.count) + " values");
  }
}

std::string header_of(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                      const Metadata& metadata) {
  try {
    return checkpoint::encode_header(tensors, metadata);
  } catch (const CheckpointError& error) {
    throw CheckpointError("can't write " + path.string() + ": " + error.what() +
                          "\nwhere: saving a checkpoint; what was there before is untouched\n"
                          "try:   names and metadata in UTF-8, each name once, all of them together within 100 MB");
  }
}

}  // namespace

void checkpoint::write_safetensors(AtomicFile& file, const std::vector<NamedTensor>& tensors,
                                   const Metadata& metadata) {
  for (const NamedTensor& tensor : tensors) check_tensor(tensor);
  const std::vector<NamedTensor> ordered = in_file_order(tensors);
  const std::string header = header_of(file.path(), ordered, metadata);
  const std::uint64_t header_bytes = header.size();
  file.write(&header_bytes, sizeof header_bytes);
  file.write(header.data(), header.size());
  for (const NamedTensor& tensor : ordered) file.write(tensor.values.data, tensor.values.bytes());
}

void DDP_ABI::save_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                               const Metadata& metadata) {
  checkpoint::AtomicFile file(path);
  checkpoint::write_safetensors(file, tensors, metadata);
  file.commit(checkpoint::AtomicFile::Existing::replace);
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  // Non-blocking, so that a pipe under this name is refused and not waited for.
  auto fd = std::make_shared<base::UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!*fd) refuse(path, reason_of(errno));
  checkpoint::Header header = read_header(path, fd->get());
  SafetensorsFile file;
  file.path_ = path;
  file.tensors_ = std::move(header.tensors);
  file.metadata_ = std::move(header.metadata);
  file.descriptor_ = std::move(fd);
  return file;
}

void SafetensorsFile::read(const std::string& name, const std::vector<std::int64_t>& shape, MemoryRange values) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse(path_, "it has no tensor " + name);
  const Tensor& tensor = found->second;
  if (tensor.type != values.type || tensor.shape != shape || tensor.count != values.count) {
    refuse(path_, "tensor " + name + " is " + name_of(tensor.type) + " " + shape_text(tensor.shape) + ", wanted is " +
                      name_of(values.type) + " " + shape_text(shape) + " in " + std::to_string(values.count) +
                      " values");
  }
  if (values.device.kind != Device::Kind::cpu) refuse(path_, "tensor " + name + " can only be read into host memory");
  const auto& fd = *static_cast<const base::UniqueFd*>(descriptor_.get());
  read_at(path_, fd.get(), values.data, values.bytes(), tensor.offset);
}

}  // namespace ddp
