#include "rendezvous/daemon/own_process.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace ddp::rendezvous {
namespace {

// Blocked from here on, so that they arrive as events. A blocked signal reaches a signalfd even where it is ignored, so
// those that are (nohup) must not be in the set.
sigset_t block_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more is no reason to end
  return set;
}

int open_signalfd() {
  const sigset_t set = block_ending_signals();
  return ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

}  // namespace

OwnProcess::OwnProcess(boost::asio::io_context& io) : io_(io), signals_(io, open_signalfd()) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int OwnProcess::run_until_signal() {
  signals_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this](const boost::system::error_code&) { io_.stop(); });
  io_.run();
  signalfd_siginfo info{};
  if (::read(signals_.native_handle(), &info, sizeof info) != sizeof info) return SIGTERM;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace ddp::rendezvous
