#include "ddp/memory.hpp"

#include "ddp/error.hpp"

namespace ddp {

void detail::refuse_data_type(DataType type) {
  throw InvalidArgument("there is no data type with the number " + std::to_string(static_cast<int>(type)));
}

void detail::refuse_other_type(DataType type, DataType wanted) {
  throw InvalidArgument(std::string("elements of type ") + name_of(type) + " were asked for as " + name_of(wanted));
}

const char* DDP_ABI::name_of(DataType type) {
  switch (type) {
    case DataType::float32: return "float32";
    case DataType::float64: return "float64";
    case DataType::int64: return "int64";
    case DataType::float16: return "float16";
    case DataType::bfloat16: return "bfloat16";
    case DataType::int32: return "int32";
    case DataType::uint8: return "uint8";
    case DataType::int8: return "int8";
    case DataType::boolean: return "bool";
    case DataType::float8_e4m3fn: return "float8_e4m3fn";
    case DataType::float8_e5m2: return "float8_e5m2";
  }
  return "a data type that does not exist";
}

}  // namespace ddp
