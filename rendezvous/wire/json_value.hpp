// A JSON text as a tree of values. nlohmann::json makes a tree of maps, which costs as much again as to read the text;
// the messages that are read here have so few fields that a search in a list is faster.
//
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ddp::rendezvous {

struct JsonValue;
struct JsonField;
using JsonList = std::vector<JsonValue>;
using JsonObject = std::vector<JsonField>;

struct JsonValue {
  // Whole numbers are unsigned unless they are below 0; those that do not fit 64 bits are double.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, JsonList, JsonObject> content;

  // Null if there is no such field, or the value is no object. Of several fields of this name: the last one.
  const JsonValue* find(std::string_view name) const;
};

struct JsonField {
  std::string name;
  JsonValue value;
};

// Empty if the text is no JSON. Lists and objects within each other need stack for each level.
std::optional<JsonValue> parse_json(std::string_view text);

}  // namespace ddp::rendezvous
