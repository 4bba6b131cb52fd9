// A packet on the socket between a worker and its agent, which may be anything. A message that is taken keeps to the
// limits of docs/worker_link.md, and it survives encoding and parsing.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "rendezvous/worker_link/message.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

using namespace ddp::worker_link;
using ddp::fuzz::require;

constexpr std::size_t kTextBytesMax = 3 * kWhyBytesMax;  // what is not UTF-8 was replaced by three bytes each
constexpr int kRankMax = 1'000'000;

bool holds_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

void require_limits(const std::string& text) {
  require(text.size() <= kTextBytesMax && !holds_nul(text), "a text keeps to its limit and holds no NUL");
}

template <class Message>
void require_limits(const Message& message) {
  if constexpr (requires { message.why; }) require_limits(message.why);
  if constexpr (std::is_same_v<Message, LinkLeft>) {
    const auto& ranks = message.hung_ranks;
    require(ranks.size() <= kRanksMax, "few ranks are named");
    require(std::all_of(ranks.begin(), ranks.end(), [](int rank) { return rank >= 0 && rank <= kRankMax; }),
            "ranks are in range");
  }
  if constexpr (std::is_same_v<Message, LinkSeat>) {
    require(message.variables.size() <= kVariablesMax, "few variables are named");
    for (const auto& [name, value] : message.variables)
      require(!holds_nul(name) && !holds_nul(value), "no variable holds NUL, which would end it");
  }
}

template <class Message, class Parse>
void check(std::string_view packet, Parse parse) {
  const std::optional<Message> first = parse(packet);
  if (!first) return;
  require(packet.size() <= kPacketBytesMax, "a packet keeps to its limit");
  std::visit([](const auto& message) { require_limits(message); }, *first);
  const std::string text = encode(*first);
  if (text.size() > kPacketBytesMax) return;  // a seat's values have no limit of their own, and escapes are longer
  const auto second = parse(text);
  require(second.has_value() && second->index() == first->index(), "what was taken can be said");
  require(encode(*second) == text, "and is the same message again");  // the first text may be longer than is said
}

}  // namespace

void ddp::fuzz::worker_link(std::string_view input) {
  check<FromWorker>(input, parse_from_worker);
  check<ToWorker>(input, parse_to_worker);
}
