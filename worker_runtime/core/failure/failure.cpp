#include "worker_runtime/core/failure/failure.hpp"

#include <algorithm>
#include <charconv>

#include "worker_runtime/core/failure/rank_progress.hpp"

namespace ddp::core {

namespace {

constexpr std::size_t kWhatBytesMax = 2'000;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Takes the text in front of a separator off `text`.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return front;
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string encode(const Failure& failure) {
  std::string peers;
  for (const int peer : failure.peers) peers += (peers.empty() ? "" : ",") + std::to_string(peer);
  return std::to_string(static_cast<int>(failure.cause)) + " " + std::to_string(failure.rank) + " " +
         std::to_string(failure.number) + " " + std::to_string(failure.bytes) + " " +
         std::to_string(failure.limit.count()) + " " + peers + "\n" +
         first_line(failure.operation).substr(0, kOperationBytesMax) + "\n" +
         first_line(failure.what).substr(0, kWhatBytesMax);
}

std::optional<Failure> decode_failure(std::string_view text, int size) {
  std::string_view numbers = take(text, '\n');
  int cause = 0;
  std::chrono::milliseconds::rep limit = 0;
  Failure failure;
  if (!parse(take(numbers, ' '), cause) || cause < 0 || cause > static_cast<int>(Cause::ranks_lost))
    return std::nullopt;
  if (!parse(take(numbers, ' '), failure.rank) || failure.rank < 0 || failure.rank >= size) return std::nullopt;
  if (!parse(take(numbers, ' '), failure.number) || !parse(take(numbers, ' '), failure.bytes) ||
      !parse(take(numbers, ' '), limit)) {
    return std::nullopt;
  }
  while (!numbers.empty()) {
    int peer = 0;
    if (!parse(take(numbers, ','), peer) || peer < 0 || peer >= size) return std::nullopt;
    failure.peers.push_back(peer);
  }
  failure.cause = static_cast<Cause>(cause);
  failure.limit = std::chrono::milliseconds(limit);
  failure.operation = std::string(take(text, '\n').substr(0, kOperationBytesMax));
  failure.what = std::string(text.substr(0, kWhatBytesMax));
  return failure;
}

}  // namespace ddp::core
