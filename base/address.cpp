#include "base/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace ddp::base {
namespace {

constexpr std::array<std::uint8_t, Address::kV4Offset> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

Address from_v4(const in_addr& v4) {
  Address address;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), address.bytes.begin());
  std::memcpy(&address.bytes[Address::kV4Offset], &v4, sizeof v4);
  return address;
}

Address from_v6(const in6_addr& v6) {
  Address address;
  std::memcpy(address.bytes.data(), &v6, sizeof v6);
  return address;
}

// Of a mask; all of an IPv4 one's mapped prefix count.
int leading_ones(const Address& mask) {
  int count = mask.is_v4() ? static_cast<int>(8 * Address::kV4Offset) : 0;
  while (count < 128 && (mask.bytes[static_cast<std::size_t>(count / 8)] >> (7 - count % 8) & 1) != 0) ++count;
  return count;
}

}  // namespace

bool Address::is_v4() const { return std::equal(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin()); }

bool Address::is_loopback() const {
  if (is_v4()) return bytes[kV4Offset] == 127;
  Address loopback;
  loopback.bytes.back() = 1;
  return *this == loopback;
}

bool Address::is_link_local() const { return !is_v4() && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80; }

std::string Address::text() const {
  char buffer[INET6_ADDRSTRLEN];
  const bool v4 = is_v4();
  ::inet_ntop(v4 ? AF_INET : AF_INET6, &bytes[v4 ? kV4Offset : 0], buffer, sizeof buffer);
  return buffer;
}

Address network_of(Address address) {
  if (!address.is_v4()) std::fill(address.bytes.begin() + 8, address.bytes.end(), std::uint8_t{0});
  return address;
}

Address address_of(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &peer, sizeof v4);
    return from_v4(v4.sin_addr);
  }
  sockaddr_in6 v6;
  std::memcpy(&v6, &peer, sizeof v6);
  return from_v6(v6.sin6_addr);
}

sockaddr_storage socket_address(const Address& address, std::uint16_t port) {
  sockaddr_storage out{};
  if (address.is_v4()) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, &address.bytes[Address::kV4Offset], sizeof v4.sin_addr);
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, address.bytes.data(), sizeof v6.sin6_addr);
  }
  return out;
}

socklen_t length_of(const sockaddr_storage& address) {
  return address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

sockaddr_storage with_port(sockaddr_storage address, std::uint16_t port) {
  if (address.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  else
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  return address;
}

std::optional<Address> parse_address(const std::string& text) {
  if (text.find('\0') != std::string::npos) return std::nullopt;  // inet_pton() reads up to it only
  in_addr v4;
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return from_v4(v4);
  in6_addr v6;
  if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1) return from_v6(v6);
  return std::nullopt;
}

bool is_host(const std::string& text) {
  constexpr std::size_t kHostBytesMax = 253, kLabelBytesMax = 63;  // RFC 1035
  if (text.empty() || text.size() > kHostBytesMax) return false;
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  const auto zone = text.find('%');
  if (text.find(':') != std::string::npos) {
    const auto zone_text = zone == std::string::npos ? std::string() : text.substr(zone + 1);
    return parse_address(text.substr(0, zone)) && (zone == std::string::npos || !zone_text.empty()) &&
           std::all_of(zone_text.begin(), zone_text.end(),
                       [&](char c) { return is_letter(c) || c == '.' || c == '@'; });
  }
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.size(), text.find('.', at));
    const auto label = text.substr(at, end - at);
    if (label.empty() || label.size() > kLabelBytesMax || label.front() == '-' ||
        !std::all_of(label.begin(), label.end(), is_letter))
      return false;
    at = end + 1;
  }
  return true;
}

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;  // by a netlink socket: the kernel's answer is there when the question is sent
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto address_at = [family](const sockaddr* at) {
      sockaddr_storage storage{};
      std::memcpy(&storage, at, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      storage.ss_family = static_cast<sa_family_t>(family);  // which a mask need not say
      return address_of(storage);
    };
    const bool has_mask = entry->ifa_netmask != nullptr;
    out.push_back({address_at(entry->ifa_addr), (entry->ifa_flags & IFF_UP) != 0,
                   has_mask ? leading_ones(address_at(entry->ifa_netmask)) : 128});
  }
  return out;
}

}  // namespace ddp::base
