// The hosts that tests over several hosts run on: what they share and what they do not.
#include "tests/multihost/hosts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>

#include "base/pidfd.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp::test {
namespace {

using ddp::testing::wait_until;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class HostsTest : public Multihost {};

std::string own_hosts_file() {
  std::ifstream file("/etc/hosts");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(HostsTest, HaveNamesProcessesAndAddressesOfTheirOwn) {
  const std::string before = own_hosts_file();
  Hosts* const hosts = make_hosts({.count = 3, .interfaces = 2});
  if (hosts == nullptr) return;
  for (int host = 0; host < 3; ++host) {
    auto shown = hosts->run(host, {"sh", "-c", "uname -n; getent ahosts node2; ip -o address; ls /proc"});
    EXPECT_EQ(shown.wait(), 0) << shown.err();
    EXPECT_THAT(shown.out(), StartsWith(Hosts::name(host) + "\n"));
    for (const auto& address : {Hosts::ipv4(2), Hosts::ipv6(2)}) EXPECT_THAT(shown.out(), HasSubstr(address + " "));
    for (const int interface : {0, 1}) {
      EXPECT_THAT(shown.out(), HasSubstr(Hosts::ipv4(host, interface) + "/24"));
      EXPECT_THAT(shown.out(), HasSubstr(Hosts::ipv6(host, interface) + "/64"));
    }
    EXPECT_THAT(shown.out(), Not(HasSubstr("\n" + std::to_string(::getpid()) + "\n"))) << "a process of another host";
  }
  EXPECT_EQ(own_hosts_file(), before);
}

constexpr std::uint16_t kPort = 4000;

// A process that lets everybody connect; returns when it listens.
pid_t listen_on(Hosts& hosts, int host) {
  int ready[2];
  if (::pipe(ready) != 0) throw std::runtime_error("pipe");
  const pid_t pid = hosts.fork_on(host);
  if (pid == 0) {
    const int listener = ::socket(AF_INET6, SOCK_STREAM, 0);  // takes IPv4, too
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(kPort);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0) ::_exit(1);
    if (::listen(listener, 16) != 0 || ::write(ready[1], "", 1) != 1) ::_exit(1);
    for (;;) ::accept(listener, nullptr, nullptr);
  }
  ::close(ready[1]);
  char byte = 0;
  const bool listens = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  if (!listens) throw std::runtime_error("nobody listens");
  return pid;
}

// A process that ends with 1 if it can't connect, else as `then` says.
pid_t connect_and(Hosts& hosts, int host, const std::string& address, const std::function<int(int connection)>& then) {
  const pid_t pid = hosts.fork_on(host);
  if (pid != 0) return pid;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(kPort).c_str(), nullptr, &found) != 0) ::_exit(2);
  const int connection = ::socket(found->ai_family, SOCK_STREAM, 0);
  ::_exit(::connect(connection, found->ai_addr, found->ai_addrlen) == 0 ? then(connection) : 1);
}

pid_t connect_from(Hosts& hosts, int host, const std::string& address) {
  return connect_and(hosts, host, address, [](int) { return 0; });
}

// Whether a connection from the process's host waits for an answer, and has asked `times` for it.
bool has_asked_to_connect(pid_t pid, unsigned long times = 1) {
  std::ifstream connections("/proc/" + std::to_string(pid) + "/net/tcp");
  for (std::string line; std::getline(connections, line);) {
    std::istringstream fields(line);
    std::string number, here, there, state, queues, timer, asked_again;
    fields >> number >> here >> there >> state >> queues >> timer >> asked_again;
    if (state != "02") continue;  // TCP_SYN_SENT
    if (1 + std::stoul(asked_again, nullptr, 16) >= times) return true;
  }
  return false;
}

