#include "rendezvous/daemon/serve_store.hpp"

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "rendezvous/port/port.hpp"
#include "rendezvous/store/server.hpp"

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

void raise_descriptor_limit() {  // each client takes one
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string listening_text(const ServeStore& options, std::uint16_t port) {
  std::string text = "ddp-rendezvous: the store listens on port " + std::to_string(port) + " of ";
  if (options.hosts.empty()) return text + "all addresses";
  for (std::size_t i = 0; i < options.hosts.size(); ++i) text += (i == 0 ? "" : ", ") + options.hosts[i];
  return text;
}

}  // namespace

int serve_store(const ServeStore& options) {
  const sigset_t signals = block_ending_signals();
  raise_descriptor_limit();
  boost::asio::io_context io(1);
  boost::asio::posix::stream_descriptor signal_source(io, ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  const auto warn = [](const std::string& message) { std::cerr << "ddp-rendezvous: " << message << std::endl; };
  store::Server server(io, {.allow = options.allow, .warn = warn});
  port::Port port(io, {.addresses = options.hosts, .first = options.port, .last = options.port, .warn = warn},
                  {.store = [&server](io::UniqueFd socket, const sockaddr_storage& peer) {
                    server.adopt(std::move(socket), peer);
                  }});
  std::cout << listening_text(options, port.number()) << std::endl;
  signal_source.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [&io](const boost::system::error_code&) { io.stop(); });
  io.run();
  signalfd_siginfo info{};
  if (::read(signal_source.native_handle(), &info, sizeof info) != sizeof info) return SIGTERM;
  return static_cast<int>(info.ssi_signo);
}

}  // namespace ddp::rendezvous
