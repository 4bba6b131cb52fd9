// The bytes of PyTorch's TCPStore wire protocol: commands in and out, answers out.
//
// A command is one byte and its fields; texts are a 64-bit length and that many bytes, of any value. Nothing frames a
// command, so the parser walks the stream field by field: whatever the cuts, each byte is looked at once, and a command
// is handed out only when its last byte is there. Integers are little-endian: the reference writes the host's order,
// and every host it runs on is little-endian.
//
// Pure. Threads: one caller at a time for each parser.
// Protocol: docs/store_protocol.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ddp::store {

// Source of the first three: PyTorch, TCPStoreLibUvBackend.cpp, which closes the connection beyond them.
constexpr std::size_t kKeyBytesMax = 8192;
constexpr std::size_t kValueBytesMax = 8u << 20;
constexpr std::size_t kListCountMax = 131'072;
// Ours: what one command, or one answer, may occupy. 131072 keys of 8192 bytes would be 1 GiB for one connection.
constexpr std::size_t kMessageBytesMax = 64u << 20;

constexpr std::uint32_t kMagic = 0x3C85F7CE;  // VALIDATE's, the first thing a client sends

enum class Code : std::uint8_t {
  validate = 0,
  set = 1,
  compare_set = 2,
  get = 3,
  add = 4,
  check = 5,
  wait = 6,
  key_count = 7,
  remove = 8,
  append = 9,
  multi_get = 10,
  multi_set = 11,
  cancel_wait = 12,
  ping = 13,
  queue_push = 14,
  queue_pop = 15,
  queue_length = 16,
  list_keys = 17,
  barrier = 18,
};

struct KeyValue {
  std::string key, value;
  bool operator==(const KeyValue&) const = default;
};

// clang-format off
namespace command {
struct Validate { std::uint32_t magic = kMagic; bool operator==(const Validate&) const = default; };
struct Set { std::string key, value; bool operator==(const Set&) const = default; };
struct CompareSet { std::string key, expected, desired; bool operator==(const CompareSet&) const = default; };
struct Get { std::string key; bool operator==(const Get&) const = default; };
struct Add { std::string key; std::int64_t delta = 0; bool operator==(const Add&) const = default; };
struct Check { std::vector<std::string> keys; bool operator==(const Check&) const = default; };
struct Wait { std::vector<std::string> keys; bool operator==(const Wait&) const = default; };
struct KeyCount { bool operator==(const KeyCount&) const = default; };
struct Remove { std::string key; bool operator==(const Remove&) const = default; };
struct Append { std::string key, value; bool operator==(const Append&) const = default; };
struct MultiGet { std::vector<std::string> keys; bool operator==(const MultiGet&) const = default; };
struct MultiSet { std::vector<KeyValue> entries; bool operator==(const MultiSet&) const = default; };
struct CancelWait { bool operator==(const CancelWait&) const = default; };
struct Ping { std::uint32_t nonce = 0; bool operator==(const Ping&) const = default; };
struct QueuePush { std::string key, value; bool operator==(const QueuePush&) const = default; };
struct QueuePop { std::string key; bool operator==(const QueuePop&) const = default; };
struct QueueLength { std::string key; bool operator==(const QueueLength&) const = default; };
struct ListKeys { bool operator==(const ListKeys&) const = default; };
struct Barrier { std::string key; std::int64_t size = 0; bool operator==(const Barrier&) const = default; };
}  // namespace command
// clang-format on

// In the order of their codes.
using Command =
    std::variant<command::Validate, command::Set, command::CompareSet, command::Get, command::Add, command::Check,
                 command::Wait, command::KeyCount, command::Remove, command::Append, command::MultiGet,
                 command::MultiSet, command::CancelWait, command::Ping, command::QueuePush, command::QueuePop,
                 command::QueueLength, command::ListKeys, command::Barrier>;

struct ParserLimits {
  std::size_t key_bytes_max = kKeyBytesMax;
  std::size_t value_bytes_max = kValueBytesMax;
  std::size_t list_count_max = kListCountMax;
  std::size_t command_bytes_max = kMessageBytesMax;  // of one whole command on the wire
};

// The server's side of one connection. The first command must be VALIDATE with the right magic, and it comes only once.
class CommandParser {
 public:
  explicit CommandParser(ParserLimits limits = {}) : limits_(limits) {}

  // Takes bytes off the front of `bytes`, up to the end of one command, and returns that command; empty where all bytes
  // were taken and more are needed. Throws StoreError, with what was wrong: the connection ends there.
  std::optional<Command> next(std::string_view& bytes);

  // What the command occupies of which a part has come.
  std::size_t memory_bytes() const;

 private:
  enum class Stage : std::uint8_t { code, magic, count, length, text, integer, nonce, complete };

  void begin(std::uint8_t code);
  void begin_items(std::uint64_t count);
  void begin_field();
  void end_field();
  bool take_number(std::string_view& bytes);
  bool take_text(std::string_view& bytes);
  void use_number();
  Command finish();

  ParserLimits limits_;
  bool validated_ = false;
  Stage stage_ = Stage::code;
  Code code_{};
  std::size_t command_bytes_ = 0;   // of this command so far, with what its last length has announced
  std::size_t items_left_ = 0;      // of a list, the current one included; a plain command is one item
  std::size_t field_ = 0;           // index into the fields of the current item
  std::uint64_t number_ = 0;        // the integer being read, then the last one read
  std::size_t number_bytes_ = 0;    // of it so far
  std::size_t text_bytes_ = 0;      // length of the text being read
  std::vector<std::string> texts_;  // those of this command so far, the last perhaps in part
};

// A command as the client sends it. Requires texts and lists within the limits above.
std::string encode(const Command& command);

// Answers, as the server sends them.
constexpr char kReady = 0;                                    // CHECK: all keys are there
constexpr char kNotReady = 1;                                 // CHECK: not all
constexpr char kWaitFulfilled = 0;                            // WAIT: all keys are there; BARRIER: all came
constexpr char kWaitCancelled = 1;                            // CANCEL_WAIT, always
std::string encode_value(std::string_view value);             // COMPARE_SET, GET
void append_value(std::string& out, std::string_view value);  // MULTI_GET, QUEUE_POP, LIST_KEYS: after what is there
std::string encode_integer(std::int64_t value);               // ADD, GETNUMKEYS, DELETE_KEY, QUEUE_LEN
std::string encode_nonce(std::uint32_t nonce);                // PING

// Little-endian, from the front of `bytes`. Requires at least 8 (4) bytes.
std::uint64_t decode_u64(std::string_view bytes);
std::uint32_t decode_u32(std::string_view bytes);

// A key for a message: quoted, cut to 64 bytes, everything but printable ASCII as \x00.
std::string key_text(std::string_view key);

}  // namespace ddp::store
