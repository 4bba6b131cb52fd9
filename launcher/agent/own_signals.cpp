#include "launcher/agent/own_signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "launcher/agent/own_process.hpp"

namespace ddp::launcher {

OwnSignals::OwnSignals(boost::asio::io_context& io, const sigset_t& taken_in, const std::vector<int>& forwarded,
                       Handlers handlers)
    : forwarded_(forwarded), handlers_(std::move(handlers)), source_(io, open_signalfd(taken_in)) {}

void OwnSignals::listen() {
  source_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    signalfd_siginfo info;
    while (::read(source_.native_handle(), &info, sizeof info) == sizeof info) take(info);
    listen();
  });
}

void OwnSignals::take(const signalfd_siginfo& info) {
  const int number = static_cast<int>(info.ssi_signo);
  if (number == SIGCHLD) return handlers_.child_ended();
  if (number == SIGWINCH) return handlers_.terminal_resized();
  if (number == SIGTSTP) return handlers_.event(NodeCore::SuspendSignalled{});
  if (number == SIGCONT) return handlers_.event(NodeCore::ContinueSignalled{});
  if (std::find(forwarded_.begin(), forwarded_.end(), number) != forwarded_.end())
    return handlers_.event(NodeCore::WarningSignalled{number, sender_of(info)});
  handlers_.event(NodeCore::StopSignalled{number, sender_of(info)});
}

}  // namespace ddp::launcher
