#include "launcher/remote/node_service.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "launcher/agent/own_process.hpp"
#include "launcher/output/report_pipe.hpp"
#include "launcher/remote/frames.hpp"
#include "launcher/remote/piped_child.hpp"
#include "rendezvous/membership/outcome.hpp"
#include "rendezvous/security/token.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
namespace outcome = rendezvous::outcome;

constexpr std::chrono::seconds kFrontSilenceMax{60};  // the front says that it lives every few seconds
constexpr std::chrono::seconds kAfterGrace{30};       // for ddprun to end by itself once its workers have ended
constexpr std::chrono::seconds kDeliveryLimit{10};    // for the last frames
constexpr std::size_t kUnsentBytesMax = 1u << 20;     // beyond that ddprun's output waits in its pipes

int number_in(const std::string& text, int otherwise) {
  int value = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

base::UniqueFd duplicate(int fd) { return base::UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 3)); }

// The options come from the front, so no default of theirs counts here. The host may be the front's own machine.
bool is_of_front_only(std::string_view variable) {
  return variable.starts_with("DDPRUN_") || variable.starts_with("PET_") || variable.starts_with("SLURM_");
}

void set(std::vector<std::string>& variables, const std::string& variable) {
  const auto name = variable.substr(0, variable.find('=') + 1);
  std::erase_if(variables, [&name](const std::string& other) { return other.starts_with(name); });
  variables.push_back(variable);
}

