#include "ddp/memory.hpp"

#include "ddp/error.hpp"

namespace ddp {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::float32: return sizeof(float);
    case DataType::float64: return sizeof(double);
    case DataType::int64: return sizeof(std::int64_t);
    case DataType::float16:
    case DataType::bfloat16: return sizeof(std::uint16_t);
    case DataType::int32: return sizeof(std::int32_t);
    case DataType::uint8: return sizeof(std::uint8_t);
  }
  throw InvalidArgument("there is no data type with the number " + std::to_string(static_cast<int>(type)));
}

const char* name_of(DataType type) {
  switch (type) {
    case DataType::float32: return "float32";
    case DataType::float64: return "float64";
    case DataType::int64: return "int64";
    case DataType::float16: return "float16";
    case DataType::bfloat16: return "bfloat16";
    case DataType::int32: return "int32";
    case DataType::uint8: return "uint8";
  }
  return "a data type that does not exist";
}

}  // namespace ddp
