#include "launcher/agent/own_process.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/host_name.hpp"
#include "base/with_limit.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/output/log_tree.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kRemovalLimit{2};  // nobody needs what is left
constexpr std::string_view kUnique = "XXXXXX";    // of mkdtemp

bool is_at(int folder, const std::string& path) {
  struct stat open {
  }, there{};
  return ::fstat(folder, &open) == 0 && ::lstat(path.c_str(), &there) == 0 && open.st_dev == there.st_dev &&
         open.st_ino == there.st_ino;
}

enum class Lock { taken, is_anothers, none_to_be_had };  // the last: the file system has none

Lock lock_folder(const std::string& folder, base::UniqueFd& fd) {
  fd = base::UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return Lock::taken;
  const bool is_anothers = errno == EWOULDBLOCK || errno == ENOENT;  // who has removed it
  fd.reset();
  return is_anothers ? Lock::is_anothers : Lock::none_to_be_had;
}

void remove_left_folders(const std::string& parent, const std::string& start) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator entry(parent, ignored), end; entry != end;) {
    const auto path = entry->path();
    entry.increment(ignored);
    struct stat info {};
    const auto name = path.filename().string();
    if (name.compare(0, start.size(), start) != 0 || name.size() != start.size() + kUnique.size()) continue;
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) continue;
    base::UniqueFd fd;
    if (lock_folder(path, fd) == Lock::taken) std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace

bool is_ignored_by_workers(int warning) { return warning == SIGUSR1 || warning == SIGUSR2; }

sigset_t signals_to_take_in(const std::vector<int>& stop, const std::vector<int>& forward, bool is_in_step) {
  sigset_t set;
  sigemptyset(&set);
  std::vector<int> numbers{SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD};
  numbers.insert(numbers.end(), stop.begin(), stop.end());
  numbers.insert(numbers.end(), forward.begin(), forward.end());
  for (const int number : numbers) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN || number == SIGCHLD) sigaddset(&set, number);
  }
  for (const int number : forward)
    if (is_in_step && is_ignored_by_workers(number)) sigaddset(&set, number);
  return set;
}

std::string sender_of(const signalfd_siginfo& info) {
  if (info.ssi_code != SI_USER && info.ssi_code != SI_QUEUE) return {};
  return " from pid " + std::to_string(info.ssi_pid) + " (uid " + std::to_string(info.ssi_uid) + ")";
}

int open_signalfd(const sigset_t& signals) {
  const int fd = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "signalfd");
  return fd;
}

void suspend_this_process() {
  sigset_t suspend;
  sigemptyset(&suspend);
  sigaddset(&suspend, SIGTSTP);
  ::kill(::getpid(), SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &suspend, nullptr);  // stops here
  ::sigprocmask(SIG_BLOCK, &suspend, nullptr);
}

rlimit raise_descriptor_limit() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit raised{before.rlim_max, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

ScratchDirectory::ScratchDirectory() {
  const char* variable = std::getenv("TMPDIR");
  const std::string parent = variable != nullptr && *variable != '\0' ? variable : "/tmp";
  const auto start = "ddprun_scratch_" + folder_name_of(base::host_name()) + "_";
  remove_left_folders(parent, start);
  for (auto got = Lock::is_anothers; got == Lock::is_anothers;) {  // another ddprun took it for one that was left
    path_ = parent + "/" + start + std::string(kUnique);
    if (::mkdtemp(path_.data()) == nullptr)
      throw UsageError("the folder " + path_ + " can't be made: " + std::strerror(errno), "environment variable TMPDIR",
                       "`TMPDIR=/tmp`, or any folder that you can write to");
    got = lock_folder(path_, lock_);
    if (got == Lock::taken && !is_at(lock_.get(), path_)) got = Lock::is_anothers;
  }
}

ScratchDirectory::~ScratchDirectory() {
  base::run_with_limit(kRemovalLimit, [path = path_] {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    return std::string();
  });
}

}  // namespace ddp::launcher
