#include "launcher/node/accusation.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace ddp::launcher {
namespace {

constexpr std::size_t kRanksMax = 16;

bool has(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

// The number at the beginning of the text, which then begins after it.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// "1, 2, 3 ..." after the first such words.
std::vector<int> ranks_after(std::string_view text, std::string_view words) {
  std::vector<int> out;
  const auto at = text.find(words);
  if (at == std::string_view::npos) return out;
  text.remove_prefix(at + words.size());
  while (out.size() < kRanksMax) {
    const auto rank = take_number(text);
    if (!rank) break;
    out.push_back(*rank);
    if (text.substr(0, 2) != ", ") break;
    text.remove_prefix(2);
  }
  return out;
}

struct Words {
  const char *sign, *before_ranks;
};

// torch/csrc/distributed/c10d: ProcessGroupGloo.cpp (monitoredBarrier), ProcessGroupNCCL.cpp (broadcastUniqueNCCLID).
constexpr Words kNaming[] = {{"failed to pass monitoredBarrier", "]: Rank "},
                             {"failed to pass monitoredBarrier", "]: Ranks "},
                             {"successfully reached monitoredBarrier, but received errors", "send/recv from rank "},
                             {"retrieving ncclUniqueId from [", "retrieving ncclUniqueId from ["}};

// Both must be in the message: whose words they are, and what happened.
constexpr Words kUnnamed[] = {{"gloo/transport/", "Connection closed by peer"},
                              {"gloo/transport/", "Connection reset by peer"},
                              {"gloo/transport/", "Broken pipe"},
                              {"gloo/transport/", "Timed out waiting"},
                              {"ncclRemoteError", ""},
                              {"NCCL", "remote process exited"}};

}  // namespace

Accusation accusation_of(const std::string& message) {
  Accusation out;
  for (const auto& words : kNaming)
    if (has(message, words.sign) && out.ranks.empty()) out.ranks = ranks_after(message, words.before_ranks);
  out.missed_a_peer =
      out.ranks.empty() && std::any_of(std::begin(kUnnamed), std::end(kUnnamed), [&](const Words& words) {
        return has(message, words.sign) && has(message, words.before_ranks);
      });
  return out;
}

}  // namespace ddp::launcher
