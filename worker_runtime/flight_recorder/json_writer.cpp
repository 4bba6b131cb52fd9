#include "worker_runtime/flight_recorder/json_writer.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include "worker_runtime/files/json_text.hpp"

namespace ddp::flight_recorder {

namespace {

constexpr std::size_t kDepthOfLines = 3;  // what is nested up to here begins a line: an entry is one line

bool is_plain(std::string_view text) {
  for (const char c : text) {
    if (c < ' ' || c > '~' || c == '"' || c == '\\') return false;
  }
  return true;
}

}  // namespace

// Before a key, a list's element, or a key's value, which follows it directly.
void JsonWriter::separate() {
  const bool is_value_of_key = !out_.empty() && out_.back() == ':';
  if (!is_first_) out_ += ',';
  if (!is_value_of_key && !open_.empty() && open_.size() < kDepthOfLines) out_ += '\n';
  is_first_ = false;
}

void JsonWriter::begin_dict() {
  separate();
  out_ += '{';
  open_.push_back('}');
  is_first_ = true;
}

void JsonWriter::begin_list() {
  separate();
  out_ += '[';
  open_.push_back(']');
  is_first_ = true;
}

void JsonWriter::end_dict() {
  out_ += '}';
  open_.pop_back();
  is_first_ = false;
}

void JsonWriter::end_list() {
  out_ += ']';
  open_.pop_back();
  is_first_ = false;
}

void JsonWriter::key(std::string_view name) {
  separate();
  quote(name);
  out_ += ':';
  is_first_ = true;
}

void JsonWriter::text(std::string_view value) {
  separate();
  quote(value);
}

void JsonWriter::quote(std::string_view text) {
  if (!is_plain(text)) {
    out_ += files::json_text(text);
    return;
  }
  out_ += '"';
  out_ += text;
  out_ += '"';
}

void JsonWriter::integer(std::int64_t value) {
  separate();
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out_.append(digits.data(), end);
}

void JsonWriter::number(double value) {
  separate();
  std::array<char, 40> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view shortest(digits.data(), static_cast<std::size_t>(end - digits.data()));
  out_ += shortest;
  if (shortest.find_first_of(".e") == std::string_view::npos) out_ += ".0";  // so that readers take it for a float
}

void JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
}

void JsonWriter::none() {
  separate();
  out_ += "null";
}

std::string JsonWriter::finish() { return std::move(out_) + "\n"; }

}  // namespace ddp::flight_recorder
