#include "rendezvous/store/codec.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::store {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian, and so must be the host");

// A text's buffer begins with this at most, and gets the announced length once that much has come: a peer that
// announces 8 MiB and sends nothing costs little.
constexpr std::size_t kTextBytesFirst = 64u << 10;

// What follows the command's byte: k a key, v a value, i a 64-bit integer, m and n the 32-bit magic and nonce. A list
// is a 64-bit count and these fields for each item.
struct Shape {
  std::string_view name;
  std::string_view fields;
  bool is_list = false;
};

constexpr std::array<Shape, std::variant_size_v<Command>> kShapes = {{
    {"VALIDATE", "m"},   {"SET", "kv"},        {"COMPARE_SET", "kvv"},   {"GET", "k"},
    {"ADD", "ki"},       {"CHECK", "k", true}, {"WAIT", "k", true},      {"GETNUMKEYS", ""},
    {"DELETE_KEY", "k"}, {"APPEND", "kv"},     {"MULTI_GET", "k", true}, {"MULTI_SET", "kv", true},
    {"CANCEL_WAIT", ""}, {"PING", "n"},        {"QUEUE_PUSH", "kv"},     {"QUEUE_POP", "k"},
    {"QUEUE_LEN", "k"},  {"LIST_KEYS", ""},    {"BARRIER", "ki"},
}};

const Shape& shape_of(Code code) { return kShapes[static_cast<std::size_t>(code)]; }

std::string hex(std::uint64_t number, int digits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", digits, static_cast<unsigned long long>(number));
  return text;
}

[[noreturn]] void refuse(const std::string& why) { throw StoreError(why); }

