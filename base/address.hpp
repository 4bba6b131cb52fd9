// The address of a peer, as it is compared and shown. Its name is never looked up: a resolver can take seconds.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddp::base {

// An IPv6 address, or an IPv4 address in IPv6's mapped form (::ffff:10.0.0.1), so that both compare alike.
struct Address {
  static constexpr std::size_t kV4Offset = 12;  // where an IPv4 address stands in `bytes`

  std::array<std::uint8_t, 16> bytes{};

  bool is_v4() const;
  bool is_loopback() const;
  bool is_link_local() const;  // fe80::/10, which means something on one link only
  std::string text() const;    // "10.0.0.1", "fe80::1"
  auto operator<=>(const Address&) const = default;
};

// All addresses that one host may use together: a /64 in IPv6, the address itself in IPv4.
Address network_of(Address address);

// Requires an address of family AF_INET or AF_INET6.
Address address_of(const sockaddr_storage& peer);

// With a port, as bind() and connect() take it: of family AF_INET where is_v4(), else AF_INET6. length_of: of that
// family.
sockaddr_storage socket_address(const Address& address, std::uint16_t port);
socklen_t length_of(const sockaddr_storage& address);

// The same address, its link included, with another port.
sockaddr_storage with_port(sockaddr_storage address, std::uint16_t port);

// Reads "10.0.0.1" or "fe80::1"; empty for anything else, names included.
std::optional<Address> parse_address(const std::string& text);

// Whether this is an address ("10.0.0.1", "fe80::1", "fe80::1%eth0") or may be the name of a host: at most 253 bytes,
// in parts of 1 to 63 letters, digits, '-' and '_' with dots between them. No part begins with '-'.
bool is_host(const std::string& text);

struct InterfaceAddress {
  Address address;
  bool is_up = false;     // the interface
  int prefix_bits = 128;  // of the network that is reached by it, counted in the 128 bits of the mapped form
};

// Of all interfaces of this host, loopback included; empty where the kernel does not tell.
std::vector<InterfaceAddress> interface_addresses();

}  // namespace ddp::base
