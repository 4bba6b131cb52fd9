// What the values of options mean: numbers, lists, masks, addresses and signals, checked.
//
// Pure. Every function takes an option as it was given and throws UsageError with what was wanted, what came, where it
// stood, and an example of a right one.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/command_line/given_options.hpp"
#include "launcher/output/output_options.hpp"

namespace ddp::launcher {

constexpr int kWorkersMax = 4096;
constexpr int kNodesMax = 65'536;
constexpr int kSecondsMax = 7 * 24 * 3600;

// "--tee takes a number, not 'x'", with `example` as the remedy.
[[noreturn]] void throw_wrong_value(const GivenOption& given, const std::string& wanted, const std::string& example);

std::optional<int> whole_number(const std::string& text, int low, int high);
std::optional<std::chrono::milliseconds> seconds(const std::string& text);  // above 0, with a fraction if need be
std::optional<bool> truth(const std::string& text);                         // 1/true/t/yes/y, 0/false/f/no/n

int number_of(const GivenOption& given, int low, int high);
std::string word_of(const GivenOption& given);    // one of those that the option takes literally
std::string name_of(const GivenOption& given);    // printable, neither empty nor long
std::string host_of(const GivenOption& given);    // a name or an address; an IPv6 address without brackets
std::uint16_t port_of(const GivenOption& given);  // 0 to 65535

// "2" is {2, 2}, "1:4" is {1, 4}.
std::pair<int, int> node_counts_of(const GivenOption& given);

// "20000-20100".
std::pair<std::uint16_t, std::uint16_t> port_range_of(const GivenOption& given);

struct Endpoint {
  std::string host;  // an IPv6 address without brackets
  std::optional<std::uint16_t> port;
};
Endpoint endpoint_of(const GivenOption& given);  // "node0", "node0:29400", "[fd00::1]:29400"

// "3", or "0:3,4-7:1" by local rank.
StreamMask stream_mask_of(const GivenOption& given);

std::vector<RankRange> rank_ranges_of(const GivenOption& given);  // "0,4-7"
std::vector<std::string> filters_of(const GivenOption& given);    // parted by commas; two commas are one of the text
std::vector<int> signals_of(const GivenOption& given);            // "SIGTERM,SIGUSR1"

struct KeyValue {
  std::string key, value;
};
std::vector<KeyValue> key_values_of(const GivenOption& given);  // "a=1,b=2", also in quotes

std::vector<std::string> split(const std::string& text,
                               char separator);  // empty parts are kept; an empty text has none

}  // namespace ddp::launcher
