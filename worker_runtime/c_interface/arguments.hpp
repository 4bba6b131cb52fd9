// Reads what a C program passes: structs of another version, numbers of enumerations, places for results.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ddp/ddp.h>

#include "ddp/error.hpp"
#include "ddp/memory.hpp"
#include "ddp/parameter.hpp"
#include "ddp/process_group.hpp"
#include "ddp/round.hpp"

namespace ddp::c_interface {

constexpr std::size_t kStructBytesMax = 4096;  // more than any version has: a larger size was never set

template <class Struct>
std::size_t struct_bytes(const Struct& given, const char* name) {
  const std::size_t bytes = given.struct_size;
  if (bytes >= sizeof(std::size_t) && bytes <= kStructBytesMax) return bytes;
  throw InvalidArgument(std::string(name) + ": struct_size is " + std::to_string(bytes) + "\ntry:   sizeof(" + name +
                        ")");
}

[[noreturn]] inline void refuse_unknown_field(const char* name) {
  throw InvalidArgument(std::string(name) + ": a field that libddp " + ddp_version() + " does not know is set\n" +
                        "try:   a libddp as new as the program's ddp/ddp.h");
}

// A program may be built with the header of an older version, whose structs are shorter, or of a newer one, whose
// further fields this version can only take where they are 0.
template <class Struct>
Struct read_struct(const Struct* given, const char* name) {
  Struct own{};
  if (given == nullptr) return own;
  const std::size_t bytes = struct_bytes(*given, name);
  std::memcpy(&own, given, std::min(bytes, sizeof own));
  const auto* const begin = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof own; i < bytes; ++i) {
    if (begin[i] != 0) refuse_unknown_field(name);
  }
  if constexpr (requires { own.reserved; }) {
    if (own.reserved != 0) refuse_unknown_field(name);
  }
  return own;
}

// The other way: writes what of `own` the program's version has room for, and zeros to the fields of a newer version.
// The program need not have set these.
template <class Struct>
void write_struct(Struct* place, Struct own, const char* name) {
  const std::size_t bytes = struct_bytes(*place, name);
  own.struct_size = bytes;
  std::memcpy(place, &own, std::min(bytes, sizeof own));
  if (bytes > sizeof own) std::memset(reinterpret_cast<unsigned char*>(place) + sizeof own, 0, bytes - sizeof own);
}

template <class T>
void require(const T* place, const char* name) {
  if (place == nullptr) throw InvalidArgument(std::string(name) + " is NULL");
}

inline std::string text_or_empty(const char* text) { return text != nullptr ? text : ""; }

// The enumerator of a number from 0 to `last`.
template <class Enum>
Enum enumerator(std::int32_t number, Enum last, const char* name) {
  if (number < 0 || number > static_cast<std::int32_t>(last)) {
    throw InvalidArgument(std::string("there is no ") + name + " " + std::to_string(number) + "; they are 0 to " +
                          std::to_string(static_cast<std::int32_t>(last)) + " (ddp/ddp.h)");
  }
  return static_cast<Enum>(number);
}

inline DataType data_type(ddp_data_type type) { return enumerator(type, DataType::float8_e5m2, "ddp_data_type"); }
inline ReduceOp reduce_op(ddp_reduce_op op) { return enumerator(op, ReduceOp::premul_sum, "ddp_reduce_op"); }

// `op`: of a call that reduces. A factor of 0 counts in DDP_PREMUL_SUM, and is not given elsewhere.
inline CollectiveOptions collective_options(const ddp_collective_options& given, ddp_reduce_op op = DDP_SUM) {
  CollectiveOptions options;
  options.timeout = std::chrono::milliseconds(given.timeout_ms);
  options.stream = given.stream;
  options.tag = given.tag;
  if (op == DDP_PREMUL_SUM) {
    if (given.struct_size < offsetof(ddp_collective_options, factor) + sizeof given.factor) {
      throw InvalidArgument("DDP_PREMUL_SUM without a factor\ntry:   ddp_collective_options with its `factor`");
    }
    options.factor = given.factor;
  } else if (given.factor != 0) {
    options.factor = given.factor;
  }
  return options;
}

inline InitOptions init_options(const ddp_init_options* given) {
  const ddp_init_options read = read_struct(given, "ddp_init_options");
  InitOptions options;
  options.backend = text_or_empty(read.backend);
  if (read.timeout_ms != 0) options.timeout = std::chrono::milliseconds(read.timeout_ms);
  if (read.device != nullptr) options.device = *read.device;
  options.share_device = read.share_device != 0;
  return options;
}

// rank_count * count, of a range that has a part for each rank.
inline std::size_t count_of_all(const ProcessGroup& group, std::size_t count) {
  std::size_t all = 0;
  if (__builtin_mul_overflow(count, static_cast<std::size_t>(group.size()), &all)) {
    throw InvalidArgument(std::to_string(count) + " elements for each rank are larger than any memory");
  }
  return all;
}