int wait_status(pid_t pid) {
  int status = -1;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST_F(HostsTest, ReachEachOtherUntilACableIsCutAndAgainAfter) {
  Hosts* const hosts = make_hosts({.count = 2, .interfaces = 2});
  if (hosts == nullptr) return;
  const pid_t listener = listen_on(*hosts, 1);
  for (const auto& address : {Hosts::ipv4(1), Hosts::ipv6(1), Hosts::ipv4(1, 1), Hosts::ipv6(1, 1), Hosts::name(1)}) {
    EXPECT_EQ(wait_status(connect_from(*hosts, 0, address)), 0) << address;
  }

  hosts->cut(1, 0);
  const pid_t waiting = connect_from(*hosts, 0, Hosts::ipv4(1));
  wait_until([&] { return has_asked_to_connect(waiting); });
  EXPECT_EQ(wait_status(connect_from(*hosts, 0, Hosts::ipv4(1, 1))), 0) << "the other cable";
  EXPECT_EQ(::waitpid(waiting, nullptr, WNOHANG), 0) << "neither refused nor connected";
  hosts->heal(1, 0);
  EXPECT_EQ(wait_status(waiting), 0);
  ::kill(listener, SIGKILL);
  EXPECT_EQ(wait_status(listener), SIGKILL);
}

TEST_F(HostsTest, ACutWayLosesWhatOneHostSendsToOneOther) {
  Hosts* const hosts = make_hosts({.count = 3});
  if (hosts == nullptr) return;
  const pid_t on_one = listen_on(*hosts, 1), on_two = listen_on(*hosts, 2);
  EXPECT_EQ(wait_status(connect_from(*hosts, 0, Hosts::ipv4(1))), 0) << "the hosts know each other's address before";
  for (const int from : {0, 1}) {
    SCOPED_TRACE(from);
    hosts->cut_way(from, 1 - from);
    for (const auto& address : {Hosts::ipv4(2), Hosts::ipv6(2)}) {
      EXPECT_EQ(wait_status(connect_from(*hosts, 0, address)), 0) << "the way to another host";
    }
    const pid_t waiting = connect_from(*hosts, 0, Hosts::ipv4(1));
    wait_until([&] { return has_asked_to_connect(waiting, 2); });
    EXPECT_EQ(::waitpid(waiting, nullptr, WNOHANG), 0) << "neither refused nor connected";
    hosts->heal_way(from, 1 - from);
    EXPECT_EQ(wait_status(waiting), 0);
    EXPECT_EQ(wait_status(connect_from(*hosts, 0, Hosts::ipv6(1))), 0);
  }
  for (const pid_t listener : {on_one, on_two}) {
    ::kill(listener, SIGKILL);
    EXPECT_EQ(wait_status(listener), SIGKILL);
  }
}

TEST_F(HostsTest, AStandInResetsConnectionsAndRefusesNewOnes) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  const pid_t listener = listen_on(*hosts, 1);
  int go[2], told[2];
  ASSERT_EQ(::pipe(go), 0);
  ASSERT_EQ(::pipe(told), 0);
  const pid_t client = connect_and(*hosts, 0, Hosts::ipv4(1), [&](int connection) {
    char byte = 0;
    const bool is_told = ::write(told[1], "", 1) == 1 && ::read(go[0], &byte, 1) == 1;
    const bool is_sent = is_told && ::send(connection, "", 1, MSG_NOSIGNAL) == 1;
    pollfd ended{connection, 0, 0};  // POLLERR comes unasked
    int error = 0;
    socklen_t size = sizeof error;
    const bool is_known =
        is_sent && ::poll(&ended, 1, 60'000) == 1 && ::getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &size) == 0;
    return is_known && error == ECONNRESET ? 0 : 3;
  });
  char byte = 0;
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  hosts->cut(1);
  hosts->stand_in_for(1);
  ASSERT_EQ(::write(go[1], "", 1), 1);
  EXPECT_EQ(wait_status(client), 0);
  for (const auto& address : {Hosts::ipv4(1), Hosts::ipv6(1)}) {
    EXPECT_EQ(wait_status(connect_from(*hosts, 0, address)), 0x0100) << "refused: " << address;
  }
  hosts->end_stand_in(1);
  hosts->heal(1);
  for (const auto& address : {Hosts::ipv4(1), Hosts::ipv6(1)}) {
    EXPECT_EQ(wait_status(connect_from(*hosts, 0, address)), 0) << address;
  }
  ::kill(listener, SIGKILL);
  EXPECT_EQ(wait_status(listener), SIGKILL);
  for (const int end : {go[0], go[1], told[0], told[1]}) ::close(end);
}

TEST_F(HostsTest, WhatADisturbedHostSendsIsDelayedOrLostUntilThatEnds) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr || !disturb(0, {})) return;
  const pid_t listener = listen_on(*hosts, 1);
  EXPECT_EQ(wait_status(connect_from(*hosts, 0, Hosts::ipv4(1))), 0);

  constexpr std::chrono::milliseconds kDelay{100};
  if (!disturb(0, {.delay = kDelay})) return;
  for (const auto& address : {Hosts::ipv4(1), Hosts::ipv6(1)}) {
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(wait_status(connect_from(*hosts, 0, address)), 0) << address;
    EXPECT_GE(std::chrono::steady_clock::now() - began, kDelay) << address;
  }

  if (!disturb(0, {.loss = 1})) return;
  const pid_t waiting = connect_from(*hosts, 0, Hosts::ipv4(1));
  wait_until([&] { return has_asked_to_connect(waiting, 2); });  // the second time after a second without an answer
  EXPECT_EQ(::waitpid(waiting, nullptr, WNOHANG), 0) << "neither refused nor connected";
  ::kill(waiting, SIGKILL);
  EXPECT_EQ(wait_status(waiting), SIGKILL);

  if (!disturb(0, {})) return;
  EXPECT_EQ(wait_status(connect_from(*hosts, 0, Hosts::ipv4(1))), 0);
  hosts->cut(0);
  const pid_t cut_off = connect_from(*hosts, 0, Hosts::ipv4(1));
  wait_until([&] { return has_asked_to_connect(cut_off, 2); });
  hosts->heal(0);
  EXPECT_EQ(wait_status(cut_off), 0);
  ::kill(listener, SIGKILL);
  EXPECT_EQ(wait_status(listener), SIGKILL);
}

