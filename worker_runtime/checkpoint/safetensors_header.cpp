#include "worker_runtime/checkpoint/safetensors_header.hpp"

#include "ddp/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace ddp::checkpoint {
namespace {

constexpr const char* kMetadataName = "__metadata__";

[[noreturn]] void refuse(const std::string& reason) { throw CheckpointError(reason); }

// One tensor as the header gives it; a field that was not there is empty.
struct RawTensor {
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> data_offsets;
};

// Follows the parser through the only nesting there is: the root, in it tensors and the metadata, in a tensor arrays.
// Sees each key as it stands in the file, so that none can hide another of the same name.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::map<std::string, RawTensor> tensors;
  Metadata metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(std::int64_t) override { unexpected("a negative number"); }
  bool number_float(double, const std::string&) override { unexpected("a number that is no integer"); }
  bool binary(binary_t&) override { unexpected("binary data"); }

  bool number_unsigned(std::uint64_t value) override {
    if (at_ != At::array) unexpected("a number");
    array_->push_back(value);
    return true;
  }

  bool string(std::string& value) override {
    if (at_ == At::metadata) {
      metadata[key_] = value;
    } else if (at_ == At::tensor && key_ == "dtype") {
      tensors[tensor_].dtype = value;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (at_ == At::start) {
      at_ = At::root;
    } else if (at_ == At::root) {
      at_ = key_ == kMetadataName ? At::metadata : At::tensor;
      if (at_ == At::tensor) tensors[tensor_ = key_];
      keys_.clear();
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    at_ = at_ == At::root ? At::end : At::root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (at_ != At::tensor) unexpected("an array");
    if (key_ == "shape") {
      array_ = &tensors[tensor_].shape.emplace();
    } else if (key_ == "data_offsets") {
      array_ = &tensors[tensor_].data_offsets.emplace();
    } else {
      unexpected("an array");
    }
    at_ = At::array;
    return true;
  }

  bool end_array() override {
    at_ = At::tensor;
    return true;
  }

  bool key(std::string& name) override {
    std::set<std::string>& seen = at_ == At::root ? names_ : keys_;
    if (!seen.insert(name).second) refuse("the name " + name + " stands twice in the header");
    key_ = name;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    refuse("the header is not JSON (at its byte " + std::to_string(position) + ")");
  }

 private:
  enum class At { start, root, metadata, tensor, array, end };

  [[noreturn]] void unexpected(const std::string& what) const {
    refuse("the header has " + what + " where it does not belong" + (key_.empty() ? "" : " (at " + key_ + ")"));
  }

  At at_ = At::start;
  std::set<std::string> names_;  // keys of the root
  std::set<std::string> keys_;   // keys of the object in it
  std::string key_;              // the last one seen
  std::string tensor_;
  std::vector<std::uint64_t>* array_ = nullptr;
};

struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string name;
};

SafetensorsFile::Tensor check_tensor(const RawTensor& raw, const std::string& name, Extent& extent) {
  if (!raw.dtype) refuse("tensor " + name + " has no dtype");
  if (!raw.shape) refuse("tensor " + name + " has no shape");
  if (!raw.data_offsets || raw.data_offsets->size() != 2) refuse("tensor " + name + " has no pair of data_offsets");
  const DataType type = type_of(*raw.dtype, name);
  const SizeOfShape size = size_of_shape(*raw.shape, type, name);
  extent = {(*raw.data_offsets)[0], (*raw.data_offsets)[1], name};
  if (extent.begin > extent.end || extent.end - extent.begin != size.bytes) {
    refuse("tensor " + name + " needs " + std::to_string(size.bytes) + " bytes but its data_offsets are " +
           std::to_string(extent.begin) + " and " + std::to_string(extent.end));
  }
  return {type, {raw.shape->begin(), raw.shape->end()}, size.count, 0};
}

// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<Extent> extents, std::uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      refuse("the data of tensor " + extent.name +
             (extent.begin < end ? " overlap those before" : " start after a hole") + ", at " +
             std::to_string(extent.begin) + " instead of " + std::to_string(end));
    }
    end = extent.end;
  }
  if (end != data_bytes) {
    refuse("the data have " + std::to_string(data_bytes) + " bytes but the header speaks of " + std::to_string(end));
  }
}

}  // namespace

