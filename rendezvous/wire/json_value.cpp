#include "rendezvous/wire/json_value.hpp"

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kFieldsUsual = 8;

// What nlohmann's parser calls as it reads a text. Each call returns whether to go on.
class Builder {
 public:
  bool null() { return put({}); }
  bool boolean(bool value) { return put({value}); }
  bool number_integer(std::int64_t value) { return put({value}); }
  bool number_unsigned(std::uint64_t value) { return put({value}); }
  bool number_float(double value, const std::string&) { return put({value}); }
  bool string(const std::string& value) { return put({value}); }
  bool binary(const nlohmann::json::binary_t&) { return false; }
  bool start_array(std::size_t) { return open(JsonList()); }
  bool end_array() { return close(); }
  bool start_object(std::size_t) {
    JsonObject object;
    if (open_.empty()) object.reserve(kFieldsUsual);  // a message; what is in it may be many, and empty
    return open(std::move(object));
  }
  bool key(const std::string& name) {
    std::get<JsonObject>(open_.back()->content).push_back({name, {}});
    return true;
  }
  bool end_object() { return close(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) { return false; }

  JsonValue take() { return std::move(whole_); }

 private:
  // Where the next value stands.
  JsonValue& place() {
    if (open_.empty()) return whole_;
    if (auto* list = std::get_if<JsonList>(&open_.back()->content)) return list->emplace_back();
    return std::get<JsonObject>(open_.back()->content).back().value;
  }
  bool put(JsonValue value) {
    place() = std::move(value);
    return true;
  }
  template <class Container>
  bool open(Container container) {
    auto& value = place();
    value.content = std::move(container);
    open_.push_back(&value);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonValue whole_;
  std::vector<JsonValue*> open_;  // lists and objects, each within the one before; only the last one grows
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  const auto* object = std::get_if<JsonObject>(&content);
  if (object == nullptr) return nullptr;
  const auto found =
      std::find_if(object->rbegin(), object->rend(), [name](const JsonField& field) { return field.name == name; });
  return found != object->rend() ? &found->value : nullptr;
}

std::optional<JsonValue> parse_json(std::string_view text) {
  Builder builder;
  if (!nlohmann::json::sax_parse(text, &builder)) return {};
  return builder.take();
}

}  // namespace ddp::rendezvous
