#include "launcher/guardian/node_record.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/random_key.hpp"
#include "base/unique_fd.hpp"
#include "base/write_all.hpp"

namespace ddp::launcher {
namespace {

using Json = nlohmann::json;

constexpr const char* kRecord = "node.json";
constexpr const char* kNewRecord = "node.json.new";
constexpr std::size_t kRecordBytesMax = 4096;
constexpr int kNodesMax = 65'536;
constexpr std::time_t kOldSeconds = 24 * 3600;

std::string identity_of(const std::string& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return {};
  return std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

std::string text_in(const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<char, kRecordBytesMax> bytes{};
  const auto count = file ? ::read(file.get(), bytes.data(), bytes.size()) : -1;
  return count > 0 ? std::string(bytes.data(), static_cast<std::size_t>(count)) : std::string();
}

}  // namespace

void write_record(const std::string& folder, const NodeRecord& record) noexcept {
  try {
    const auto& node = record.node;
    const Json json{{"folder", identity_of(folder)}, {"run_id", record.run_id},
                    {"node_key", node.node_key},     {"round", to_string(node.round)},
                    {"group_rank", node.group_rank}, {"group_world_size", node.group_world_size},
                    {"nonce", node.nonce},           {"pid", record.pid}};
    const auto path = folder + "/" + kNewRecord;
    base::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file || base::write_all(file.get(), json.dump()) != 0) return;
    file.reset();
    static_cast<void>(::rename(path.c_str(), (folder + "/" + kRecord).c_str()));
  } catch (const std::exception&) {  // no memory, or a run id that is no text
  }
}

std::optional<NodeRecord> read_record(const std::string& folder) {
  const auto json = Json::parse(text_in(folder + "/" + kRecord), nullptr, false);
  try {
    const auto round = parse_round_id(json.at("round").get<std::string>());
    NodeRecord out{json.at("run_id").get<std::string>(),
                   {json.at("node_key").get<std::string>(), round.value_or(RoundId{}), json.at("group_rank").get<int>(),
                    json.at("group_world_size").get<int>(), json.at("nonce").get<std::string>()},
                   json.value("pid", 0)};
    const auto& node = out.node;
    const bool is_whole = round && base::is_random_key(node.node_key) && base::is_random_key(node.nonce) &&
                          node.group_rank >= 0 && node.group_rank < node.group_world_size &&
                          node.group_world_size <= kNodesMax;
    if (is_whole && json.at("folder").get<std::string>() == identity_of(folder)) return out;
  } catch (const Json::exception&) {  // it is no record
  }
  return {};
}

void keep_record_only(const std::string& folder) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(folder, ignored), end; entry != end;) {
    const auto path = entry->path();
    entry.increment(ignored);
    if (path.filename() != kRecord) std::filesystem::remove_all(path, ignored);
  }
}

bool has_ended(const NodeRecord& record) { return record.pid > 0 && ::kill(record.pid, 0) != 0 && errno == ESRCH; }

bool is_record_old(const std::string& folder) {
  struct stat info {};
  return ::stat((folder + "/" + kRecord).c_str(), &info) != 0 || std::time(nullptr) - info.st_mtime > kOldSeconds;
}

}  // namespace ddp::launcher