[[noreturn]] void refuse_first_byte(std::uint8_t byte) {
  const bool is_letter = (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
  const char* guess = byte == 0x16 ? ", but like TLS" : is_letter ? ", but like HTTP" : "";
  refuse("its first byte, " + hex(byte, 2) + ", is not like a store client of PyTorch 2.2 or later" + guess);
}

void refuse_beyond(Code code, const char* what, std::uint64_t number, std::size_t limit) {
  if (number <= limit) return;
  refuse(std::string(shape_of(code).name) + ": " + what + " " + std::to_string(number) + " is beyond the limit of " +
         std::to_string(limit));
}

template <class Integer>
void append_integer(std::string& out, Integer number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void append_text(std::string& out, std::string_view text) {
  append_integer(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

void append_keys(std::string& out, const std::vector<std::string>& keys) {
  append_integer(out, static_cast<std::uint64_t>(keys.size()));
  for (const auto& key : keys) append_text(out, key);
}

struct FieldWriter {
  std::string& out;
  void operator()(const command::Validate& c) const { append_integer(out, c.magic); }
  void operator()(const command::Set& c) const { append_text(out, c.key), append_text(out, c.value); }
  void operator()(const command::CompareSet& c) const {
    append_text(out, c.key), append_text(out, c.expected), append_text(out, c.desired);
  }
  void operator()(const command::Get& c) const { append_text(out, c.key); }
  void operator()(const command::Add& c) const { append_text(out, c.key), append_integer(out, c.delta); }
  void operator()(const command::Check& c) const { append_keys(out, c.keys); }
  void operator()(const command::Wait& c) const { append_keys(out, c.keys); }
  void operator()(const command::KeyCount&) const {}
  void operator()(const command::Remove& c) const { append_text(out, c.key); }
  void operator()(const command::Append& c) const { append_text(out, c.key), append_text(out, c.value); }
  void operator()(const command::MultiGet& c) const { append_keys(out, c.keys); }
  void operator()(const command::MultiSet& c) const {
    append_integer(out, static_cast<std::uint64_t>(c.entries.size()));
    for (const auto& entry : c.entries) append_text(out, entry.key), append_text(out, entry.value);
  }
  void operator()(const command::CancelWait&) const {}
  void operator()(const command::Ping& c) const { append_integer(out, c.nonce); }
  void operator()(const command::QueuePush& c) const { append_text(out, c.key), append_text(out, c.value); }
  void operator()(const command::QueuePop& c) const { append_text(out, c.key); }
  void operator()(const command::QueueLength& c) const { append_text(out, c.key); }
  void operator()(const command::ListKeys&) const {}
  void operator()(const command::Barrier& c) const { append_text(out, c.key), append_integer(out, c.size); }
};

}  // namespace

std::optional<Command> CommandParser::next(std::string_view& bytes) {
  while (true) {
    switch (stage_) {
      case Stage::code:
        if (bytes.empty()) return std::nullopt;
        begin(static_cast<std::uint8_t>(bytes.front()));
        bytes.remove_prefix(1);
        break;
      case Stage::text:
        if (!take_text(bytes)) return std::nullopt;
        end_field();
        break;
      case Stage::complete:
        stage_ = Stage::code;
        if (code_ != Code::validate) return finish();
        validated_ = true;
        break;
      default:
        if (!take_number(bytes)) return std::nullopt;
        use_number();
    }
  }
}

std::size_t CommandParser::memory_bytes() const {
  if (stage_ == Stage::code) return 0;
  const std::size_t missing = stage_ == Stage::text ? text_bytes_ - texts_.back().size() : 0;
  return command_bytes_ - missing + texts_.capacity() * sizeof(std::string);
}

void CommandParser::begin(std::uint8_t code) {
  if (!validated_ && code != 0) refuse_first_byte(code);
  if (validated_ && code == 0) refuse("VALIDATE came a second time");
  if (code >= kShapes.size()) refuse("command " + std::to_string(code) + " is unknown");
  code_ = Code{code};
  command_bytes_ = 1;
  texts_.clear();  // its room serves again, but for that of a list
  const Shape& shape = shape_of(code_);
  if (shape.is_list) {
    stage_ = Stage::count;
  } else {
    begin_items(shape.fields.empty() ? 0 : 1);
  }
}

void CommandParser::begin_items(std::uint64_t count) {
  items_left_ = count;
  field_ = 0;
  begin_field();
}

// Sets the stage for field_ of the current item.
void CommandParser::begin_field() {
  if (items_left_ == 0) {
    stage_ = Stage::complete;
    return;
  }
  switch (shape_of(code_).fields[field_]) {
    case 'm': stage_ = Stage::magic; break;
    case 'i': stage_ = Stage::integer; break;
    case 'n': stage_ = Stage::nonce; break;
    default: stage_ = Stage::length;
  }
}

void CommandParser::end_field() {
  if (++field_ == shape_of(code_).fields.size()) {
    field_ = 0;
    --items_left_;
  }
  begin_field();
}

// Fills number_ by as many bytes as the stage needs; false while some are missing.
bool CommandParser::take_number(std::string_view& bytes) {
  const std::size_t width = stage_ == Stage::magic || stage_ == Stage::nonce ? 4 : 8;
  if (number_bytes_ == 0) {
    number_ = 0;
    if (bytes.size() >= width) {  // all of it, as nearly always
      std::memcpy(&number_, bytes.data(), width);
      bytes.remove_prefix(width);
      command_bytes_ += width;
      return true;
    }
  }
  for (; number_bytes_ < width; ++number_bytes_, bytes.remove_prefix(1)) {
    if (bytes.empty()) return false;
    number_ |= std::uint64_t{static_cast<unsigned char>(bytes.front())} << (8 * number_bytes_);
  }
  number_bytes_ = 0;
  command_bytes_ += width;
  return true;
}

bool CommandParser::take_text(std::string_view& bytes) {
  std::string& text = texts_.back();
  if (text.empty() && bytes.size() >= text_bytes_) {  // all of it, as nearly always
    text.assign(bytes, 0, text_bytes_);
    bytes.remove_prefix(text_bytes_);
    return true;
  }
  while (text.size() < text_bytes_) {
    if (bytes.empty()) return false;
    text.reserve(text.size() < kTextBytesFirst ? std::min(text_bytes_, kTextBytesFirst) : text_bytes_);
    const auto count = std::min({bytes.size(), text_bytes_ - text.size(), text.capacity() - text.size()});
    text.append(bytes.substr(0, count));
    bytes.remove_prefix(count);
  }
  return true;
}

// Does with the number just read what its stage asks for.
void CommandParser::use_number() {
  switch (stage_) {
    case Stage::magic:
      if (number_ != kMagic) refuse("VALIDATE's magic is " + hex(number_, 8) + ", not " + hex(kMagic, 8));
      return end_field();
    case Stage::count:
      refuse_beyond(code_, "the number of keys,", number_, limits_.list_count_max);
      return begin_items(number_);
    case Stage::length: {
      const bool is_key = shape_of(code_).fields[field_] == 'k';
      refuse_beyond(code_, is_key ? "a key's length," : "a value's length,", number_,
                    is_key ? limits_.key_bytes_max : limits_.value_bytes_max);
      command_bytes_ += number_;
      refuse_beyond(code_, "the command's length,", command_bytes_, limits_.command_bytes_max);
      text_bytes_ = number_;
      texts_.emplace_back();
      stage_ = Stage::text;
      return;
    }
    default: return end_field();  // the integer of ADD and BARRIER and the nonce of PING stay in number_
  }
}

Command CommandParser::finish() {
  const auto text = [this](std::size_t index) { return std::move(texts_[index]); };
  switch (code_) {
    case Code::validate: return command::Validate{};
    case Code::set: return command::Set{text(0), text(1)};
    case Code::compare_set: return command::CompareSet{text(0), text(1), text(2)};
    case Code::get: return command::Get{text(0)};
    case Code::add: return command::Add{text(0), static_cast<std::int64_t>(number_)};
    case Code::check: return command::Check{std::exchange(texts_, {})};
    case Code::wait: return command::Wait{std::exchange(texts_, {})};
    case Code::key_count: return command::KeyCount{};
    case Code::remove: return command::Remove{text(0)};
    case Code::append: return command::Append{text(0), text(1)};
    case Code::multi_get: return command::MultiGet{std::exchange(texts_, {})};
    case Code::multi_set: {
      command::MultiSet multi_set;
      multi_set.entries.reserve(texts_.size() / 2);
      for (std::size_t i = 0; i < texts_.size(); i += 2) multi_set.entries.push_back({text(i), text(i + 1)});
      texts_ = std::vector<std::string>();  // `= {}` would keep the room
      return multi_set;
    }
    case Code::cancel_wait: return command::CancelWait{};
    case Code::ping: return command::Ping{static_cast<std::uint32_t>(number_)};
    case Code::queue_push: return command::QueuePush{text(0), text(1)};
    case Code::queue_pop: return command::QueuePop{text(0)};
    case Code::queue_length: return command::QueueLength{text(0)};
    case Code::list_keys: return command::ListKeys{};
    case Code::barrier: return command::Barrier{text(0), static_cast<std::int64_t>(number_)};
  }
  refuse("command " + std::to_string(static_cast<int>(code_)) + " is unknown");
}

std::string encode(const Command& command) {
  std::string out(1, static_cast<char>(command.index()));
  std::visit(FieldWriter{out}, command);
  return out;
}

std::string encode_value(std::string_view value) {
  std::string out;
  out.reserve(8 + value.size());
  append_text(out, value);
  return out;
}

void append_value(std::string& out, std::string_view value) { append_text(out, value); }

std::string encode_integer(std::int64_t value) {
  std::string out;
  append_integer(out, value);
  return out;
}

std::string encode_nonce(std::uint32_t nonce) {
  std::string out;
  append_integer(out, nonce);
  return out;
}

std::uint64_t decode_u64(std::string_view bytes) {
  std::uint64_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

std::uint32_t decode_u32(std::string_view bytes) {
  std::uint32_t number;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

std::string key_text(std::string_view key) {
  constexpr std::size_t kShownBytesMax = 64;
  std::string out = "\"";
  for (const char c : key.substr(0, kShownBytesMax)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += escaped;
    }
  }
  return out + (key.size() > kShownBytesMax ? "...\"" : "\"");
}

}  // namespace ddp::store
