#include "ddp/memory.hpp"

#include "ddp/error.hpp"

namespace ddp {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::float32: return sizeof(float);
    case DataType::float64: return sizeof(double);
    case DataType::int64: return sizeof(std::int64_t);
  }
  throw InvalidArgument("there is no data type with the number " + std::to_string(static_cast<int>(type)));
}

const char* name_of(DataType type) {
  switch (type) {
    case DataType::float32: return "float32";
    case DataType::float64: return "float64";
    case DataType::int64: return "int64";
  }
  return "a data type that does not exist";
}

}  // namespace ddp
