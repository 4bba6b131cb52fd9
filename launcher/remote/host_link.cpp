#include "launcher/remote/host_link.hpp"

#include <signal.h>
#include <sys/wait.h>

#include <charconv>
#include <utility>

#include "rendezvous/membership/failure.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kHeldLinesMax = 200;      // of a login shell that prints
constexpr std::chrono::seconds kCloseLimit{2};  // for ssh to pass on that the connection is over
constexpr int kSshFailed = 255;                 // ssh's own exit code

}  // namespace

void HostLink::start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                     std::chrono::milliseconds limit) {
  PipedChild::Options options;
  options.command = command;
  options.environment = environment;
  options.own_session = true;
  child_ =
      PipedChild::start(io_, options,
                        {[this](std::string_view bytes) { take_out(bytes); },
                         [this](std::string_view bytes) { take_err(bytes); }, [this](int status) { end(status); }});
  timer_.expires_after(limit);
  timer_.async_wait([this, limit](boost::system::error_code error) {
    if (!error)
      close("no answer within " + rendezvous::describe_duration(limit) + (last_line_.empty() ? "" : ": " + last_line_));
  });
}

void HostLink::send(FrameKind kind, std::string_view bytes) {
  if (is_connected()) child_->input().write(encoded(kind, bytes));
}

void HostLink::close(const std::string& why) {
  if (child_ == nullptr || ended_) return;
  if (why_closed_.empty()) why_closed_ = why;
  child_->input().close();
  if (!connected_) child_->kill(SIGTERM);
  timer_.expires_after(kCloseLimit);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) child_->kill(SIGTERM);
  });
}

void HostLink::take_out(std::string_view bytes) {
  if (!connected_) {
    login_lines_.feed(mark_.feed(bytes), [this](std::string_view line) { say(line); });
    const auto rest = mark_.take_rest();
    if (!rest) return;
    login_lines_.end([this](std::string_view line) { say(line); });
    timer_.cancel();
    connected_ = true;
    tell_held_lines(0);
    last_line_.clear();
    handlers_.connected();
    return take_out(*rest);
  }
  for (const auto& frame : frames_.feed(bytes)) take(frame);
  if (frames_.is_broken()) close("what comes from the host is not from a ddprun");
}

void HostLink::take(const Frame& frame) {
  switch (frame.kind) {
    case FrameKind::out: return handlers_.output(1, frame.bytes);
    case FrameKind::err: return handlers_.output(2, frame.bytes);
    case FrameKind::report: return handlers_.report(frame.bytes);
    case FrameKind::input_taken: return handlers_.input_taken();
    case FrameKind::failed:
      failure_ = frame.bytes;
      exit_code_ = rendezvous::exit_code_of(rendezvous::outcome::NotStarted{});
      return;
    case FrameKind::ended: {
      int code = 0;
      const auto* const end = frame.bytes.data() + frame.bytes.size();
      if (std::from_chars(frame.bytes.data(), end, code).ec == std::errc{}) exit_code_ = code;
      return;
    }
    default: return;  // what a later version may say
  }
}

void HostLink::take_err(std::string_view bytes) {
  ssh_lines_.feed(bytes, [this](std::string_view line) { say(line); });
}

void HostLink::say(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.remove_suffix(1);
  if (line.empty()) return;
  last_line_ = line;
  if (connected_)
    handlers_.said(line);
  else if (held_.size() < kHeldLinesMax)
    held_.emplace_back(line);
}

void HostLink::tell_held_lines(std::size_t but_last) {
  for (std::size_t i = 0; i + but_last < held_.size(); ++i) handlers_.said(held_[i]);
  held_.clear();
}

void HostLink::end(int wait_status) {
  timer_.cancel();
  ended_ = true;
  login_lines_.feed(mark_.take_unmarked(), [this](std::string_view line) { say(line); });
  login_lines_.end([this](std::string_view line) { say(line); });
  ssh_lines_.end([this](std::string_view line) { say(line); });
  if (!connected_) tell_held_lines(1);
  handlers_.ended({exit_code_, exit_code_ ? failure_ : reason_of(wait_status), connected_});
}

std::string HostLink::reason_of(int wait_status) const {
  if (!why_closed_.empty()) return why_closed_;
  if (WIFEXITED(wait_status) && !last_line_.empty()) {
    const int code = WEXITSTATUS(wait_status);
    return code == kSshFailed || connected_
               ? last_line_
               : "no ddprun answers there (exit code " + std::to_string(code) + "): " + last_line_;
  }
  if (WIFSIGNALED(wait_status))
    return "its process here was killed by " + rendezvous::signal_name(WTERMSIG(wait_status));
  return "the connection was closed";
}

}  // namespace ddp::launcher