TEST_F(HostsTest, ACrashedHostTakesEveryProcessAlong) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  auto process = hosts->run(1, {"sh", "-c", "setsid tail -f /dev/null & echo started; wait"});
  ASSERT_TRUE(process.prints("started"));
  hosts->crash(1);
  EXPECT_EQ(process.wait(), 1000 + SIGKILL);
}

TEST_F(HostsTest, EndWithTheProcessThatMadeThem) {
  if (make_hosts({.count = 1}) == nullptr) return;
  int report[2];
  ASSERT_EQ(::pipe(report), 0);
  const pid_t maker = ::fork();
  if (maker == 0) {
    Hosts hosts({});
    const pid_t on_host = hosts.fork_on(1);
    if (on_host == 0) {
      for (;;) ::pause();
    }
    [[maybe_unused]] const auto written = ::write(report[1], &on_host, sizeof on_host);
    for (;;) ::pause();
  }
  pid_t on_host = 0;
  ASSERT_EQ(::read(report[0], &on_host, sizeof on_host), static_cast<ssize_t>(sizeof on_host));
  const base::UniqueFd process = base::open_pidfd(on_host);
  ::kill(maker, SIGKILL);
  EXPECT_EQ(wait_status(maker), SIGKILL);
  pollfd polled{process.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 60'000), 1);
  for (const int end : report) ::close(end);
}

TEST_F(HostsTest, AProgramThatCanNotRunSaysSo) {
  Hosts* const hosts = make_hosts({.count = 1});
  if (hosts == nullptr) return;
  auto process = hosts->run(0, {"no-such-program"});
  EXPECT_EQ(process.wait(), 127);
  EXPECT_THAT(process.err(), HasSubstr("no-such-program: No such file"));
}

}  // namespace
}  // namespace ddp::test
