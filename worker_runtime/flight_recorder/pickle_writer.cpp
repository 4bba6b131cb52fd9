#include "worker_runtime/flight_recorder/pickle_writer.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <limits>
#include <utility>

#include "worker_runtime/files/json_text.hpp"

namespace ddp::flight_recorder {

namespace {

// The opcodes, by their names in pickletools.py.
constexpr char kProto = '\x80';
constexpr char kStop = '.';
constexpr char kMark = '(';
constexpr char kEmptyDict = '}';
constexpr char kSetItems = 'u';
constexpr char kEmptyList = ']';
constexpr char kAppends = 'e';
constexpr char kBinUnicode = 'X';
constexpr char kBinInt1 = 'K';
constexpr char kBinInt = 'J';
constexpr char kLong1 = '\x8a';
constexpr char kBinFloat = 'G';
constexpr char kNewTrue = '\x88';
constexpr char kNewFalse = '\x89';
constexpr char kNone = 'N';

constexpr char kProtocol = 2;

bool is_ascii(std::string_view text) {
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0x80U) != 0) return false;
  }
  return true;
}

}  // namespace

PickleWriter::PickleWriter() {
  put(kProto);
  put(kProtocol);
}

void PickleWriter::put_little_endian(std::uint64_t value, int bytes) {
  std::array<char, 8> text{};
  for (int i = 0; i < bytes; ++i) text[static_cast<std::size_t>(i)] = static_cast<char>(value >> (8 * i));
  out_.append(text.data(), static_cast<std::size_t>(bytes));
}

void PickleWriter::begin_dict() {
  put(kEmptyDict);
  put(kMark);
}

void PickleWriter::begin_list() {
  put(kEmptyList);
  put(kMark);
}

void PickleWriter::end_dict() { put(kSetItems); }
void PickleWriter::end_list() { put(kAppends); }

void PickleWriter::text(std::string_view value) {
  std::string valid;
  if (!is_ascii(value)) value = valid = files::valid_utf8(value);
  put(kBinUnicode);
  put_little_endian(value.size(), 4);
  out_ += value;
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value <= std::numeric_limits<std::uint8_t>::max()) {
    put(kBinInt1);
    put_little_endian(static_cast<std::uint64_t>(value), 1);
  } else if (value >= std::numeric_limits<std::int32_t>::min() && value <= std::numeric_limits<std::int32_t>::max()) {
    put(kBinInt);
    put_little_endian(static_cast<std::uint64_t>(value), 4);
  } else {
    put(kLong1);
    put_little_endian(8, 1);
    put_little_endian(static_cast<std::uint64_t>(value), 8);
  }
}

void PickleWriter::number(double value) {
  put(kBinFloat);
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
}

void PickleWriter::boolean(bool value) { put(value ? kNewTrue : kNewFalse); }
void PickleWriter::none() { put(kNone); }

std::string PickleWriter::finish() {
  put(kStop);
  return std::move(out_);
}

}  // namespace ddp::flight_recorder
