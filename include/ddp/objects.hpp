// Collectives of text, and of whatever the program can turn into bytes:
//
//   std::string name = ddp::broadcast_object(world, run_name, 0);          // root's
//   std::vector<std::string> hosts = ddp::all_gather_object(world, host);  // of rank r at r
//
// For a type of the program's own, it says how that becomes bytes and comes back:
//
//   template <>
//   struct ddp::Serializer<Config> {
//     static std::string to_bytes(const Config& config) { return config.to_json(); }
//     static Config from_bytes(const std::string& bytes) { return Config::from_json(bytes); }
//   };
//
// The bytes come from other ranks of the job, which are trusted as the program itself is.
//
// Costs:  two collectives of the group, the first of 24 bytes for each rank. For configurations and reports, not for
//         tensors.
// Limits: a rank's object has at most ObjectOptions::bytes_max bytes. If that of one rank has more, every rank throws
//         InvalidArgument, no object is sent, and the group stays usable.
// Errors: those of collectives. What to_bytes() throws on a rank, its call throws; the other ranks' calls throw Error,
//         and the group stays usable. What from_bytes() throws, the call throws on that rank alone.
// The group has to take host memory, as in ddp/collectives.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddp/error.hpp"
#include "ddp/memory.hpp"
#include "ddp/process_group.hpp"

namespace ddp {
inline namespace DDP_ABI {

// Specialised for each type that is sent; an example is at the top of this file. Both functions must give the same on
// every rank.
template <class T>
struct Serializer;

// A text is its own bytes.
template <>
struct Serializer<std::string> {
  static const std::string& to_bytes(const std::string& text) { return text; }  // the text
  static std::string from_bytes(std::string bytes) { return bytes; }            // the same text
};

// Options of a call that sends objects.
struct ObjectOptions {
  std::size_t bytes_max = std::size_t{64} << 20;  // of one object; if ranks say otherwise, the smallest counts
  CollectiveOptions collective{};                 // of both collectives
};

namespace detail {

template <class T, class = void>
struct HasSerializer : std::false_type {};
template <class T>
struct HasSerializer<T,
                     std::enable_if_t<std::is_convertible<decltype(Serializer<T>::from_bytes(std::string())), T>::value,
                                      decltype(void(std::string(Serializer<T>::to_bytes(std::declval<const T&>()))))>>
    : std::true_type {};

template <class T>
constexpr void check_serializer() {
  static_assert(HasSerializer<T>::value,
                "ddp: an object is a std::string, or of a type T for which the program specialises "
                "ddp::Serializer<T> with std::string to_bytes(const T&) and T from_bytes(const std::string&). For "
                "numbers and ranges of them: ddp/collectives.hpp");
}

constexpr std::int64_t kNotSerialized = -1;

// What a rank tells the others before any bytes are sent.
struct ObjectNews {
  std::int64_t bytes;      // of its object; 0 if it sends none
  std::int64_t bytes_max;  // its limit
  std::int64_t root;       // -1 of an all_gather
};

// The lengths of all ranks' objects, or an error that is the same on all ranks.
inline std::vector<std::size_t> object_lengths(ProcessGroup& group, const char* call, const ObjectNews& own,
                                               const CollectiveOptions& options) {
  const std::vector<std::int64_t> words{own.bytes, own.bytes_max, own.root};
  std::vector<std::int64_t> all(words.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(words, all, options);
  const auto where = std::string("\nwhere: ") + call;
  std::int64_t bytes_max = own.bytes_max;
  for (std::size_t i = 0; i < all.size(); i += 3) bytes_max = std::min(bytes_max, all[i + 1]);
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < all.size(); i += 3) {
    const std::string rank = "rank " + std::to_string(i / 3);
    if (all[i + 2] != all[2]) {
      throw MismatchError("root is " + std::to_string(all[2]) + " on rank 0 and " + std::to_string(all[i + 2]) +
                          " on " + rank + where + "\ntry:   the same root on all ranks");
    }
    if (all[i] == kNotSerialized) {
      throw Error("the object of " + rank + " could not be turned into bytes" + where +
                  "\ntry:   see the error of that rank");
    }
    if (all[i] > bytes_max) {
      throw InvalidArgument("the object of " + rank + " has " + std::to_string(all[i]) + " bytes, more than " +
                            std::to_string(bytes_max) + where +
                            "\ntry:   a larger ObjectOptions::bytes_max on all ranks, or a smaller object");
    }
    lengths.push_back(static_cast<std::size_t>(all[i]));
  }
  return lengths;
}

inline std::int64_t limited(std::size_t number) {
  constexpr auto kMax = static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max());
  return static_cast<std::int64_t>(std::min(number, kMax));
}

inline MemoryRange bytes_of(std::string& bytes) { return {bytes.data(), bytes.size(), DataType::uint8}; }
inline ConstMemoryRange bytes_of(const std::string& bytes) { return {bytes.data(), bytes.size(), DataType::uint8}; }

// The lengths of all ranks' objects; `bytes` becomes this rank's object if it sends one.
template <class T>
std::vector<std::size_t> agree_on_objects(ProcessGroup& group, const char* call, const T& value, bool sends, int root,
                                          const ObjectOptions& options, std::string& bytes) {
  std::exception_ptr failure;
  if (sends) {
    try {
      bytes = Serializer<T>::to_bytes(value);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  const std::int64_t length = failure ? kNotSerialized : limited(bytes.size());
  try {
    return object_lengths(group, call, {length, limited(options.bytes_max), root}, options.collective);
  } catch (...) {
    if (failure) std::rethrow_exception(failure);
    throw;
  }
}

}  // namespace detail

// Root's `value`. The values of the other ranks are not looked at.
template <class T>
T broadcast_object(ProcessGroup& group, const T& value, int root, const ObjectOptions& options = {}) {
  detail::check_serializer<T>();
  if (root < 0 || root >= group.size()) {
    throw InvalidArgument("root is " + std::to_string(root) + ", ranks are 0 to " + std::to_string(group.size() - 1) +
                          "\nwhere: broadcast_object\ntry:   a rank of the group");
  }
  const bool is_root = group.rank() == root;
  std::string bytes;
  const std::vector<std::size_t> lengths =
      detail::agree_on_objects(group, "broadcast_object", value, is_root, root, options, bytes);
  bytes.resize(lengths[static_cast<std::size_t>(root)]);
  if (!bytes.empty()) group.broadcast(detail::bytes_of(bytes), root, options.collective);
  if (is_root) return value;
  return Serializer<T>::from_bytes(std::move(bytes));
}

// The values of all ranks, by rank. That of this rank has gone through its Serializer too.
template <class T>
std::vector<T> all_gather_object(ProcessGroup& group, const T& value, const ObjectOptions& options = {}) {
  detail::check_serializer<T>();
  std::string own;
  const std::vector<std::size_t> lengths =
      detail::agree_on_objects(group, "all_gather_object", value, true, -1, options, own);
  std::size_t sum = 0;
  for (const std::size_t length : lengths) sum += length;
  std::string all(sum, '\0');
  if (sum > 0) {
    const std::string& input = own;
    group.all_gather_v(detail::bytes_of(input), detail::bytes_of(all), lengths, options.collective);
  }
  std::vector<T> values;
  values.reserve(lengths.size());
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    values.push_back(Serializer<T>::from_bytes(all.substr(begin, length)));
    begin += length;
  }
  return values;
}

}  // namespace DDP_ABI
}  // namespace ddp
