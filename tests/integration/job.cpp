#include "tests/integration/job.hpp"
#include "tests/text.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace ddp::test {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point deadline) {
  return static_cast<int>(
      std::max<long>(0, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count()));
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (auto& text : strings) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

// All programs are in one folder, wherever that is now.
std::string built(const std::string& program) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / program;
}

Job::Job(const std::vector<std::string>& arguments, const Options& options) : patience_(options.patience) {
  static std::atomic<int> counter{0};
  mark_ = "JOB_MARK=" + std::to_string(::getpid()) + "." + std::to_string(counter++);
  std::vector<std::string> words{built(options.program)}, variables{mark_};
  words.insert(words.end(), arguments.begin(), arguments.end());
  variables.insert(variables.end(), options.environment.begin(), options.environment.end());
  const auto given_end = variables.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const auto name = variable.substr(0, variable.find('=') + 1);
    const auto is_it = [&name](const std::string& given) { return given.compare(0, name.size(), name) == 0; };
    if (std::none_of(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(given_end), is_it))
      variables.push_back(variable);
  }
  const auto argv = pointers_to(words), envp = pointers_to(variables);

  int out[2] = {-1, -1}, err[2] = {-1, -1}, slave = -1;
  if (options.terminal) {
    winsize size{24, 80, 0, 0};
    if (::openpty(&terminal_, &slave, nullptr, nullptr, &size) != 0) throw std::runtime_error("openpty");
    ::fcntl(terminal_, F_SETFD, FD_CLOEXEC);
    out_fd_ = terminal_;
  } else {
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    out_fd_ = out[0];
    err_fd_ = err[0];
  }
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  pid_ = ::fork();
  if (pid_ == 0) {
    if (options.terminal) {
      // Like a shell: this process leads the session, ddprun is its foreground job. It passes on how ddprun ended.
      ::setsid();
      ::ioctl(slave, TIOCSCTTY, 0);
      const pid_t job = ::fork();
      if (job == 0) {
        ::setpgid(0, 0);
        ::signal(SIGTTOU, SIG_IGN);
        ::tcsetpgrp(slave, ::getpid());
        ::signal(SIGTTOU, SIG_DFL);
        for (int fd = 0; fd < 3; ++fd) ::dup2(slave, fd);
        ::close(slave);
        ::execve(argv[0], argv.data(), envp.data());
        ::_exit(127);
      }
      ::signal(SIGTTOU, SIG_IGN);
      (void)!::write(report[1], &job, sizeof job);
      int status = 0;
      while (::waitpid(job, &status, WUNTRACED) == job && WIFSTOPPED(status)) {
      }
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 200);
    }
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    if (options.before_exec) options.before_exec();
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  for (int fd : {out[1], err[1], slave, report[1]})
    if (fd >= 0) ::close(fd);
  if (options.terminal) {
    shell_ = pid_;
    if (::read(report[0], &pid_, sizeof pid_) != sizeof pid_) throw std::runtime_error("no job");
  } else {
    shell_ = pid_;
  }
  ::close(report[0]);
}

Job::~Job() {
  if (!reaped_) {
    ::kill(pid_, SIGKILL);  // alone first: its guardian ends the rest and removes what it left
    becomes_true([this] {
      const auto left = processes();
      return std::all_of(left.begin(), left.end(), [this](pid_t pid) { return pid == pid_ || pid == shell_; });
    });
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    ::kill(shell_, SIGKILL);
    ::waitpid(shell_, nullptr, 0);
  }
  is_gone_within(kPatience);
  if (out_fd_ >= 0) ::close(out_fd_);
  if (err_fd_ >= 0) ::close(err_fd_);
}

void Job::kill(int signal_number) const { ::kill(pid_, signal_number); }

bool Job::read_more(Clock::time_point deadline) {
  pollfd waits[] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
  if (out_fd_ < 0 && err_fd_ < 0) return false;
  if (::poll(waits, 2, milliseconds_until(deadline)) <= 0) return false;
  for (auto& [fd, text] : {std::pair<int&, std::string&>{out_fd_, out_}, {err_fd_, err_}}) {
    if ((fd == waits[0].fd ? waits[0].revents : waits[1].revents) == 0 || fd < 0) continue;
    char buffer[65536];
    const auto length = ::read(fd, buffer, sizeof buffer);
    if (length > 0) {
      text.append(buffer, static_cast<std::size_t>(length));
    } else {
      ::close(fd);
      fd = -1;
    }
  }
  return true;
}

