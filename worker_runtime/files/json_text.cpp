#include "worker_runtime/files/json_text.hpp"

#include <nlohmann/json.hpp>

namespace ddp::files {

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string valid_utf8(std::string_view text) { return nlohmann::json::parse(json_text(text)).get<std::string>(); }

}  // namespace ddp::files