class NodeService {
 public:
  NodeService() {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGCHLD, SIG_DFL);
    sigemptyset(&signals_);
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) sigaddset(&signals_, number);
    ::sigprocmask(SIG_BLOCK, &signals_, nullptr);
    for (char** entry = environ; *entry != nullptr; ++entry)
      if (!is_of_front_only(*entry)) options_.environment.emplace_back(*entry);
    options_.command.push_back(std::filesystem::read_symlink("/proc/self/exe"));
    options_.parent_death_signal = SIGTERM;
    ::prctl(PR_SET_DUMPABLE, 0);  // the token passes through here
  }

  int run() {
    own_signals_.assign(open_signalfd(signals_));
    listen_for_signals();
    out_ = std::make_shared<PipeWriter>(io_, duplicate(STDOUT_FILENO), [this] { written(); });
    in_ = std::make_shared<PipeReader>(io_, duplicate(STDIN_FILENO), [this](std::string_view bytes) { take(bytes); });
    out_->write(kRemoteMark);
    in_->start();
    expect_front();
    io_.run();
    return delivered_ ? 0 : 1;
  }

 private:
  // --- from the front ---

  void take(std::string_view bytes) {
    if (bytes.empty()) return lose_front();
    for (const auto& frame : reader_.feed(bytes)) take(frame);
    if (reader_.is_broken()) return lose_front();
    expect_front();
  }

  void take(const Frame& frame) {
    if (lost_) return;
    switch (frame.kind) {
      case FrameKind::directory: options_.directory = frame.bytes; return;
      case FrameKind::variable: return set(options_.environment, frame.bytes);
      case FrameKind::token:
        return set(options_.environment, std::string(security::kTokenVariable) + "=" + frame.bytes);
      case FrameKind::report: options_.report_variable = kReportPipeVariable; return;
      case FrameKind::argument: options_.command.push_back(frame.bytes); return;
      case FrameKind::start: return start(std::chrono::milliseconds(number_in(frame.bytes, 0)));
      case FrameKind::input:
        if (child_ == nullptr) return;
        if (frame.bytes.empty()) return child_->input().close_when_written();
        input_waits_ = true;
        return child_->input().write(frame.bytes);
      case FrameKind::signal: {
        const int number = number_in(frame.bytes, 0);
        suspended_ = number == SIGTSTP;
        if (child_ != nullptr && number > 0) child_->kill(number);
        return;
      }
      default: return;  // alive, and what a later version may say
    }
  }

  void start(std::chrono::milliseconds grace) {
    if (child_ != nullptr) return;
    grace_ = grace;
    try {
      child_ = PipedChild::start(
          io_, options_,
          {[this](std::string_view bytes) { pass_on(FrameKind::out, bytes); },
           [this](std::string_view bytes) { pass_on(FrameKind::err, bytes); }, [this](int status) { end(status); },
           [this] { take_more_input(); }, [this](std::string_view bytes) { keep_report(bytes); }});
    } catch (const std::system_error& error) {
      send(FrameKind::failed, error.what());
      finish();
    }
    options_ = {};
  }

  void take_more_input() {
    if (std::exchange(input_waits_, false)) send(FrameKind::input_taken, "");
  }

  // --- to the front ---

  void send(FrameKind kind, std::string_view bytes) { out_->write(encoded(kind, bytes)); }

  void pass_on(FrameKind kind, std::string_view bytes) {
    if (bytes.empty() || lost_) return;  // whoever closes its output may still run
    send(kind, bytes);
    if (out_->waiting_bytes() > kUnsentBytesMax) child_->pause_output(true);
  }

  void keep_report(std::string_view bytes) { report_ += bytes.substr(0, kReportBytesMax - report_.size()); }

  void written() {
    if (out_->is_broken() && !finished_) return lose_front();
    if (out_->waiting_bytes() > 0) return;
    if (finished_) {
      delivered_ = !out_->is_broken();
      return io_.stop();
    }
    if (child_ != nullptr) child_->pause_output(false);
  }

  void end(int status) {
    if (!report_.empty()) send(FrameKind::report, report_);
    const auto outcome = WIFEXITED(status) ? rendezvous::Outcome(outcome::Told{WEXITSTATUS(status)})
                                           : rendezvous::Outcome(outcome::StoppedBySignal{WTERMSIG(status)});
    send(FrameKind::ended, std::to_string(rendezvous::exit_code_of(outcome)));
    finish();
  }

  void finish() {
    finished_ = true;
    if (lost_) return io_.stop();
    limit(kDeliveryLimit, [this] { io_.stop(); });
  }

  // --- the end of the connection ---

  void expect_front() {
    if (lost_ || finished_) return;
    limit(kFrontSilenceMax, [this] {
      if (!suspended_) lose_front();
    });
  }

  void lose_front() {
    if (std::exchange(lost_, true) || finished_) return;
    in_->close();
    if (child_ == nullptr) return io_.stop();
    child_->pause_output(false);  // it is read and dropped
    child_->kill(SIGCONT);
    child_->kill(SIGTERM);
    limit(grace_ + kAfterGrace, [this] { child_->kill(SIGKILL); });
  }

  void limit(std::chrono::milliseconds time, std::function<void()> over) {
    timer_.expires_after(time);
    timer_.async_wait([over = std::move(over)](boost::system::error_code error) {
      if (!error) over();
    });
  }

  // The host goes down, or somebody ends this session.
  void listen_for_signals() {
    own_signals_.async_wait(asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
      if (error) return;
      signalfd_siginfo info;
      while (::read(own_signals_.native_handle(), &info, sizeof info) == sizeof info) {
        if (child_ == nullptr) return io_.stop();
        child_->kill(static_cast<int>(info.ssi_signo));
      }
      listen_for_signals();
    });
  }

  asio::io_context io_{1};
  asio::steady_timer timer_{io_};
  asio::posix::stream_descriptor own_signals_{io_};
  sigset_t signals_{};
  PipedChild::Options options_;
  std::chrono::milliseconds grace_{0};
  FrameReader reader_;
  std::string report_;
  std::shared_ptr<PipeReader> in_;
  std::shared_ptr<PipeWriter> out_;
  std::shared_ptr<PipedChild> child_;
  bool input_waits_ = false, suspended_ = false, lost_ = false, finished_ = false, delivered_ = false;
};

}  // namespace

int serve_remote_node() { return NodeService().run(); }

}  // namespace ddp::launcher