bool Job::prints(const std::string& text, int count) {
  const auto deadline = Clock::now() + patience_;
  while (occurrences(out_, text) + occurrences(err_, text) < count)
    if (!read_more(deadline)) return false;
  return true;
}

long Job::number_after(const std::string& label) {
  const auto deadline = Clock::now() + patience_;
  while (true) {
    for (const auto* text : {&out_, &err_}) {
      const auto at = text->find(label);
      if (at != std::string::npos && text->find('\n', at) != std::string::npos)
        return std::atol(text->c_str() + at + label.size());
    }
    if (!read_more(deadline)) return -1;
  }
}

void Job::type(const std::string& keys) const { (void)!::write(terminal_, keys.data(), keys.size()); }

void Job::resize_terminal(int rows, int columns) const {
  winsize size{static_cast<unsigned short>(rows), static_cast<unsigned short>(columns), 0, 0};
  ::ioctl(terminal_, TIOCSWINSZ, &size);
}

void Job::close_stdout() {
  ::close(out_fd_);
  out_fd_ = -1;
}

int Job::wait() {
  const auto deadline = Clock::now() + patience_;
  const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, shell_, 0));
  while (true) {
    pollfd waits[] = {{pidfd, POLLIN, 0}, {out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};
    if (::poll(waits, 3, milliseconds_until(deadline)) <= 0) break;
    if (waits[1].revents != 0 || waits[2].revents != 0) {
      read_more(deadline);
    } else if (waits[0].revents != 0) {
      reaped_ = ::waitpid(shell_, &wait_status_, 0) == shell_;
      break;
    }
  }
  ::close(pidfd);
  if (!reaped_) return -1;
  return WIFEXITED(wait_status_) ? WEXITSTATUS(wait_status_) : 1000 + WTERMSIG(wait_status_);
}

bool Job::waits_stopped() {
  return becomes_true([this] { return process_state(pid_) == 'T'; }, patience_);
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> out;
  DIR* folder = ::opendir("/proc");
  while (const dirent* entry = ::readdir(folder)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0 || pid == ::getpid()) continue;
    const std::string text = contents_of("/proc/" + std::to_string(pid) + "/environ");
    if (('\0' + text).find('\0' + mark_ + '\0') != std::string::npos) out.push_back(pid);
  }
  ::closedir(folder);
  return out;
}

bool Job::is_gone_within(std::chrono::milliseconds limit) const {
  return becomes_true([this] { return processes().empty(); }, limit);
}

pid_t worker_of(const Job& job, const std::string& program, int rank) {
  const std::string end(1, '\0');
  for (const pid_t pid : job.processes()) {
    const std::filesystem::path process = "/proc/" + std::to_string(pid);
    std::error_code ignored;
    if (std::filesystem::read_symlink(process / "exe", ignored) != std::filesystem::canonical(program)) continue;
    const std::string variables = end + contents_of(process / "environ");
    if (variables.find(end + "RANK=" + std::to_string(rank) + end) != std::string::npos) return pid;
  }
  return -1;
}

char process_state(pid_t pid) {
  const std::string text = contents_of("/proc/" + std::to_string(pid) + "/stat");
  const auto at = text.rfind(')');
  return at == std::string::npos || at + 2 >= text.size() ? '\0' : text[at + 2];
}

std::vector<std::string> shell(int workers, const std::string& script, std::vector<std::string> options) {
  options.insert(options.begin(), {"--standalone", "--nproc-per-node=" + std::to_string(workers)});
  options.insert(options.end(), {"sh", "-c", script});
  return options;
}

std::vector<std::string> elastic_node(const std::string& nodes, int rank, const std::string& port, int workers) {
  return {"--nnodes=" + nodes,
          "--rdzv-backend=c10d",
          "--rdzv-endpoint=127.0.0.1:" + port,
          "--rdzv-id=elastic",
          "--nproc-per-node=" + std::to_string(workers),
          "--max-restarts=3",
          std::string("--rdzv-conf=last_call_timeout=60,is_host=") + (rank == 0 ? "1" : "0")};
}

bool becomes_true(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() >= deadline) return condition();
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace ddp::test
