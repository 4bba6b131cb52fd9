#include "worker_runtime/core/failure/verdict.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::core {

namespace {

// By kind: the first word of an encoded verdict.
constexpr std::array kKindNames{"timeout", "rank_failure", "mismatch", "aborted", "round_over", "error"};

}  // namespace

Verdict verdict_of(const std::exception& error) {
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
    return {Verdict::Kind::timeout, error.what(), timeout->ranks()};
  }
  if (const auto* failure = dynamic_cast<const RankFailure*>(&error)) {
    return {Verdict::Kind::rank_failure, error.what(), failure->ranks()};
  }
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return {Verdict::Kind::mismatch, error.what()};
  return {Verdict::Kind::error, error.what()};
}

// "rank_failure 1 3\n" and the message.
std::string encode(const Verdict& verdict) {
  std::string head = kKindNames[static_cast<std::size_t>(verdict.kind)];
  for (const int rank : verdict.ranks) head += " " + std::to_string(rank);
  return head + "\n" + verdict.message;
}

Verdict decode_verdict(std::string_view text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view head = text.substr(0, end);
  const std::string_view kind = head.substr(0, head.find(' '));
  const auto* const found = std::find(kKindNames.begin(), kKindNames.end(), kind);
  Verdict verdict;
  if (found == kKindNames.end()) {
    verdict.message = std::string(text);
    return verdict;
  }
  verdict.kind = static_cast<Verdict::Kind>(found - kKindNames.begin());
  verdict.message = std::string(text.substr(std::min(end + 1, text.size())));
  head.remove_prefix(kind.size());
  while (!head.empty()) {
    head.remove_prefix(1);
    int rank = 0;
    const auto [rest, error] = std::from_chars(head.data(), head.data() + head.size(), rank);
    if (error != std::errc()) break;
    verdict.ranks.push_back(rank);
    head.remove_prefix(static_cast<std::size_t>(rest - head.data()));
  }
  return verdict;
}

void throw_verdict(const Verdict& verdict) {
  switch (verdict.kind) {
    case Verdict::Kind::timeout: throw TimeoutError(verdict.message, verdict.ranks);
    case Verdict::Kind::rank_failure: throw RankFailure(verdict.message, verdict.ranks);
    case Verdict::Kind::mismatch: throw MismatchError(verdict.message);
    case Verdict::Kind::error: throw Error(verdict.message);
    case Verdict::Kind::aborted:
    case Verdict::Kind::round_over: break;
  }
  throw_unusable(verdict);
}

void throw_unusable(const Verdict& first) {
  const std::string message = "the process group is of no further use: " + first.message;
  if (first.kind == Verdict::Kind::round_over) throw RoundOver(message);
  throw AbortedError(message);
}

}  // namespace ddp::core
