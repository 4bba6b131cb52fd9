#include "launcher/agent/own_process.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/boot_id.hpp"
#include "base/host_name.hpp"
#include "base/locked_folder.hpp"
#include "base/with_limit.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/output/log_tree.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kRemovalLimit{2};   // nobody needs what is left
constexpr std::chrono::seconds kGuardianLimit{1};  // for that of a ddprun which has ended
constexpr std::size_t kRecordsMax = 4;             // that wait for their disk

void remove_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
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

ScratchDirectory::ScratchDirectory(const std::string& run_id) {
  const char* variable = std::getenv("TMPDIR");
  const std::filesystem::path wanted = variable != nullptr && *variable != '\0' ? variable : "/tmp";
  const auto parent = std::filesystem::absolute(wanted).string();  // workers may start in another folder
  const auto boot = base::boot_id();  // other hosts, with locks of their own, may have the same folder there
  const auto start = "ddprun_scratch_" + (boot.empty() ? folder_name_of(base::host_name()) : boot) + "_";
  const auto record_in = [&](const std::string& path) { return boot.empty() ? std::nullopt : read_record(path); };
  const auto is_ending = [&](const std::string& path) {
    const auto record = record_in(path);
    return record && record->run_id == run_id && has_ended(*record);
  };
  const auto take_over = [&](const std::string& path) {
    const auto record = record_in(path);
    const bool is_of_job = record && record->run_id == run_id;
    if (is_of_job && ended_nodes_.size() < rendezvous::kEndedNodesMax) {
      ended_nodes_.push_back(record->node);
      read_folders_.push_back(path);
    } else if (!record || (!is_of_job && is_record_old(path))) {
      remove_folder(path);
    }
  };
  base::for_each_left_folder(parent, start, take_over, {is_ending, kGuardianLimit});
  try {
    folder_ = base::make_locked_folder(parent, start);
  } catch (const std::system_error& error) {
    throw UsageError("the folder " + parent + "/" + start + "* can't be made: " + error.code().message(),
                     "environment variable TMPDIR", "`TMPDIR=/tmp`, or any folder that you can write to");
  }
}

ScratchDirectory::~ScratchDirectory() {
  base::run_with_limit(kRemovalLimit, [path = path()] {
    remove_folder(path);
    return std::string();
  });
}

void RecordFile::write(const NodeRecord& record) {
  try {
    if (!thread_) thread_.emplace(io_, base::FileThread::Options{.end_limit = kRemovalLimit, .tasks_max = kRecordsMax});
  } catch (const std::system_error&) {  // no thread is to be had
    return;
  }
  auto work = [folder = folder_, record, read_folders = std::exchange(read_folders_, {})] {
    write_record(folder, record);
    for (const auto& path : read_folders) remove_folder(path);
  };
  static_cast<void>(thread_->post(std::move(work), [] {}));
}

}  // namespace ddp::launcher
