#include "ddp/checkpoint.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"
#include "worker_runtime/checkpoint/write_safetensors.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <tuple>
#include <utility>

namespace ddp {
namespace {

constexpr const char* kPrefix = "checkpoint_";
constexpr const char* kStep = "_step_";
constexpr const char* kSuffix = ".safetensors";
constexpr int kListingsMax = 100;  // how often a reader meets a writer that prunes before it gives up

struct Entry {
  RoundId round;
  std::uint64_t step = 0;
  std::filesystem::path path;

  friend bool operator<(const Entry& a, const Entry& b) {
    return std::tie(a.round, a.step) < std::tie(b.round, b.step);
  }
};

std::string file_name(const RoundId& round, std::uint64_t step) {
  return kPrefix + to_string(round) + kStep + std::to_string(step) + kSuffix;
}

// Empty for a file of any other name.
std::optional<Entry> parse_entry(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::string prefix = kPrefix;
  const std::size_t middle = name.find(kStep);
  if (name.compare(0, prefix.size(), prefix) != 0 || middle == std::string::npos) return {};
  const auto round = parse_round_id(name.substr(prefix.size(), middle - prefix.size()));
  Entry entry{round.value_or(RoundId{}), 0, path};
  const char* digits = name.data() + middle + std::string(kStep).size();
  std::from_chars(digits, name.data() + name.size(), entry.step);
  // Only the one spelling that save() uses counts: leading zeros and other suffixes differ here.
  if (!round || name != file_name(entry.round, entry.step)) return {};
  return entry;
}

[[noreturn]] void fail(const std::filesystem::path& directory, const std::string& what, const std::error_code& error) {
  throw CheckpointError(what + " " + directory.string() + ": " + error.message() +
                        "\nwhere: the folder of checkpoints\ntry:   a folder that this user may read and write");
}

// Newest first.
std::vector<Entry> list(const std::filesystem::path& directory) {
  std::vector<Entry> entries;
  std::error_code error;
  std::filesystem::directory_iterator next(directory, error);
  if (error == std::errc::no_such_file_or_directory) return entries;
  for (; !error && next != std::filesystem::directory_iterator(); next.increment(error)) {
    if (auto entry = parse_entry(next->path())) entries.push_back(std::move(*entry));
  }
  if (error) fail(directory, "can't list", error);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return b < a; });
  return entries;
}

// Makes the folder, and those above it that are missing, and brings each to disk in the one above it.
void make_directory(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::path level = std::filesystem::absolute(directory, error);
  if (error) fail(directory, "can't make", error);
  if (!level.has_filename()) level = level.parent_path();  // "checkpoints/"
  std::vector<std::filesystem::path> parents;
  for (; !std::filesystem::exists(level, error) && level.has_relative_path(); level = level.parent_path()) {
    parents.push_back(level.parent_path());
  }
  std::filesystem::create_directories(directory, error);
  if (error) fail(directory, "can't make", error);
  for (const std::filesystem::path& parent : parents) checkpoint::sync_directory(parent);
}

[[noreturn]] void fail_superseded(const Entry& entry, const Entry& newest) {
  throw CheckpointError("checkpoint " + entry.path.string() + " was superseded: the newest is " +
                        newest.path.filename().string() +
                        "\nwhere: saving a checkpoint; newer rounds have filled the places of this folder\n"
                        "try:   another folder for this run, or remove the newer checkpoints if they are of no use");
}

}  // namespace

CheckpointDirectory::CheckpointDirectory(std::filesystem::path directory, std::size_t keep)
    : directory_(std::move(directory)), keep_(keep) {
  if (keep_ == 0) throw InvalidArgument("keep = 0 checkpoints\nwhere: CheckpointDirectory\ntry:   1 or more");
  agent_link::tell_checkpoint_directory();
}

std::filesystem::path CheckpointDirectory::save(const RoundId& round, std::uint64_t step,
                                                const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  make_directory(directory_);
  std::filesystem::path path = directory_ / file_name(round, step);
  {
    checkpoint::AtomicFile file(path);
    checkpoint::write_safetensors(file, tensors, metadata);
    file.commit(checkpoint::AtomicFile::Existing::refuse);
  }
  const std::vector<Entry> entries = list(directory_);
  std::error_code ignored;  // what can't be removed now will be the next time
  for (std::size_t i = keep_; i < entries.size(); ++i) std::filesystem::remove(entries[i].path, ignored);
  checkpoint::remove_abandoned(directory_);
  const Entry saved{round, step, path};
  if (entries.size() >= keep_ && saved < entries[keep_ - 1]) fail_superseded(saved, entries.front());
  agent_link::tell_checkpoint_saved(step);
  return path;
}

std::optional<SafetensorsFile> CheckpointDirectory::newest(
    const std::function<void(const std::string& message)>& refused) const {
  for (int listing = 0; listing < kListingsMax; ++listing) {
    bool vanished = false;
    const std::vector<Entry> entries = list(directory_);
    for (const Entry& entry : entries) {
      try {
        return SafetensorsFile::open(entry.path);
      } catch (const CheckpointError& error) {
        std::error_code ignored;
        vanished = !std::filesystem::exists(entry.path, ignored);
        if (vanished) break;  // pruned meanwhile, so there is a newer one: look again
        if (refused) refused(error.what());
      }
    }
    if (entries.empty()) return {};
    if (!vanished) break;
  }
  throw CheckpointError("no checkpoint in " + directory_.string() +
                        " can be read, though there are files\nwhere: looking for the newest checkpoint\n"
                        "try:   remove the broken files to start afresh");
}

}  // namespace ddp
