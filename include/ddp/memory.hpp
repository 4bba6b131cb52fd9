// Typed ranges of memory on a device: all that the collectives and the gradient engine know of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// The numbers are part of no format; names follow PyTorch. C++17 has no type for the floating-point types of 16 and 8
// bits: their ranges are made of a pointer, a count and the DataType.
//   float16        IEEE 754's binary16
//   bfloat16       the upper half of a float32
//   float8_e4m3fn  4 bits of exponent, 3 of mantissa; no infinity, the largest number is 448
//   float8_e5m2    5 bits of exponent, 2 of mantissa: the upper half of a float16
//   boolean        PyTorch's bool: a byte that is 0 or 1
enum class DataType : std::uint8_t {
  float32,
  float64,
  int64,
  float16,
  bfloat16,
  int32,
  uint8,
  int8,
  boolean,
  float8_e4m3fn,
  float8_e5m2,
};

namespace detail {
[[noreturn]] DDP_EXPORT void refuse_data_type(DataType type);
[[noreturn]] DDP_EXPORT void refuse_other_type(DataType type, DataType wanted);
}  // namespace detail

// Bytes of one element. Throws InvalidArgument for a number that is no type's.
inline std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::uint8:
    case DataType::int8:
    case DataType::boolean:
    case DataType::float8_e4m3fn:
    case DataType::float8_e5m2: return 1;
    case DataType::float16:
    case DataType::bfloat16: return 2;
    case DataType::float32:
    case DataType::int32: return 4;
    case DataType::float64:
    case DataType::int64: return 8;
  }
  detail::refuse_data_type(type);
}

DDP_EXPORT const char* name_of(DataType type);  // "float32"

// The DataType of a C++ type, as DataTypeOf<float>::value. For float, double, bool, std::int8_t, std::uint8_t,
// std::int32_t and std::int64_t; any other type is an error of the compiler.
template <class T>
struct DataTypeOf;
template <>
struct DataTypeOf<float> {
  static constexpr DataType value = DataType::float32;
};
template <>
struct DataTypeOf<double> {
  static constexpr DataType value = DataType::float64;
};
template <>
struct DataTypeOf<std::int64_t> {
  static constexpr DataType value = DataType::int64;
};

template <>
struct DataTypeOf<std::int32_t> {
  static constexpr DataType value = DataType::int32;
};
template <>
struct DataTypeOf<std::uint8_t> {
  static constexpr DataType value = DataType::uint8;
};
template <>
struct DataTypeOf<std::int8_t> {
  static constexpr DataType value = DataType::int8;
};
template <>
struct DataTypeOf<bool> {
  static_assert(sizeof(bool) == 1);
  static constexpr DataType value = DataType::boolean;
};

namespace detail {

// Contiguous ranges: vectors, std::array, std::span, and others with data() and size().
template <class T, class = void>
struct HasData : std::false_type {};
template <class T>
struct HasData<T, decltype(void(std::declval<T&>().data()), void(std::declval<T&>().size()))> : std::true_type {
  using Element = std::remove_pointer_t<decltype(std::declval<T&>().data())>;
};

// Whether a range may become a MemoryRange: a view (std::span) always, because it shows memory of somebody else. A
// container only if it is no temporary, because its memory ends with it. A view that is const itself still gives the
// same pointer.
template <class Range, class Plain = std::remove_cv_t<std::remove_reference_t<Range>>, bool = HasData<Plain>::value>
struct OutlivesCall : std::false_type {};
template <class Range, class Plain>
struct OutlivesCall<Range, Plain, true>
    : std::integral_constant<bool, std::is_lvalue_reference<Range>::value ||
                                       std::is_same<decltype(std::declval<Plain&>().data()),
                                                    decltype(std::declval<const Plain&>().data())>::value> {};

template <class Range>
using ElementOf = typename HasData<std::remove_reference_t<Range>>::Element;

}  // namespace detail

// Where memory is.
struct Device {
  // What a device is.
  enum class Kind : std::uint8_t {
    cpu,  // host memory
    cuda  // memory of a GPU
  };
  Kind kind = Kind::cpu;  // what this device is
  int index = 0;          // of the device among its kind, as the process sees it; 0 on a CPU

  [[nodiscard]] friend bool operator==(const Device& a, const Device& b) {
    return a.kind == b.kind && a.index == b.index;
  }
  [[nodiscard]] friend bool operator!=(const Device& a, const Device& b) { return !(a == b); }
};

// `size()` elements, contiguous: C++17's stand-in for std::span, which can be made of a variable of it. It owns
// nothing. Span<const T> only reads. Where a range is on a device, so is this: the host must not follow its pointers
// then.
template <class T>
class Span {
 public:
  Span() = default;  // no elements
  // `size` elements from `data` on.
  Span(T* data, std::size_t size, Device device = {}) : data_(data), size_(size), device_(device) {}
  // The same elements, to read only.
  template <class U, std::enable_if_t<std::is_same<const U, T>::value && !std::is_const<U>::value, int> = 0>
  Span(const Span<U>& other)  // NOLINT: a view that only reads
      : Span(other.data(), other.size(), other.device()) {}

  T* data() const { return data_; }                                // null if it was made of nothing
  std::size_t size() const { return size_; }                       // in elements
  [[nodiscard]] bool empty() const { return size_ == 0; }          // whether size() is 0
  Device device() const { return device_; }                        // where the elements are
  T* begin() const { return data_; }                               // the first element
  T* end() const { return data_ + size_; }                         // behind the last element
  T& operator[](std::size_t index) const { return data_[index]; }  // 0 <= index < size(); it is not checked

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  Device device_{};
};

