#include "worker_runtime/checkpoint/checkpoint_files.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

namespace ddp::checkpoint {
namespace {

constexpr const char* kPrefix = "checkpoint_";
constexpr const char* kStep = "_step_";
constexpr const char* kSuffix = ".safetensors";
constexpr const char* kManifest = "manifest.json";

std::string stem_of(const CheckpointId& id) { return kPrefix + to_string(id.round) + kStep + std::to_string(id.step); }

[[noreturn]] void fail_at(const std::filesystem::path& path, const std::string& what, const std::error_code& error) {
  throw CheckpointError(what + " " + path.string() + ": " + error.message() +
                        "\nwhere: the folder of checkpoints\ntry:   a folder that this user may read and write");
}

// Empty for a name that save() never gives: leading zeros and other suffixes differ here.
std::optional<CheckpointPath> parse_path(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string prefix = kPrefix;
  const std::size_t middle = name.find(kStep);
  if (name.compare(0, prefix.size(), prefix) != 0 || middle == std::string::npos) return {};
  const auto round = parse_round_id(name.substr(prefix.size(), middle - prefix.size()));
  if (!round) return {};
  CheckpointPath found{{*round, 0}, false, path};
  const char* const digits = name.data() + middle + std::string(kStep).size();
  std::from_chars(digits, name.data() + name.size(), found.id.step);
  found.has_parts = name == stem_of(found.id);
  if (!found.has_parts && name != stem_of(found.id) + kSuffix) return {};
  return found;
}

void remove_checkpoint(const CheckpointPath& checkpoint) {
  std::error_code ignored;  // what can't be removed now will be the next time
  if (checkpoint.has_parts) std::filesystem::remove(manifest_path(checkpoint), ignored);
  std::filesystem::remove_all(checkpoint.path, ignored);
}

}  // namespace

CheckpointPath single_file(const std::filesystem::path& directory, const CheckpointId& id) {
  return {id, false, directory / (stem_of(id) + kSuffix)};
}

CheckpointPath folder_of_parts(const std::filesystem::path& directory, const CheckpointId& id) {
  return {id, true, directory / stem_of(id)};
}

std::filesystem::path part_path(const CheckpointPath& folder, std::size_t rank, std::size_t rank_count) {
  return folder.path / ("rank_" + std::to_string(rank) + "_of_" + std::to_string(rank_count) + kSuffix);
}

std::filesystem::path manifest_path(const CheckpointPath& folder) { return folder.path / kManifest; }

std::vector<CheckpointPath> list_checkpoints(const std::filesystem::path& directory) {
  std::vector<CheckpointPath> found;
  std::error_code error;
  std::filesystem::directory_iterator next(directory, error);
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && next != std::filesystem::directory_iterator(); next.increment(error)) {
    if (auto path = parse_path(next->path())) found.push_back(std::move(*path));
  }
  if (error) fail_at(directory, "can't list", error);
  std::sort(found.begin(), found.end(), [](const CheckpointPath& a, const CheckpointPath& b) {
    return a.id == b.id ? a.has_parts < b.has_parts : b.id < a.id;
  });
  return found;
}

bool is_complete(const CheckpointPath& checkpoint) {
  std::error_code ignored;
  return !checkpoint.has_parts || std::filesystem::exists(manifest_path(checkpoint), ignored);
}

void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::path level = std::filesystem::absolute(directory, error);
  if (error) fail_at(directory, "can't make", error);
  if (!level.has_filename()) level = level.parent_path();  // "checkpoints/"
  std::vector<std::filesystem::path> parents;
  for (; !std::filesystem::exists(level, error) && level.has_relative_path(); level = level.parent_path()) {
    parents.push_back(level.parent_path());
  }
  std::filesystem::create_directories(directory, error);
  if (error) fail_at(directory, "can't make", error);
  for (const std::filesystem::path& parent : parents) sync_directory(parent);
}

void require_not_superseded(const std::filesystem::path& directory, const CheckpointPath& checkpoint,
                            std::size_t keep) {
  std::vector<CheckpointPath> newer = list_checkpoints(directory);
  std::erase_if(newer, [&](const CheckpointPath& each) { return !(checkpoint.id < each.id) || !is_complete(each); });
  if (newer.size() < keep) return;
  fail_superseded(checkpoint, newer.front());
}

void fail_superseded(const CheckpointPath& checkpoint, const CheckpointPath& newest) {
  throw CheckpointError("checkpoint " + checkpoint.path.string() + " was superseded: the newest is " +
                        newest.path.filename().string() +
                        "\nwhere: saving a checkpoint; newer rounds have filled the places of this folder\n"
                        "try:   another folder for this run, or remove the newer checkpoints if they are of no use");
}

void remove_old(const std::filesystem::path& directory, std::size_t keep) {
  std::size_t complete = 0;
  for (const CheckpointPath& each : list_checkpoints(directory)) {
    if (is_complete(each)) {
      if (++complete > keep) remove_checkpoint(each);
    } else if (complete > 0) {
      remove_checkpoint(each);
    }
  }
  remove_abandoned(directory);
}

std::string read_text(const std::filesystem::path& path, std::size_t bytes_max) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);  // a pipe of that name would be waited for
  std::ifstream file(path, std::ios::binary);
  const auto refuse = [&](const std::string& reason) {
    throw CheckpointError("can't read " + path.string() + ": " + reason +
                          "\nwhere: reading a checkpoint\ntry:   another checkpoint, or start afresh");
  };
  if (error) refuse(error.message());
  if (!is_file || !file) refuse("it is not a file that this user may read");
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) refuse(error.message());
  if (bytes > bytes_max) refuse("it has " + std::to_string(bytes) + " bytes");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.gcount() != static_cast<std::streamsize>(text.size())) refuse("it became shorter meanwhile");
  return text;
}

}  // namespace ddp::checkpoint
