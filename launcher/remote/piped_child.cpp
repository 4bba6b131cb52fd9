#include "launcher/remote/piped_child.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "base/pidfd.hpp"
#include "base/throw_errno.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr int kReadsAtOnce = 4;      // then others get their turn
constexpr int kReadsAtEnd = 1 << 8;  // a pipe holds at most 1 MiB

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

std::vector<char*> addresses_of(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const auto& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  out.push_back(nullptr);
  return out;
}

}  // namespace

// --- PipeWriter ---

PipeWriter::PipeWriter(boost::asio::io_context& io, base::UniqueFd to, std::function<void()> changed)
    : to_(io), changed_(std::move(changed)) {
  make_nonblocking(to.get());
  to_.assign(to.release());
}

void PipeWriter::write(std::string_view bytes) {
  if (broken_ || closing_ || bytes.empty()) return;
  queue_ += bytes;
  if (!waits_) write_some();
}

void PipeWriter::close_when_written() {
  closing_ = true;
  if (queue_.empty()) close();
}

void PipeWriter::close() {
  closing_ = true;
  boost::system::error_code ignored;
  to_.close(ignored);
}

void PipeWriter::write_some() {
  while (!queue_.empty()) {
    const auto written = ::write(to_.native_handle(), queue_.data(), queue_.size());
    if (written > 0) {
      queue_.erase(0, static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      waits_ = true;
      to_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                     [self = shared_from_this()](boost::system::error_code error) {
                       self->waits_ = false;
                       if (!error) self->write_some();
                     });
      return;
    } else if (written == 0 || errno != EINTR) {
      broken_ = true;
      queue_.clear();
    }
  }
  if (closing_) close();
  if (changed_) boost::asio::post(to_.get_executor(), changed_);
}

// --- PipeReader ---

PipeReader::PipeReader(boost::asio::io_context& io, base::UniqueFd from,
                       std::function<void(std::string_view bytes)> read)
    : from_(io), read_(std::move(read)) {
  make_nonblocking(from.get());
  from_.assign(from.release());
}

void PipeReader::start() {
  if (waits_ || paused_ || !from_.is_open()) return;
  waits_ = true;
  from_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [self = shared_from_this()](boost::system::error_code error) {
                     self->waits_ = false;
                     if (!error && self->read_some(kReadsAtOnce)) self->start();
                   });
}

void PipeReader::pause(bool paused) {
  paused_ = paused;
  start();
}

void PipeReader::drain() {
  if (from_.is_open() && read_some(kReadsAtEnd)) close();
}

void PipeReader::close() {
  boost::system::error_code ignored;
  from_.close(ignored);
}

// False at the end.
bool PipeReader::read_some(int reads_max) {
  std::array<char, kReadBytes> bytes;
  for (int i = 0; i < reads_max && from_.is_open(); ++i) {
    const auto count = ::read(from_.native_handle(), bytes.data(), bytes.size());
    if (count > 0) {
      read_({bytes.data(), static_cast<std::size_t>(count)});
    } else if (count < 0 && errno == EAGAIN) {
      return true;
    } else if (count == 0 || errno != EINTR) {
      close();
      read_({});
      return false;
    }
  }
  return true;
}

// --- PipedChild ---

std::shared_ptr<PipedChild> PipedChild::start(boost::asio::io_context& io, const Options& options, Handlers handlers) {
  auto out = std::make_shared<PipedChild>(io, options, std::move(handlers));
  out->out_->start();
  out->err_->start();
  if (out->report_) out->report_->start();
  out->wait_for_end();
  return out;
}

PipedChild::PipedChild(boost::asio::io_context& io, const Options& options, Handlers handlers)
    : io_(io), handlers_(std::move(handlers)), end_(io) {
  base::UniqueFd ours[3], theirs[3];
  for (const int stream : {0, 1, 2}) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno("a pipe to " + options.command[0]);
    (stream == 0 ? theirs : ours)[stream].reset(ends[0]);
    (stream == 0 ? ours : theirs)[stream].reset(ends[1]);
  }
  base::UniqueFd our_report, its_report;
  Options all = options;
  if (!options.report_variable.empty()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno("a pipe to " + options.command[0]);
    our_report.reset(ends[0]);
    its_report.reset(ends[1]);
    all.environment.push_back(options.report_variable + "=" + std::to_string(ends[1]));
  }
  spawn(all, theirs, its_report.get());
  auto end = base::open_pidfd(pid_);
  if (!end) {
    const int error = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    errno = error;
    base::throw_errno("pidfd_open");
  }
  end_.assign(end.release());
  input_ = std::make_shared<PipeWriter>(io, std::move(ours[0]), handlers_.written);
  out_ = std::make_shared<PipeReader>(io, std::move(ours[1]), handlers_.out);
  err_ = std::make_shared<PipeReader>(io, std::move(ours[2]), handlers_.err);
  if (our_report) report_ = std::make_shared<PipeReader>(io, std::move(our_report), handlers_.report);
}

PipedChild::~PipedChild() {
  input_->close();
  out_->close();
  err_->close();
  if (report_) report_->close();
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

// Between fork and exec only async-signal-safe calls run: everything is made before.
void PipedChild::spawn(const Options& options, base::UniqueFd (&ends)[3], int report_end) {
  const auto argv = addresses_of(options.command), envp = addresses_of(options.environment);
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) base::throw_errno("a pipe to " + options.command[0]);
  const base::UniqueFd heard(report[0]);
  base::UniqueFd told(report[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) base::throw_errno("fork");
  if (pid_ == 0) {
    const char* step = "chdir";
    if (options.own_session)
      ::setsid();
    else
      ::setpgid(0, 0);
    if (options.parent_death_signal != 0) ::prctl(PR_SET_PDEATHSIG, options.parent_death_signal);
    for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int stream : {0, 1, 2}) ::dup2(ends[stream].get(), stream);
    if (report_end >= 0) ::fcntl(report_end, F_SETFD, 0);
    if (options.directory.empty() || ::chdir(options.directory.c_str()) == 0) {
      step = "exec";
      if (options.parent_death_signal == 0 || ::getppid() == parent) ::execvpe(argv[0], argv.data(), envp.data());
    }
    const int failure[] = {errno, step[0]};
    static_cast<void>(!::write(told.get(), failure, sizeof failure));
    ::_exit(127);
  }
  told.reset();
  int failure[2] = {0, 0};
  if (::read(heard.get(), failure, sizeof failure) != sizeof failure) return;
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  errno = failure[0];
  base::throw_errno(failure[1] == 'c' ? "the folder " + options.directory : options.command[0]);
}

void PipedChild::pause_output(bool paused) {
  out_->pause(paused);
  err_->pause(paused);
}

void PipedChild::kill(int signal_number) const {
  if (pid_ > 0) ::kill(pid_, signal_number);
}

void PipedChild::wait_for_end() {
  end_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                  [self = shared_from_this()](boost::system::error_code error) {
                    if (error) return;
                    int status = 0;
                    ::waitpid(std::exchange(self->pid_, -1), &status, 0);
                    self->input_->close();
                    self->out_->drain();
                    self->err_->drain();
                    if (self->report_) self->report_->drain();
                    const auto handlers = std::exchange(self->handlers_, {});
                    handlers.ended(status);
                  });
}

}  // namespace ddp::launcher
