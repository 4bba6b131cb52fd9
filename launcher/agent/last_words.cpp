#include "launcher/agent/last_words.hpp"

#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "base/with_limit.hpp"
#include "base/write_all.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kLastWordsLimit{2};
constexpr const char* kNoAnswer = "the disk does not answer";

// Returns why not all of it was written; empty if it was.
std::string append(const std::function<base::UniqueFd()>& open, const std::string& text) {
  try {
    const auto file = open();
    const int error = base::write_all(file.get(), text);
    return error == 0 ? "" : std::strerror(error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string append_within_limit(std::function<base::UniqueFd()> open, std::string text,
                                const std::string& failure_text) {
  if (!open) return {};
  const auto failure = base::run_with_limit(
      kLastWordsLimit, [open = std::move(open), text = std::move(text)] { return append(open, text); });
  const auto why = failure.value_or(kNoAnswer);
  return why.empty() ? "" : "ddprun: " + failure_text + why;
}

}  // namespace

std::string write_report_file(std::shared_ptr<const ReportFile> file, const RunEnd& end) {
  if (!file) return {};
  const auto failure =
      base::run_with_limit(kLastWordsLimit, [file = std::move(file), end] { return write_report(*file, end); });
  if (failure && failure->empty()) return {};
  return "error: " + failure.value_or("the report can't be written: " + std::string(kNoAnswer)) +
         "\nwhere: --report\ntry:   free some space there, or another file";
}

std::string write_report_beside_logs(std::function<base::UniqueFd()> open, const RunEnd& end) {
  return append_within_limit(std::move(open), report_json(end), "the report was not written: ");
}

std::string write_own_log(std::function<base::UniqueFd()> open, std::string text) {
  return append_within_limit(std::move(open), std::move(text), "its own log was not written: ");
}

}  // namespace ddp::launcher
