#include "worker_runtime/core/failure/rank_progress.hpp"

#include <algorithm>
#include <charconv>

namespace ddp::core {

namespace {

// Takes a number and the space behind it off the text's front.
template <class Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != ' ') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

std::string encode(int rank, const RankProgress& progress) {
  std::string operation = progress.operation.substr(0, kOperationBytesMax);
  std::replace(operation.begin(), operation.end(), '\n', ' ');
  std::string line = std::to_string(rank) + " ";
  for (const std::uint64_t number : {progress.called, progress.started, progress.completed, progress.oldest}) {
    line += std::to_string(number) + " ";
  }
  return line + operation + "\n";
}

std::vector<std::optional<RankProgress>> decode_progress(std::string_view text, int size) {
  std::vector<std::optional<RankProgress>> all(static_cast<std::size_t>(size));
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    int rank = 0;
    RankProgress progress;
    if (!take_number(line, rank) || rank < 0 || rank >= size) continue;
    if (!take_number(line, progress.called) || !take_number(line, progress.started) ||
        !take_number(line, progress.completed) || !take_number(line, progress.oldest)) {
      continue;
    }
    progress.operation = std::string(line.substr(0, kOperationBytesMax));
    all[static_cast<std::size_t>(rank)] = std::move(progress);
  }
  return all;
}

std::string describe(int rank, const std::optional<RankProgress>& progress) {
  const std::string name = "rank " + std::to_string(rank) + " ";
  if (!progress) return name + "did not answer";
  if (progress->called == 0) return name + "called nothing yet";
  std::string text = name + "called " + std::to_string(progress->called);
  if (progress->completed == progress->called) return text + " and completed it";
  if (progress->started > progress->completed) text += ", started " + std::to_string(progress->started);
  return text + ", completed " + std::to_string(progress->completed);
}

}  // namespace ddp::core
