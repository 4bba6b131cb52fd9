#include "launcher/output/error_file.hpp"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ddp::launcher {
namespace {

constexpr std::size_t kFileBytesMax = 1 << 20;
constexpr std::size_t kMessageBytesMax = 400;

}  // namespace

std::string error_message_of(const std::string& json_text) {
  const auto json = nlohmann::json::parse(json_text, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return {};
  const auto& outer = json["message"];
  const auto& inner = outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  if (!inner.is_string()) return {};
  auto text = inner.get<std::string>();
  text = text.substr(0, text.find('\n'));
  return text.substr(0, kMessageBytesMax);
}

std::string read_error_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};  // nobody is to keep us waiting with a FIFO
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return error_message_of(text);
}

}  // namespace ddp::launcher
