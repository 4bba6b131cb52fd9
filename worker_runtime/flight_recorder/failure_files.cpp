#include "worker_runtime/flight_recorder/failure_files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/recorded_rounds.hpp"
#include "worker_runtime/files/whole_file.hpp"

namespace ddp::flight_recorder {

namespace {

constexpr const char* kNoFiles = "/dev/null";
constexpr const char* kSeparators = "_-";
constexpr const char* kName = "flight_recorder_";

// A run id as the name of one folder.
std::string folder_name_of(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c == '/' || c < ' ' || c == 0x7f; }, '_');
  return text.empty() || text == "." || text == ".." ? "_" : text;
}

// Requires that nobody but this user could have made it, or can change what is in it.
void make_private_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::system_error(errno, std::generic_category(), "can't make the folder " + path);
  }
  struct stat status {};
  const bool is_ours = ::lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() &&
                       (status.st_mode & 0022) == 0;
  if (!is_ours) {
    throw std::system_error(EACCES, std::generic_category(), "the folder " + path + " is not this user's alone");
  }
}

// Of "round_5-0000000000000000-12" the number 12; empty where the folder is of another term.
std::optional<std::uint32_t> number_in(const std::string& name, const std::string& start) {
  std::uint32_t number = 0;
  if (name.compare(0, start.size(), start) != 0) return {};
  const char* const end_of_name = name.data() + name.size();
  const auto [end, error] = std::from_chars(name.data() + start.size(), end_of_name, number);
  return error == std::errc() && end == end_of_name ? std::optional(number) : std::nullopt;
}

// Other ranks may do the same at the same time.
void remove_older_rounds(const std::filesystem::path& directory) {
  const auto own = directory.filename().string();
  const auto start = own.substr(0, own.rfind('-') + 1);
  const auto newest = number_in(own, start);
  if (!newest) return;
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(directory.parent_path(), ignored), end; entry != end;) {
    const auto path = entry->path();
    const auto number = number_in(path.filename().string(), start);
    entry.increment(ignored);
    if (number && *number + base::kRecordedRoundsMax <= *newest) std::filesystem::remove_all(path, ignored);
  }
}

std::mutex place_mutex;
std::optional<Place> the_place;  // guarded by place_mutex

}  // namespace

Place place_from(const Lookup& variable) {
  Place place;
  place.prefix = variable("DDP_FLIGHT_RECORDER");
  place.round_directory = variable("DDPRUN_ROUND_DIRECTORY");
  if (const auto directory = variable("TMPDIR"); directory && !directory->empty())
    place.temporary_directory = *directory;
  if (const auto run_id = variable("TORCHELASTIC_RUN_ID")) place.run_id = *run_id;
  return place;
}

Files files_of(const Place& place, const RoundId& round, int rank, unsigned user_id) {
  const auto is_given = [](const std::optional<std::string>& value) { return value && !value->empty(); };
  Files files;
  std::string prefix = kName;
  if (is_given(place.prefix)) {
    if (*place.prefix == kNoFiles) return {};
    const auto slash = place.prefix->rfind('/');
    files.directory = slash == std::string::npos ? "." : place.prefix->substr(0, slash + 1);
    if (slash + 1 < place.prefix->size()) prefix = place.prefix->substr(slash + 1);
  } else if (is_given(place.round_directory)) {
    if (*place.round_directory == kNoFiles) return {};
    files.directory = *place.round_directory;
  } else {
    files.private_part = place.temporary_directory + "/ddp_flight_" + std::to_string(user_id);
    files.directory = files.private_part + "/" + folder_name_of(place.run_id) + "/round_" + to_string(round);
  }
  // With a separator at its end, the prefix without it is a name in which it is not found.
  if (std::string(kSeparators).find(prefix.back()) == std::string::npos) prefix += '_';
  const std::string number = std::to_string(rank);
  const std::string start = files.directory.back() == '/' ? files.directory : files.directory + "/";
  files.pickle = start + prefix + number;
  const std::string other = start + prefix.substr(0, prefix.find_last_not_of(kSeparators) + 1) + "." + number;
  files.json = other + ".json";
  files.log = other + ".events.log";
  return files;
}

void set_place(const Place& place) {
  const std::lock_guard lock(place_mutex);
  the_place = place;
}

Place present_place() {
  const std::lock_guard lock(place_mutex);
  if (the_place) return *the_place;
  return place_from([](const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

void write_files(const Files& files, const std::string& json, const std::string& pickle, const std::string& log) {
  if (!files.private_part.empty()) make_private_directory(files.private_part);
  std::filesystem::create_directories(files.directory);
  if (!files.private_part.empty()) remove_older_rounds(files.directory);
  const auto write = [](const std::string& path, const std::string& bytes) {
    files::WholeFile file(path);
    file.append(bytes);
    file.commit();
  };
  write(files.json, json);
  write(files.pickle, pickle);
  try {
    if (!log.empty()) write(files.log, log);
  } catch (const std::system_error&) {  // nobody is told where it is
  }
}

}  // namespace ddp::flight_recorder
