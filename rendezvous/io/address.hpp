// The address of a peer, as it is compared and shown. Its name is never looked up: a resolver can take seconds.
#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ddp::io {

// An IPv6 address, or an IPv4 address in IPv6's mapped form (::ffff:10.0.0.1), so that both compare alike.
struct Address {
  static constexpr std::size_t kV4Offset = 12;  // where an IPv4 address stands in `bytes`

  std::array<std::uint8_t, 16> bytes{};

  bool is_v4() const;
  bool is_loopback() const;
  std::string text() const;  // "10.0.0.1", "fe80::1"
  auto operator<=>(const Address&) const = default;
};

// Requires an address of family AF_INET or AF_INET6.
Address address_of(const sockaddr_storage& peer);

// Reads "10.0.0.1" or "fe80::1"; empty for anything else, names included.
std::optional<Address> parse_address(const std::string& text);

}  // namespace ddp::io
