#include "launcher/output/error_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/json_depth.hpp"
#include "base/printable.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kFileBytesMax = 1 << 20;
constexpr std::size_t kMessageBytesMax = 400;
constexpr int kDepthMax = 64;

std::string text_of(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};  // nobody is to keep us waiting with a FIFO
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

// Discarded where the text is no JSON, or too deep.
nlohmann::json parse(const std::string& text) {
  if (base::is_nested_deeper(text, kDepthMax)) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, false);
}

// Whatever bytes came in: what is not UTF-8 is replaced rather than thrown at.
std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string error_message_of(const std::string& json_text) {
  const auto json = parse(json_text);
  if (!json.is_object() || !json.contains("message")) return {};
  const auto& outer = json["message"];
  const auto& inner = outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  if (!inner.is_string()) return {};
  const auto text = inner.get<std::string>();
  return base::printable(text.substr(0, text.find('\n')), kMessageBytesMax);
}

std::string read_error_file(const std::string& path) { return error_message_of(text_of(path)); }

std::string error_file_for_caller(const std::string& json_text, const RootCause& cause, long unix_seconds) {
  auto json = parse(json_text);
  if (json.is_object() && json.contains("message")) {
    if (json["message"].is_object()) json["message"]["errorCode"] = cause.exit_code;
    return dump(json);  // where the message is a plain string there is no place for the code
  }
  return dump({{"message",
                {{"message", cause.description},
                 {"errorCode", cause.exit_code},
                 {"extraInfo", {{"timestamp", std::to_string(unix_seconds)}}}}}});
}

bool pass_error_on(const RootCause& cause, const std::string& path) {
  const auto text = error_file_for_caller(text_of(cause.error_file), cause, std::time(nullptr));
  // O_NONBLOCK: of a FIFO without a reader it makes an error.
  const base::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

}  // namespace ddp::launcher
