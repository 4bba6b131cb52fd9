#include "rendezvous/worker_link/message.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

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

// The names on the wire. Each message of the variants needs one, and its fields in both directions.
template <class Message>
constexpr const char* kTypeOf = nullptr;
template <>
constexpr const char* kTypeOf<LinkHello> = "hello";
template <>
constexpr const char* kTypeOf<LinkLeft> = "left";
template <>
constexpr const char* kTypeOf<LinkProgress> = "progress";
template <>
constexpr const char* kTypeOf<LinkStopReady> = "stop_ready";
template <>
constexpr const char* kTypeOf<LinkStopping> = "stopping";
template <>
constexpr const char* kTypeOf<LinkRoundOver> = "round_over";
template <>
constexpr const char* kTypeOf<LinkSeat> = "seat";
template <>
constexpr const char* kTypeOf<LinkStop> = "stop";
template <>
constexpr const char* kTypeOf<LinkPrepareStop> = "prepare_stop";
template <>
constexpr const char* kTypeOf<LinkStopAt> = "stop_at";

constexpr std::array kDepartureNames{"in_order", "own_error", "for_others"};  // by kind

Json json_of(const Departure& m) {
  return {{"round", m.round},          {"kind", name_of(m.kind)},  {"ranks", m.ranks},
          {"why", shortened(m.why)},   {"unreached", m.unreached}, {"was_in_call", m.was_in_call},
          {"hung_ranks", m.hung_ranks}};
}

Json fields_of(const LinkHello& m) {
  Json out{{"version", m.version}, {"takes_seats", m.takes_seats}, {"takes_stops", m.takes_stops}};
  if (m.departure) out["departure"] = json_of(*m.departure);
  return out;
}
Json fields_of(const LinkLeft& m) {
  return {{"round", m.round}, {"hung_ranks", m.hung_ranks}, {"why", shortened(m.why)}, {"was_in_call", m.was_in_call}};
}
Json fields_of(const LinkProgress& m) {
  Json out{{"round", m.round}, {"has_stepped", m.has_stepped}};
  if (m.commits) out["commits"] = std::min(*m.commits, kStepMax);
  if (m.checkpoint_step) out["checkpoint_step"] = std::min(*m.checkpoint_step, kStepMax);  // the program's own number
  return out;
}
Json fields_of(const LinkStopReady& m) { return {{"round", m.round}, {"call", m.call}}; }
Json fields_of(const LinkStopping& m) { return {{"round", m.round}}; }
Json fields_of(const LinkRoundOver& m) { return {{"round", m.round}, {"why", shortened(m.why)}}; }
Json fields_of(const LinkSeat& m) { return {{"variables", m.variables}}; }
Json fields_of(const LinkStop& m) { return {{"why", shortened(m.why)}}; }
Json fields_of(const LinkPrepareStop& m) { return {{"round", m.round}}; }
Json fields_of(const LinkStopAt& m) { return {{"round", m.round}, {"call", m.call}}; }

template <class Message>
Json json_of(const Message& message) {
  static_assert(kTypeOf<Message> != nullptr, "a message without a name");
  auto out = fields_of(message);
  out["type"] = kTypeOf<Message>;
  return out;
}

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

// One that an older worker does not say.
template <class T>
bool read_if_any(const Json& object, const char* name, T& out) {
  return object.find(name) == object.end() || read(object, name, out);
}

// One of a kind that is not known is passed over.
bool read(const Json& object, const char* name, std::optional<Departure>& out) {
  const auto field = object.find(name);
  if (field == object.end()) return true;
  Departure departure;
  std::string kind;
  if (!field->is_object() || !read(*field, "round", departure.round) || !read(*field, "kind", kind) ||
      !read(*field, "ranks", departure.ranks) || !read(*field, "why", departure.why) ||
      !read_if_any(*field, "unreached", departure.unreached) ||
      !read_if_any(*field, "was_in_call", departure.was_in_call) ||
      !read_if_any(*field, "hung_ranks", departure.hung_ranks))
    return false;
  const auto* const found = std::find(kDepartureNames.begin(), kDepartureNames.end(), kind);
  if (found == kDepartureNames.end()) return true;
  departure.kind = static_cast<Departure::Kind>(found - kDepartureNames.begin());
  out = std::move(departure);
  return true;
}

bool read(const Json& object, LinkHello& m) {
  return read(object, "version", m.version) && read(object, "takes_seats", m.takes_seats) &&
         read(object, "takes_stops", m.takes_stops) && read(object, "departure", m.departure);
}
bool read(const Json& object, LinkLeft& m) {
  return read(object, "round", m.round) && read(object, "hung_ranks", m.hung_ranks) && read(object, "why", m.why) &&
         read_if_any(object, "was_in_call", m.was_in_call);
}
bool read(const Json& object, LinkProgress& m) {
  return read(object, "round", m.round) && read(object, "has_stepped", m.has_stepped) &&
         read(object, "commits", m.commits) && read(object, "checkpoint_step", m.checkpoint_step);
}
bool read(const Json& object, LinkStopReady& m) {
  return read(object, "round", m.round) && read(object, "call", m.call);
}
bool read(const Json& object, LinkStopping& m) { return read(object, "round", m.round); }
bool read(const Json& object, LinkRoundOver& m) { return read(object, "round", m.round) && read(object, "why", m.why); }
bool read(const Json& object, LinkSeat& m) { return read(object, "variables", m.variables); }
bool read(const Json& object, LinkStop& m) { return read(object, "why", m.why); }
bool read(const Json& object, LinkPrepareStop& m) { return read(object, "round", m.round); }
bool read(const Json& object, LinkStopAt& m) { return read(object, "round", m.round) && read(object, "call", m.call); }

template <class Message, class Messages>
bool read_if_it_is(const Json& object, const std::string& type, std::optional<Messages>& out) {
  Message message;
  if (type != kTypeOf<Message> || !read(object, message)) return false;
  out = std::move(message);
  return true;
}

template <class... Messages>
void read_one(const Json& object, std::optional<std::variant<Messages...>>& out) {
  std::string type;
  if (object.is_null() || !read(object, "type", type)) return;
  static_cast<void>((read_if_it_is<Messages>(object, type, out) || ...));
}

}  // namespace

const char* name_of(Departure::Kind kind) { return kDepartureNames[static_cast<std::size_t>(kind)]; }

std::string encode(const FromWorker& message) {
  return std::visit([](const auto& m) { return text_of(json_of(m)); }, message);
}

std::string encode(const ToWorker& message) {
  return std::visit([](const auto& m) { return text_of(json_of(m)); }, message);
}

std::optional<FromWorker> parse_from_worker(std::string_view packet) {
  std::optional<FromWorker> out;
  read_one(object_in(packet), out);
  return out;
}

std::optional<ToWorker> parse_to_worker(std::string_view packet) {
  std::optional<ToWorker> out;
  read_one(object_in(packet), out);
  return out;
}

}  // namespace ddp::worker_link
