// What callers say to a rank's port for other hosts. Who says the group's secret and its name is let in, with what it
// said; everybody else is cut off.
//
// The input is a run of segments: one byte that names one of four callers (in its low two bits; the highest bit: it
// hangs up afterwards), one byte with a length, and that many bytes that the caller says.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/fuzz/loopback.hpp"
#include "tests/fuzz/targets.hpp"
#include "worker_runtime/core/sockets/tcp_socket.hpp"

namespace {

using namespace ddp::core;
using ddp::base::UniqueFd;
using ddp::fuzz::require;

constexpr int kPatience = 30'000;  // milliseconds; only bounds how long a failure waits

std::uint16_t own_port(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  require(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0, "a socket has a port");
  return ::ntohs(address.sin_port);
}

std::uint16_t port_of_peer(int socket) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  require(::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0, "an arrival is connected");
  return ::ntohs(address.sin_port);
}

// One for all inputs; what waits in its queue is taken by none.
int listener() {
  static const UniqueFd socket = [] {
    UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto address = ddp::fuzz::loopback_address(0);
    require(::bind(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                ::listen(made.get(), 16) == 0,
            "a port in this process");
    return made;
  }();
  return socket.get();
}

class Callers {
 public:
  Callers() : port_(own_port(listener())) {
    put_text(expected_.secret, "0123456789abcdef0123456");
    put_text(expected_.group, "ddp/round_1/");
    acceptor_.emplace(TcpSocket(UniqueFd(::dup(listener()))), expected_);
  }

  void say(unsigned who, std::string_view bytes) {
    Caller& caller = callers_[who];
    if (!caller.socket) {
      caller.socket = ddp::fuzz::connect_to_loopback(port_);
      by_port_[own_port(caller.socket.get())] = who;
    }
    const std::size_t room = sizeof(RankHello) - std::min(sizeof(RankHello), caller.said.size());
    caller.said += bytes.substr(0, room);  // what follows is not for the acceptor
    ddp::fuzz::send_to_loopback(caller.socket, bytes.substr(0, room));
    serve(0);
    while (caller.said.size() == sizeof(RankHello) && !caller.is_in && !is_cut_off(caller))
      require(serve(kPatience), "who has said a hello is let in or cut off");
    require(caller.said.size() < sizeof(RankHello) || caller.is_in == is_right(caller.said),
            "a hello with the secret is let in, any other is not");
  }

  void hang_up(unsigned who) {
    Caller& caller = callers_[who];
    if (caller.socket) by_port_.erase(own_port(caller.socket.get()));
    caller = {};
    serve(0);
  }

 private:
  struct Caller {
    UniqueFd socket;
    std::string said;
    bool is_in = false;
  };

  bool is_right(const std::string& said) const {
    RankHello hello;
    std::memcpy(&hello, said.data(), sizeof hello);
    return hello.magic == expected_.magic && hello.secret == expected_.secret && hello.group == expected_.group;
  }

  static bool is_cut_off(const Caller& caller) {
    pollfd polled{caller.socket.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) > 0;  // the acceptor says nothing
  }

  // Whether there was something to do within `patience`.
  bool serve(int patience) {
    std::vector<pollfd> polled;
    acceptor_->add_to(polled);
    if (::poll(polled.data(), polled.size(), patience) <= 0) return false;
    for (auto& arrival : acceptor_->take(polled)) {
      const auto found = by_port_.find(port_of_peer(arrival.socket.get()));
      if (found == by_port_.end()) continue;  // it has hung up
      Caller& caller = callers_[found->second];
      require(!caller.is_in && caller.said.size() == sizeof(RankHello) &&
                  std::memcmp(caller.said.data(), &arrival.hello, sizeof(RankHello)) == 0,
              "an arrival's hello is what it said, and is heard once");
      caller.is_in = true;
      arrived_.push_back(std::move(arrival.socket));
    }
    return true;
  }

  std::uint16_t port_;
  RankHello expected_;
  std::optional<Acceptor> acceptor_;
  std::array<Caller, 4> callers_;
  std::map<std::uint16_t, unsigned> by_port_;
  std::vector<TcpSocket> arrived_;
};

}  // namespace

void ddp::fuzz::cpu_handshake(std::string_view input) {
  Callers callers;
  while (!input.empty()) {
    const auto who = take_byte(input);
    callers.say(who % 4, take_text(input));
    if ((who & 0x80) != 0) callers.hang_up(who % 4);
  }
}
