#include "launcher/output/log_tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kFolderNameBytesMax = 200;  // file systems allow 255

[[noreturn]] void refuse(const std::string& what, const std::string& path, int error) {
  throw UsageError(what + ": " + std::strerror(error), path,
                   error == ENOSPC || error == EDQUOT
                       ? "free some space there, or `--log-dir` on another disk"
                       : "`--log-dir=FOLDER` that you can write to, or `--log-dir=/dev/null` for no log files at all");
}

void make_directories(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) == 0) return;  // mostly only the last one is missing
  for (std::size_t end = 0; end < path.size();) {
    end = std::min(path.find('/', end + 1), path.size());
    const auto part = path.substr(0, end);
    struct stat info {};
    if (::mkdir(part.c_str(), mode) == 0) continue;
    const int error = errno;
    if (::stat(part.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) continue;
    refuse("the folder for log files can't be made", part, error == EEXIST ? ENOTDIR : error);
  }
}

// Where others can write to the folder for logs, a link of theirs would lead to a file that only this user can write
// to.
void check_no_link_of_others(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0 || !S_ISLNK(info.st_mode)) return;
  if (info.st_uid == ::geteuid() || info.st_uid == 0) return;
  throw UsageError("logs would be written where a link of another user (uid " + std::to_string(info.st_uid) + ") leads",
                   path, "`--log-dir=FOLDER` that others can't write to");
}

// A full disk often lets a file be made, and refuses its content.
void check_writable(const std::string& directory) {
  auto path = directory + "/.ddprun_XXXXXX";
  const base::UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) refuse("log files can't be written", directory, errno);
  ::unlink(path.c_str());
  const std::string some(4096, '\n');
  const auto written = ::write(file.get(), some.data(), some.size());
  if (written != static_cast<ssize_t>(some.size()))
    refuse("log files can't be written", directory, written < 0 ? errno : ENOSPC);
}

// Somebody else may have made it, or a link with its name, to read or to stop what is written there.
bool is_ours_alone(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 0022) == 0;
}

}  // namespace

LogTree LogTree::at(const std::string& directory) {
  auto path = std::filesystem::absolute(directory).string();  // a worker may change its own
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  make_directories(path, 0777);
  check_writable(path);
  return LogTree(path);
}

LogTree LogTree::in_temporary_directory() {
  const char* parent = std::getenv("TMPDIR");
  auto path =
      std::string(parent != nullptr && *parent != '\0' ? parent : "/tmp") + "/ddprun_" + std::to_string(::geteuid());
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    refuse("the folder for log files can't be made", path, errno);
  std::string notice;
  if (!is_ours_alone(path)) {
    notice = path + " is not this user's alone";
    path += "_XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) refuse("the folder for log files can't be made", path, errno);
  }
  check_writable(path);
  return LogTree(path, notice);
}

void LogTree::make_rank_directory(const std::string& run_id, std::uint32_t round, int rank) const {
  for (const auto& path :
       {run_directory(run_id), round_directory(run_id, round), rank_directory(run_id, round, rank)}) {
    check_no_link_of_others(path);
    make_directories(path, 0777);
  }
}

base::UniqueFd LogTree::open_own_log(const std::string& run_id, const std::string& host_name) const {
  const auto directory = run_directory(run_id);
  check_no_link_of_others(directory);
  make_directories(directory, 0777);
  return open_log_file(directory + "/ddprun_" + folder_name_of(host_name) + ".log");
}

std::string LogTree::run_directory(const std::string& run_id) const {
  return directory_ + "/" + folder_name_of(run_id);
}

std::string LogTree::round_directory(const std::string& run_id, std::uint32_t round) const {
  return run_directory(run_id) + "/round_" + std::to_string(round);
}

std::string LogTree::rank_directory(const std::string& run_id, std::uint32_t round, int rank) const {
  return round_directory(run_id, round) + "/rank_" + std::to_string(rank);
}

int LogTree::highest_round(const std::string& run_id) const {
  constexpr std::string_view kStart = "round_";
  int highest = -1;
  const auto path = run_directory(run_id);
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (!folder && errno != ENOENT) refuse("which rounds have logs already can't be read", path, errno);
  if (!folder) return highest;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    int number = 0;
    if (name.substr(0, kStart.size()) != kStart) continue;
    const auto [end, error] = std::from_chars(name.begin() + kStart.size(), name.end(), number);
    if (error == std::errc() && end == name.end()) highest = std::max(highest, number);
  }
  return highest;
}

base::UniqueFd open_log_file(const std::string& path) {
  constexpr int kHow = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
  base::UniqueFd file(::open(path.c_str(), kHow | O_NOFOLLOW, 0666));
  if (!file && errno == ELOOP) {
    check_no_link_of_others(path);
    file.reset(::open(path.c_str(), kHow, 0666));
  }
  if (!file) refuse("a log file can't be opened", path, errno);
  return file;
}

std::string folder_name_of(const std::string& run_id) {
  auto name = run_id.substr(0, kFolderNameBytesMax);
  for (char& c : name)
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '_';
  if (name == "." || name == "..") std::fill(name.begin(), name.end(), '_');
  return name.empty() ? "_" : name;
}

}  // namespace ddp::launcher
