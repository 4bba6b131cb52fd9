#include "launcher/agent/own_process.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/host_name.hpp"
#include "base/locked_folder.hpp"
#include "base/quiet_thread.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/output/log_tree.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kRemovalLimit{2};  // nobody needs what is left

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
  base::for_each_left_folder(parent, start, [](const std::string& path) {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  });
  try {
    folder_ = base::make_locked_folder(parent, start);
  } catch (const std::system_error& error) {
    throw UsageError("the folder " + parent + "/" + start + "* can't be made: " + error.code().message(),
                     "environment variable TMPDIR", "`TMPDIR=/tmp`, or any folder that you can write to");
  }
}

void ScratchDirectory::begin_removal() {
  removal_ = base::run_detached([path = path()] {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  });
}

ScratchDirectory::~ScratchDirectory() {
  if (!removal_.valid()) begin_removal();
  removal_.wait_for(kRemovalLimit);
}

}  // namespace ddp::launcher
