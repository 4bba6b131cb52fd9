#include "launcher/command_line/option_values.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <csignal>

#include "base/address.hpp"
#include "base/printable.hpp"
#include "launcher/command_line/nearest_word.hpp"
#include "launcher/worker_group/exit_code.hpp"

namespace ddp::launcher {
namespace {

constexpr int kRanksMax = kWorkersMax * kNodesMax;
constexpr std::size_t kNameBytesMax = 200;  // a folder and a key of the store are named by it

std::string shown(const GivenOption& given) { return "--" + std::string(given.option->name); }

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string lower(std::string text) {
  for (auto& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// "3" or "4-7".
std::optional<RankRange> rank_range(const std::string& text, int max) {
  const auto dash = text.find('-');
  const auto first = whole_number(text.substr(0, dash), 0, max);
  const auto last = dash == std::string::npos ? first : whole_number(text.substr(dash + 1), 0, max);
  if (!first || !last || *first > *last) return {};
  return RankRange{*first, *last};
}

std::string without_brackets(const std::string& text) {
  const bool has = text.size() > 2 && text.front() == '[' && text.back() == ']';
  return has ? text.substr(1, text.size() - 2) : text;
}

// Why ddprun cannot take this signal in as an event; empty where it can.
std::string_view unfit_signal(int number) {
  switch (number) {
    case SIGKILL:
    case SIGSTOP: return "no program can handle it";
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGABRT:
    case SIGTRAP:
    case SIGSYS: return "it tells of a fault in the program that gets it";
    case SIGCHLD:
    case SIGCONT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGWINCH:
    case SIGPIPE: return "ddprun needs it itself";
    default: return {};
  }
}

int signal_of(const GivenOption& given, const std::string& text) {
  std::string name = text;
  for (auto& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (name.rfind("SIG", 0) != 0) name = "SIG" + name;
  std::vector<std::string> fit;
  for (int number = 1; number < 32; ++number) {
    const auto why = unfit_signal(number);
    if (why.empty()) fit.push_back(signal_name(number));
    if (signal_name(number) != name) continue;
    if (why.empty()) return number;
    throw UsageError(shown(given) + " can't have " + name + ": " + std::string(why), given.where,
                     "`" + shown(given) + "=SIGUSR1`; SIGTERM, SIGINT, SIGHUP and SIGQUIT are the usual ones");
  }
  const auto nearest = nearest_word(name, {fit.begin(), fit.end()});
  throw UsageError(
      shown(given) + ": there is no signal '" + text + "'", given.where,
      "`" + shown(given) + "=" + (nearest.empty() ? "SIGUSR1" : std::string(nearest)) + "`; `kill -l` lists all");
}

}  // namespace

void throw_wrong_value(const GivenOption& given, const std::string& wanted, const std::string& example) {
  throw UsageError(shown(given) + " takes " + wanted + ", not '" + given.value + "'", given.where,
                   "`" + shown(given) + "=" + example + "`");
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; !text.empty() && at <= text.size();) {
    const auto end = std::min(text.size(), text.find(separator, at));
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::optional<int> whole_number(const std::string& text, int low, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) return {};
  return value;
}

std::optional<std::chrono::milliseconds> seconds(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc{} || end != text.data() + text.size() || !(value > 0) || value > kSecondsMax) return {};
  const std::chrono::milliseconds out(static_cast<long>(value * 1000 + 0.5));
  return std::max(out, std::chrono::milliseconds(1));
}

std::optional<bool> truth(const std::string& text) {
  const auto word = lower(text);
  for (const auto* yes : {"1", "true", "t", "yes", "y"})
    if (word == yes) return true;
  for (const auto* no : {"0", "false", "f", "no", "n"})
    if (word == no) return false;
  return {};
}

int number_of(const GivenOption& given, int low, int high) {
  if (const auto value = whole_number(given.value, low, high)) return *value;
  throw_wrong_value(given, "a whole number from " + std::to_string(low) + " to " + std::to_string(high),
                    std::to_string(low));
}

std::string word_of(const GivenOption& given) {
  const auto words = literal_values(*given.option);
  if (std::find(words.begin(), words.end(), given.value) != words.end()) return given.value;
  std::string list;
  for (std::size_t i = 0; i < words.size(); ++i)
    list += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  const auto nearest = nearest_word(lower(given.value), words);
  throw_wrong_value(given, list, std::string(nearest.empty() ? words.front() : nearest));
}

std::string name_of(const GivenOption& given) {
  if (!given.value.empty() && given.value.size() <= kNameBytesMax && base::is_printable(given.value))
    return given.value;
  throw_wrong_value(given, "a name of 1 to " + std::to_string(kNameBytesMax) + " printable characters", "train");
}

std::string host_of(const GivenOption& given) {
  const auto host = without_brackets(given.value);
  if (base::is_host(host)) return host;
  throw_wrong_value(given, "a host's name or address", "10.0.0.1");
}

std::uint16_t port_of(const GivenOption& given) { return static_cast<std::uint16_t>(number_of(given, 0, 65535)); }

std::pair<int, int> node_counts_of(const GivenOption& given) {
  const auto colon = given.value.find(':');
  const auto low = whole_number(given.value.substr(0, colon), 1, kNodesMax);
  const auto high = colon == std::string::npos ? low : whole_number(given.value.substr(colon + 1), 1, kNodesMax);
  if (low && high && *low <= *high) return {*low, *high};
  throw_wrong_value(given, "a number of nodes or a range MIN:MAX, from 1 to " + std::to_string(kNodesMax),
                    low && high ? std::to_string(*high) + ":" + std::to_string(*low) : "1:4");
}

std::pair<std::uint16_t, std::uint16_t> port_range_of(const GivenOption& given) {
  const auto dash = given.value.find('-');
  const auto first = whole_number(given.value.substr(0, dash), 1, 65535);
  const auto last = dash == std::string::npos ? std::nullopt : whole_number(given.value.substr(dash + 1), 1, 65535);
  if (!first || !last || *first > *last)
    throw_wrong_value(given, "two ports from 1 to 65535 with a dash between", "20000-20100");
  return {static_cast<std::uint16_t>(*first), static_cast<std::uint16_t>(*last)};
}

Endpoint endpoint_of(const GivenOption& given) {
  const auto& text = given.value;
  const auto bracket = text.rfind(']');
  const auto colon = text.find(':', bracket == std::string::npos ? 0 : bracket);
  Endpoint endpoint{text.substr(0, colon), {}};
  const bool bracketed = endpoint.host != without_brackets(endpoint.host);
  endpoint.host = without_brackets(endpoint.host);
  if (colon != std::string::npos) {
    const auto port = whole_number(text.substr(colon + 1), 0, 65535);
    if (!port && base::parse_address(text))
      throw_wrong_value(given, "an IPv6 address in brackets", "[" + text + "]:29400");
    if (!port) throw_wrong_value(given, "HOST or HOST:PORT with a port from 0 to 65535", "node0:29400");
    endpoint.port = static_cast<std::uint16_t>(*port);
  }
  if (!base::is_host(endpoint.host) || (!bracketed && endpoint.host.find(':') != std::string::npos))
    throw_wrong_value(given, "HOST or HOST:PORT", "node0:29400");
  return endpoint;
}

StreamMask stream_mask_of(const GivenOption& given) {
  StreamMask mask;
  if (const auto all = whole_number(given.value, 0, 3)) {
    mask.all = *all;
    return mask;
  }
  const auto refuse = [&given] {
    throw_wrong_value(given, "a mask (0 none, 1 stdout, 2 stderr, 3 both) or masks by local rank", "0:3,4-7:1");
  };
  const auto parts = split(given.value, ',');
  if (parts.empty()) refuse();
  for (const auto& part : parts) {
    const auto colon = part.find(':');
    const auto range = rank_range(part.substr(0, colon), kWorkersMax - 1);
    const auto streams = colon == std::string::npos ? std::nullopt : whole_number(part.substr(colon + 1), 0, 3);
    if (!range || !streams) refuse();
    for (int rank = range->first; rank <= range->last; ++rank) mask.by_local_rank[rank] = *streams;
  }
  return mask;
}

std::vector<RankRange> rank_ranges_of(const GivenOption& given) {
  std::vector<RankRange> out;
  for (const auto& part : split(given.value, ',')) {
    const auto range = rank_range(trimmed(part), kRanksMax);
    if (!range) throw_wrong_value(given, "ranks and ranges of them with commas between", "0,4-7");
    out.push_back(*range);
  }
  return out;
}

std::vector<std::string> filters_of(const GivenOption& given) {
  std::vector<std::string> out;
  std::string text;
  for (std::size_t at = 0; at < given.value.size(); ++at) {
    const bool comma = given.value[at] == ',';
    const bool doubled = comma && at + 1 < given.value.size() && given.value[at + 1] == ',';
    if (comma && !doubled) {
      out.push_back(std::exchange(text, {}));
      continue;
    }
    text += given.value[at];
    if (doubled) ++at;
  }
  out.push_back(text);
  out.erase(std::remove(out.begin(), out.end(), std::string()), out.end());  // an empty one would match every line
  return out;
}

std::vector<int> signals_of(const GivenOption& given) {
  std::vector<int> out;
  for (const auto& part : split(given.value, ',')) {
    const int number = signal_of(given, trimmed(part));
    if (std::find(out.begin(), out.end(), number) == out.end()) out.push_back(number);
  }
  return out;
}

std::vector<KeyValue> key_values_of(const GivenOption& given) {
  auto text = trimmed(given.value);
  for (const char quote : {'"', '\''})
    if (text.size() > 1 && text.front() == quote && text.back() == quote) text = text.substr(1, text.size() - 2);
  std::vector<KeyValue> out;
  for (const auto& part : split(text, ',')) {
    const auto equals = part.find('=');
    KeyValue pair{trimmed(part.substr(0, equals)), equals == std::string::npos ? "" : trimmed(part.substr(equals + 1))};
    if (pair.key.empty() || pair.value.empty())
      throw_wrong_value(given, "KEY=VALUE with commas between", "join_timeout=600,last_call_timeout=30");
    out.push_back(std::move(pair));
  }
  return out;
}

}  // namespace ddp::launcher