const char* dtype_of(DataType type) {
  switch (type) {
    case DataType::float32: return "F32";
    case DataType::float64: return "F64";
    case DataType::int64: return "I64";
    case DataType::float16: return "F16";
    case DataType::bfloat16: return "BF16";
    case DataType::int32: return "I32";
    case DataType::uint8: return "U8";
    case DataType::int8: return "I8";
    case DataType::boolean: return "BOOL";
    case DataType::float8_e4m3fn: return "F8_E4M3";
    case DataType::float8_e5m2: return "F8_E5M2";
  }
  refuse("a data type without a name in safetensors");
}

DataType type_of(const std::string& dtype, const std::string& tensor) {
  for (const DataType type :
       {DataType::float32, DataType::float64, DataType::int64, DataType::float16, DataType::bfloat16, DataType::int32,
        DataType::uint8, DataType::int8, DataType::boolean, DataType::float8_e4m3fn, DataType::float8_e5m2}) {
    if (dtype == dtype_of(type)) return type;
  }
  const std::array known = {"F8_E8M0", "I16", "U16", "U32", "U64", "C64", "F4", "F6_E2M3", "F6_E3M2"};
  const bool is_known = std::find(known.begin(), known.end(), dtype) != known.end();
  refuse("tensor " + tensor + " is of type " + dtype + (is_known ? ", which is not supported" : ", which is unknown") +
         " (F32, F64, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I8, U8 and BOOL are)");
}

SizeOfShape size_of_shape(std::span<const std::uint64_t> shape, DataType type, const std::string& tensor) {
  constexpr std::uint64_t kMax = std::numeric_limits<std::int64_t>::max();
  SizeOfShape size{1, 0};
  for (const std::uint64_t extent : shape) {
    if (extent > kMax || __builtin_mul_overflow(size.count, extent, &size.count)) {
      refuse("the shape of tensor " + tensor + " overflows");
    }
  }
  if (__builtin_mul_overflow(size.count, size_of(type), &size.bytes) || size.bytes > kMax) {
    refuse("the shape of tensor " + tensor + " overflows");
  }
  return size;
}

Header parse_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{') refuse("the header does not start with {");
  HeaderReader reader;
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);

  Header header;
  header.metadata = std::move(reader.metadata);
  std::vector<Extent> extents;
  for (const auto& [name, raw] : reader.tensors) {
    SafetensorsFile::Tensor& tensor = header.tensors[name];
    tensor = check_tensor(raw, name, extents.emplace_back());
    tensor.offset = kLengthBytes + json.size() + extents.back().begin;
  }
  check_cover(std::move(extents), data_bytes);
  return header;
}

std::vector<NamedTensor> in_file_order(std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const std::size_t a_bytes = size_of(a.values.type);
    const std::size_t b_bytes = size_of(b.values.type);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  return tensors;
}

std::string encode_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataName] = metadata;
  std::set<std::string> names = {kMetadataName};
  std::size_t end = 0;
  for (const NamedTensor& tensor : tensors) {
    if (!names.insert(tensor.name).second) refuse("the name " + tensor.name + " is reserved or used twice");
    const std::size_t begin = std::exchange(end, end + tensor.values.bytes());
    header[tensor.name] = {
        {"dtype", dtype_of(tensor.values.type)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    refuse("a name or a part of the metadata is not UTF-8");
  }
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  if (text.size() > kHeaderBytesMax) refuse("the header would have " + std::to_string(text.size()) + " bytes");
  return text;
}

}  // namespace ddp::checkpoint
