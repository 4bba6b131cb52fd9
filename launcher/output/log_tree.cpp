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
#include <ctime>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>
#include <vector>

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

void check_writable(const std::string& directory) {
  if (const int error = try_writing(directory); error != 0) refuse("log files can't be written", directory, error);
}

// Somebody else may have made it, or a link with its name, to read or to stop what is written there.
bool is_ours_alone(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 0022) == 0;
}

// None where the folder is not there, or can't be read: it may be another user's.
std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> out;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
  if (!folder) return out;
  while (const dirent* entry = ::readdir(folder.get())) out.emplace_back(entry->d_name);
  return out;
}

constexpr std::size_t kTimeLength = std::string_view("2026-11-27T09-43-05").size();

std::string dated(const std::string& time, const std::string& run_id) { return folder_name_of(time + "_" + run_id); }

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

void LogTree::make_rank_directory(const std::string& job, std::uint32_t round, int rank) const {
  for (const auto& path : {job_directory(job), round_directory(job, round), rank_directory(job, round, rank)}) {
    check_no_link_of_others(path);
    make_directories(path, 0777);
  }
}

void LogTree::remove_recordings(const std::string& job, std::uint32_t round) const {
  const auto directory = round_directory(job, round);
  for (const auto& name : names_in(directory))
    if (name.compare(0, 15, "flight_recorder") == 0) ::unlink((directory + "/" + name).c_str());
}

base::UniqueFd LogTree::open_own_log(const std::string& job, const std::string& host_name) const {
  const auto directory = job_directory(job);
  check_no_link_of_others(directory);
  make_directories(directory, 0777);
  return open_log_file(directory + "/ddprun_" + folder_name_of(host_name) + ".log");
}

base::UniqueFd LogTree::open_report(const std::string& job) const {
  const auto path = job_directory(job) + "/report.json";
  base::UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!file) refuse("the report can't be written", path, errno);
  return file;
}

void LogTree::point_latest_at(const std::string& job) const {
  const auto link = directory_ + "/latest";
  std::error_code no_link;
  const auto before = std::filesystem::read_symlink(link, no_link).string();
  struct stat info {};
  if (no_link ? ::lstat(link.c_str(), &info) == 0 : job.compare(0, kTimeLength, before, 0, kTimeLength) < 0) return;
  if (job == before) return;
  // By a rename, because others may look at it. Each node of the job does so, perhaps in one folder of a network.
  auto name = directory_ + "/.latest_XXXXXX";
  const base::UniqueFd reserved(::mkostemp(name.data(), O_CLOEXEC));
  if (!reserved) return;
  ::unlink(name.c_str());
  if (::symlink(job.c_str(), name.c_str()) != 0) return;
  if (::rename(name.c_str(), link.c_str()) != 0) ::unlink(name.c_str());
}

std::string LogTree::job_directory(const std::string& job) const { return directory_ + "/" + job; }

std::string LogTree::round_directory(const std::string& job, std::uint32_t round) const {
  return job_directory(job) + "/round_" + std::to_string(round);
}

std::string LogTree::rank_directory(const std::string& job, std::uint32_t round, int rank) const {
  return round_directory(job, round) + "/rank_" + std::to_string(rank);
}

int LogTree::highest_round(const std::string& run_id) const {
  int highest = -1;
  for (const auto& name : names_in(directory_)) {
    const bool has_time = name.size() > kTimeLength && name[kTimeLength] == '_';
    if (name != job_folder(run_id, 0) && !(has_time && name == dated(name.substr(0, kTimeLength), run_id))) continue;
    for (const auto& round : names_in(job_directory(name))) {
      constexpr std::string_view kStart = "round_";
      int number = 0;
      if (round.compare(0, kStart.size(), kStart) != 0) continue;
      const char* const end_of_name = round.data() + round.size();
      const auto [end, error] = std::from_chars(round.data() + kStart.size(), end_of_name, number);
      if (error == std::errc() && end == end_of_name) highest = std::max(highest, number);
    }
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

// A full disk often lets a file be made, and refuses its content.
int try_writing(const std::string& directory) {
  auto path = directory + "/.ddprun_XXXXXX";
  const base::UniqueFd file(::mkostemp(path.data(), O_CLOEXEC));
  if (!file) return errno;
  ::unlink(path.c_str());
  const std::string some(4096, '\n');
  const auto written = ::write(file.get(), some.data(), some.size());
  if (written == static_cast<ssize_t>(some.size())) return 0;
  return written < 0 ? errno : ENOSPC;
}

std::string folder_name_of(const std::string& text) {
  auto name = text.substr(0, kFolderNameBytesMax);
  for (char& c : name)
    if (c == '/' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '_';
  if (name == "." || name == "..") std::fill(name.begin(), name.end(), '_');
  return name.empty() ? "_" : name;
}

std::string job_folder(const std::string& run_id, std::uint64_t job_started) {
  if (job_started == 0) return folder_name_of(run_id);
  const auto time = static_cast<std::time_t>(job_started);
  std::tm utc{};
  ::gmtime_r(&time, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H-%M-%S", &utc);
  return dated(text, run_id);
}

}  // namespace ddp::launcher
