#include "rendezvous/worker_link/message.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/json_depth.hpp"

namespace ddp::worker_link {
namespace {

using Json = nlohmann::json;

constexpr int kDepthMax = 8;
constexpr int kRankMax = 1'000'000;
constexpr std::size_t kTextBytesMax = 3 * kWhyBytesMax;     // what is not UTF-8 becomes three bytes for each
constexpr std::uint64_t kStepMax = std::uint64_t{1} << 52;  // JSON implementations keep 53 bits

// Replaces what is not UTF-8, so that no text can make a message fail.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Without a NUL byte, which no field holds.
std::string shortened(const std::string& text) {
  auto out = text.substr(0, kWhyBytesMax);
  std::replace(out.begin(), out.end(), '\0', ' ');
  return out;
}

bool holds_nul(const std::string& text) { return text.find('\0') != std::string::npos; }

Json json_of(const Hello& m) {
  return {{"type", "hello"}, {"version", m.version}, {"takes_seats", m.takes_seats}, {"takes_stops", m.takes_stops}};
}
Json json_of(const Left& m) {
  return {{"type", "left"}, {"round", m.round}, {"hung_ranks", m.hung_ranks}, {"why", shortened(m.why)}};
}
Json json_of(const Progress& m) {
  Json out{{"type", "progress"}, {"round", m.round}, {"has_stepped", m.has_stepped}};
  if (m.commits) out["commits"] = std::min(*m.commits, kStepMax);
  if (m.checkpoint_step) out["checkpoint_step"] = std::min(*m.checkpoint_step, kStepMax);  // the program's own number
  return out;
}
Json json_of(const StopReady& m) { return {{"type", "stop_ready"}, {"round", m.round}, {"call", m.call}}; }
Json json_of(const Stopping& m) { return {{"type", "stopping"}, {"round", m.round}}; }
Json json_of(const RoundOver& m) { return {{"type", "round_over"}, {"round", m.round}, {"why", shortened(m.why)}}; }
Json json_of(const Seat& m) { return {{"type", "seat"}, {"variables", m.variables}}; }
Json json_of(const Stop& m) { return {{"type", "stop"}, {"why", shortened(m.why)}}; }
Json json_of(const PrepareStop& m) { return {{"type", "prepare_stop"}, {"round", m.round}}; }
Json json_of(const StopAt& m) { return {{"type", "stop_at"}, {"round", m.round}, {"call", m.call}}; }

// Not an object, too long or too deep, or not JSON at all: null.
Json object_in(std::string_view packet) {
  if (packet.size() > kPacketBytesMax || base::is_nested_deeper(packet, kDepthMax)) return nullptr;
  auto json = Json::parse(packet, nullptr, false);
  return json.is_object() ? json : Json(nullptr);
}

template <class T>
bool read(const Json& object, const char* name, T& out) {
  const auto field = object.find(name);
  if (field == object.end()) return false;
  if constexpr (std::is_same_v<T, bool>) {
    if (!field->is_boolean()) return false;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (!field->is_string() || holds_nul(field->template get_ref<const std::string&>())) return false;
    if (field->template get_ref<const std::string&>().size() > kTextBytesMax) return false;
  } else {
    if (!field->is_number_integer() || *field < 0 ||
        *field > std::min<std::uint64_t>(kStepMax, std::numeric_limits<T>::max()))
      return false;
  }
  out = field->template get<T>();
  return true;
}

bool read(const Json& object, const char* name, std::optional<std::uint64_t>& out) {
  return object.find(name) == object.end() || read(object, name, out.emplace());
}

bool read(const Json& object, const char* name, std::vector<int>& ranks) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_array() || field->size() > kRanksMax) return false;
  for (const auto& rank : *field) {
    if (!rank.is_number_integer() || rank < 0 || rank > kRankMax) return false;
    ranks.push_back(rank.get<int>());
  }
  return true;
}

bool read(const Json& object, const char* name, std::map<std::string, std::string>& variables) {
  const auto field = object.find(name);
  if (field == object.end() || !field->is_object() || field->size() > kVariablesMax) return false;
  for (const auto& [key, value] : field->items()) {
    if (!value.is_string() || holds_nul(key) || holds_nul(value.get_ref<const std::string&>())) return false;
    variables[key] = value.get<std::string>();
  }
  return true;
}

}  // namespace

std::string encode(const ToAgent& message) {
  return std::visit([](const auto& m) { return text_of(json_of(m)); }, message);
}

std::string encode(const ToWorker& message) {
  return std::visit([](const auto& m) { return text_of(json_of(m)); }, message);
}

std::optional<ToAgent> parse_to_agent(std::string_view packet) {
  const auto object = object_in(packet);
  std::string type;
  if (object.is_null() || !read(object, "type", type)) return {};
  if (type == "hello") {
    Hello m;
    if (read(object, "version", m.version) && read(object, "takes_seats", m.takes_seats) &&
        read(object, "takes_stops", m.takes_stops))
      return m;
  } else if (type == "left") {
    Left m;
    if (read(object, "round", m.round) && read(object, "hung_ranks", m.hung_ranks) && read(object, "why", m.why))
      return m;
  } else if (type == "progress") {
    Progress m;
    if (read(object, "round", m.round) && read(object, "has_stepped", m.has_stepped) &&
        read(object, "commits", m.commits) && read(object, "checkpoint_step", m.checkpoint_step))
      return m;
  } else if (type == "stop_ready") {
    StopReady m;
    if (read(object, "round", m.round) && read(object, "call", m.call)) return m;
  } else if (type == "stopping") {
    Stopping m;
    if (read(object, "round", m.round)) return m;
  }
  return {};
}

std::optional<ToWorker> parse_to_worker(std::string_view packet) {
  const auto object = object_in(packet);
  std::string type;
  if (object.is_null() || !read(object, "type", type)) return {};
  if (type == "round_over") {
    RoundOver m;
    if (read(object, "round", m.round) && read(object, "why", m.why)) return m;
  } else if (type == "seat") {
    Seat m;
    if (read(object, "variables", m.variables)) return m;
  } else if (type == "stop") {
    Stop m;
    if (read(object, "why", m.why)) return m;
  } else if (type == "prepare_stop") {
    PrepareStop m;
    if (read(object, "round", m.round)) return m;
  } else if (type == "stop_at") {
    StopAt m;
    if (read(object, "round", m.round) && read(object, "call", m.call)) return m;
  }
  return {};
}

}  // namespace ddp::worker_link