namespace detail {

// Where the elements of a range are. Only a Span knows; others are in host memory.
template <class Range>
Device device_of(const Range&) {
  return {};
}
template <class T>
Device device_of(const Span<T>& span) {
  return span.device();
}

}  // namespace detail

// `count` elements, contiguous, at `data` on `device`. It owns nothing. The pointer is only ever followed by the
// backend of that device: nothing else may assume that it is host memory. A range that is made of a pointer without a
// device says host memory; a group that has a GPU refuses one that points into a GPU's.
struct ConstMemoryRange {
  const void* data = nullptr;         // the first element; may be null if count is 0
  std::size_t count = 0;              // in elements, not in bytes
  DataType type = DataType::float32;  // of the elements
  Device device{};                    // where the elements are

  ConstMemoryRange() = default;  // no elements
  // `count_` elements of any type, from `data_` on.
  ConstMemoryRange(const void* data_, std::size_t count_, DataType type_, Device device_ = {})
      : data(data_), count(count_), type(type_), device(device_) {}
  // Elements in host memory, whose type the pointer says.
  template <class T, DataType kType = DataTypeOf<T>::value>
  ConstMemoryRange(const T* data_, std::size_t count_) : data(data_), count(count_), type(kType) {}
  // The elements of a vector, which may be a temporary: a call that blocks reads it before the vector ends.
  template <class T, DataType kType = DataTypeOf<T>::value>
  ConstMemoryRange(const std::vector<T>& values)  // NOLINT: a vector is such a range
      : data(values.data()), count(values.size()), type(kType) {}
  ConstMemoryRange(const std::vector<bool>&) = delete;  // its elements are bits
  // The elements of any other contiguous range. A container must not be a temporary.
  template <class Range, DataType kType = DataTypeOf<std::remove_cv_t<detail::ElementOf<Range>>>::value,
            std::enable_if_t<detail::OutlivesCall<Range>::value, int> = 0>
  ConstMemoryRange(Range&& values)  // NOLINT: std::array, std::span, Span
      : data(values.data()), count(values.size()), type(kType), device(detail::device_of(values)) {}

  // The size of all elements. Throws InvalidArgument for a type that is none.
  std::size_t bytes() const { return count * size_of(type); }

  // As MemoryRange::as().
  template <class T, DataType kType = DataTypeOf<std::remove_const_t<T>>::value>
  Span<const T> as() const {
    if (type != kType) detail::refuse_other_type(type, kType);
    return {static_cast<const T*>(data), count, device};
  }
};

// As ConstMemoryRange, for memory that is written too.
struct MemoryRange {
  void* data = nullptr;               // the first element; may be null if count is 0
  std::size_t count = 0;              // in elements, not in bytes
  DataType type = DataType::float32;  // of the elements
  Device device{};                    // where the elements are

  MemoryRange() = default;  // no elements
  // `count_` elements of any type, from `data_` on.
  MemoryRange(void* data_, std::size_t count_, DataType type_, Device device_ = {})
      : data(data_), count(count_), type(type_), device(device_) {}
  // Elements in host memory, whose type the pointer says.
  template <class T, DataType kType = DataTypeOf<T>::value>
  MemoryRange(T* data_, std::size_t count_) : data(data_), count(count_), type(kType) {}
  // The elements of a vector.
  template <class T, DataType kType = DataTypeOf<T>::value>
  MemoryRange(std::vector<T>& values)  // NOLINT
      : data(values.data()), count(values.size()), type(kType) {}
  MemoryRange(std::vector<bool>&) = delete;
  // The elements of any other contiguous range. A container must not be a temporary.
  template <class Range, DataType kType = DataTypeOf<detail::ElementOf<Range>>::value,
            std::enable_if_t<detail::OutlivesCall<Range>::value, int> = 0>
  MemoryRange(Range&& values)  // NOLINT: std::array, std::span, Span
      : data(values.data()), count(values.size()), type(kType), device(detail::device_of(values)) {}

  // The same elements, to read only.
  operator ConstMemoryRange() const { return {data, count, type, device}; }  // NOLINT
  // The size of all elements. Throws InvalidArgument for a type that is none.
  std::size_t bytes() const { return count * size_of(type); }

  // Its elements, on its device: as<float>(), or as<const float>() for a view that only reads. Throws InvalidArgument
  // if they are of another type.
  template <class T, DataType kType = DataTypeOf<std::remove_const_t<T>>::value>
  Span<T> as() const {
    if (type != kType) detail::refuse_other_type(type, kType);
    return {static_cast<T*>(data), count, device};
  }
};

// Memory that the backend registered with the group, so that a collective on it needs no staging copy: on a CPU it is
// shared between the processes of the host. Contents start as zero. Freed with the last copy of the handle; the handle
// keeps what it needs of the group alive. A forked child does not inherit the memory.
class DDP_EXPORT RegisteredMemory {
 public:
  RegisteredMemory() = default;  // an empty handle
  // For the library itself; programs call ProcessGroup::allocate().
  RegisteredMemory(std::shared_ptr<void> owner, std::size_t bytes, Device device)
      : owner_(std::move(owner)), bytes_(bytes), device_(device) {}

  void* data() const { return owner_.get(); }   // the first byte; null of an empty handle
  std::size_t bytes() const { return bytes_; }  // what allocate() was asked for; 0 of an empty handle
  Device device() const { return device_; }     // where the memory is

 private:
  std::shared_ptr<void> owner_;  // points at the memory; its deleter gives it back
  std::size_t bytes_ = 0;
  Device device_{};
};

}  // namespace DDP_ABI
}  // namespace ddp
