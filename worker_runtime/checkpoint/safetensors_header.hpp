// The JSON header of a safetensors file: what is written into one, and the strict reading of one.
//
// Pure: text in, values out, no file. A header is not trusted: depth, lengths and sums are checked before they are
// used, and everything that the format does not name is refused.
//
// Format: https://github.com/huggingface/safetensors, "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddp/checkpoint.hpp"

namespace ddp::checkpoint {

constexpr std::size_t kLengthBytes = 8;                 // of the header's length, little-endian, at the file's start
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // Source: safetensors, MAX_HEADER_SIZE

const char* dtype_of(DataType type);  // "F32"
DataType type_of(const std::string& dtype,
                 const std::string& tensor);  // throws CheckpointError, which names the tensor

struct SizeOfShape {
  std::uint64_t count = 0;  // of elements
  std::uint64_t bytes = 0;
};
// Throws CheckpointError, which names the tensor, if either does not fit into 63 bits.
SizeOfShape size_of_shape(std::span<const std::uint64_t> shape, DataType type, const std::string& tensor);

struct Header {
  std::map<std::string, SafetensorsFile::Tensor> tensors;  // their offsets are those in the file
  Metadata metadata;
};

// json:       the whole header, kLengthBytes after the start of the file
// data_bytes: what follows it in the file
// Throws CheckpointError with the reason; the caller adds the path.
Header parse_header(std::string_view json, std::uint64_t data_bytes);

// The order of the data: longest element first, then by name, so that each tensor is aligned to its elements.
std::vector<NamedTensor> in_file_order(std::vector<NamedTensor> tensors);

// The header of tensors whose data follow in this order, padded with spaces so that the data start on a multiple of 8.
// Throws CheckpointError for a name that is reserved, used twice or not UTF-8, and for a header beyond the limit.
std::string encode_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata);

}  // namespace ddp::checkpoint