// A round's id, in a field of a struct that starts zeroed.
template <std::size_t kBytes>
void write_round(char (&field)[kBytes], const RoundId& round) {
  const std::string text = to_string(round);
  std::copy_n(text.begin(), std::min(text.size(), kBytes - 1), field);
}

// An array of tensors, whose structs are as far from each other as their size says.
inline std::vector<Parameter> parameters_of(const ddp_tensor* tensors, std::size_t count, const Device& device) {
  std::vector<Parameter> parameters;
  if (count == 0) return parameters;
  require(tensors, "the array of tensors");
  if (tensors->struct_size % alignof(ddp_tensor) != 0)
    throw InvalidArgument("ddp_tensor: struct_size is " + std::to_string(tensors->struct_size) +
                          ", at which no array has its elements\ntry:   sizeof(ddp_tensor)");
  const auto* at = reinterpret_cast<const unsigned char*>(tensors);
  for (std::size_t i = 0; i < count; ++i, at += tensors->struct_size) {
    const auto* const given = reinterpret_cast<const ddp_tensor*>(at);
    const ddp_tensor read = read_struct(given, "ddp_tensor");
    if (read.struct_size != tensors->struct_size) {
      throw InvalidArgument("ddp_tensor " + std::to_string(i) + ": struct_size is " + std::to_string(read.struct_size) +
                            ", that of the first of the array " + std::to_string(tensors->struct_size));
    }
    require(read.name, "the name of a tensor");
    if (read.dimensions > 0) require(read.shape, "the shape of a tensor");
    Parameter parameter{read.name, std::vector<std::int64_t>(read.shape, read.shape + read.dimensions), {}};
    std::size_t elements = 1;
    for (const std::int64_t length : parameter.shape) {
      if (length < 0 || __builtin_mul_overflow(elements, static_cast<std::size_t>(length), &elements)) {
        throw InvalidArgument("the tensor " + parameter.name + " has a dimension of " + std::to_string(length));
      }
    }
    if (elements > 0) require(read.values, "the values of a tensor");
    parameter.values = MemoryRange(read.values, elements, data_type(read.type), device);
    parameters.push_back(std::move(parameter));
  }
  return parameters;
}

// A later version may add fields where a struct ends now, so no struct ends in padding: a program need not set that.
#define DDP_ENDS_WITH(type, field) (offsetof(type, field) + sizeof(type::field) == sizeof(type))
static_assert(DDP_ENDS_WITH(ddp_store, remove) && DDP_ENDS_WITH(ddp_bootstrap, parent));
static_assert(DDP_ENDS_WITH(ddp_init_options, reserved) && DDP_ENDS_WITH(ddp_group_info, round));
static_assert(DDP_ENDS_WITH(ddp_collective_options, factor) && DDP_ENDS_WITH(ddp_tensor, reserved));
static_assert(DDP_ENDS_WITH(ddp_model_options, stream) && DDP_ENDS_WITH(ddp_checkpoint_options, write_timeout_ms));
static_assert(DDP_ENDS_WITH(ddp_loaded_checkpoint, reserved));
static_assert(DDP_ENDS_WITH(ddp_elastic_contents, adopt) && DDP_ENDS_WITH(ddp_elastic_options, seat_timeout_ms));
static_assert(DDP_ENDS_WITH(ddp_launcher_store, host));
#undef DDP_ENDS_WITH

static_assert(DDP_FLOAT32 == static_cast<int>(DataType::float32) && DDP_FLOAT64 == static_cast<int>(DataType::float64));
static_assert(DDP_INT64 == static_cast<int>(DataType::int64) && DDP_FLOAT16 == static_cast<int>(DataType::float16));
static_assert(DDP_BFLOAT16 == static_cast<int>(DataType::bfloat16) && DDP_INT32 == static_cast<int>(DataType::int32));
static_assert(DDP_UINT8 == static_cast<int>(DataType::uint8) && DDP_INT8 == static_cast<int>(DataType::int8));
static_assert(DDP_BOOLEAN == static_cast<int>(DataType::boolean));
static_assert(DDP_FLOAT8_E4M3FN == static_cast<int>(DataType::float8_e4m3fn));
static_assert(DDP_FLOAT8_E5M2 == static_cast<int>(DataType::float8_e5m2));
static_assert(DDP_SUM == static_cast<int>(ReduceOp::sum) && DDP_AVERAGE == static_cast<int>(ReduceOp::average));
static_assert(DDP_PRODUCT == static_cast<int>(ReduceOp::product) && DDP_MIN == static_cast<int>(ReduceOp::min));
static_assert(DDP_MAX == static_cast<int>(ReduceOp::max) && DDP_PREMUL_SUM == static_cast<int>(ReduceOp::premul_sum));

}  // namespace ddp::c_interface
