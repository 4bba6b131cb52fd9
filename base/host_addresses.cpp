#include "base/host_addresses.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <system_error>

#include "base/deadline.hpp"
#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::base {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAddressCountMax = 16;

HostAddresses look_up_texts(const std::string& host, int flags) {
  const auto found = look_up(host, 0, flags);
  HostAddresses out{{}, found.error};
  for (const auto& address : found.addresses) {
    const auto length = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::array<char, NI_MAXHOST> text{};
    const auto* const at = reinterpret_cast<const sockaddr*>(&address);
    if (::getnameinfo(at, static_cast<socklen_t>(length), text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
      out.addresses.emplace_back(text.data());
    }
  }
  if (out.addresses.empty() && out.error.empty()) out.error = "it has no address";
  return out;
}

// What the thread and the one who waits share; whoever is last lets go of it.
struct Answer {
  UniqueFd is_there = make_event();
  HostAddresses found;
};

}  // namespace

SocketAddresses look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list); error != 0) {
    return {{}, error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  SocketAddresses out;
  for (const addrinfo* entry = list; entry != nullptr && out.addresses.size() < kAddressCountMax;
       entry = entry->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, entry->ai_addr, std::min<std::size_t>(entry->ai_addrlen, sizeof address));
    out.addresses.push_back(address);
  }
  keep_one_loopback(out.addresses);
  return out;
}

void keep_one_loopback(std::vector<sockaddr_storage>& addresses) {
  const auto is_v4_loopback = [](const sockaddr_storage& address) {
    sockaddr_in v4;
    std::memcpy(&v4, &address, sizeof v4);
    return address.ss_family == AF_INET && ntohl(v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  };
  const auto is_v6_loopback = [](const sockaddr_storage& address) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &address, sizeof v6);
    return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
  };
  if (std::any_of(addresses.begin(), addresses.end(), is_v4_loopback)) std::erase_if(addresses, is_v6_loopback);
}

HostAddresses addresses_of_host(const std::string& host, Clock::time_point end, const Cut* cut) {
  if (auto numeric = look_up_texts(host, AI_NUMERICHOST); !numeric.addresses.empty()) return numeric;
  const auto answer = std::make_shared<Answer>();
  try {
    start_quiet_thread([answer, host] {
      answer->found = look_up_texts(host, 0);
      ring(answer->is_there);
    }).detach();
  } catch (const std::system_error& error) {
    return {{}, std::string("no thread to look up the host in: ") + error.what()};
  }
  Deadline deadline(Clock::now(), end);
  while (!deadline.passed(Clock::now())) {
    pollfd polled[] = {{answer->is_there.get(), POLLIN, 0}, {cut == nullptr ? -1 : cut->descriptor(), POLLIN, 0}};
    ::poll(polled, std::size(polled), deadline.poll_timeout_ms(Clock::now()));
    if (cut != nullptr) cut->throw_if_cut();
    if (polled[0].revents != 0) return answer->found;
  }
  return {{}, "the resolver has not answered"};
}

}  // namespace ddp::base
