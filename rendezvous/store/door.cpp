#include "rendezvous/store/door.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "ddp/error.hpp"

namespace ddp::store {

using io::Address;
using io::address_of;

namespace {

template <class Socket>
Socket socket_address(const sockaddr_storage& storage) {
  Socket address;
  std::memcpy(&address, &storage, sizeof address);
  return address;
}

CidrBlock parse_block(const std::string& text) {
  const auto fail = [&text](const std::string& why) {
    return InvalidArgument("\"" + text + "\" is no block of addresses: " + why +
                           "; give for example 10.0.0.0/8, fd00::/8, 192.168.1.7 or any");
  };
  const auto slash = text.find('/');
  const std::string base = text.substr(0, slash);
  CidrBlock block;
  int bits_max = 128;
  if (const auto address = io::parse_address(base)) {
    block.first = *address;
    if (base.find(':') == std::string::npos) bits_max = 32;
  } else {
    throw fail("\"" + base + "\" is neither an IPv4 nor an IPv6 address");
  }
  if (slash == std::string::npos) return block;
  const std::string_view bits = std::string_view(text).substr(slash + 1);
  int prefix = -1;
  const auto [end, error] = std::from_chars(bits.data(), bits.data() + bits.size(), prefix);
  if (error != std::errc{} || end != bits.data() + bits.size() || prefix < 0 || prefix > bits_max) {
    throw fail("the part after the slash must be a number from 0 to " + std::to_string(bits_max));
  }
  block.prefix_bits = 128 - bits_max + prefix;
  return block;
}

bool is_on_interface(const Address& address) {
  const auto own = io::interface_addresses();
  return std::any_of(own.begin(), own.end(), [&](const auto& each) { return each.address == address; });
}

// One end of a connection as the kernel's sockets know it: an IPv4 connection of an IPv6 socket counts as IPv4.
struct End {
  Address address;
  std::uint16_t port_be = 0;      // in network order
  std::uint32_t scope_index = 0;  // the interface of a link-local IPv6 address
};

End end_of(const sockaddr_storage& storage) {
  if (storage.ss_family == AF_INET) {
    return {address_of(storage), socket_address<sockaddr_in>(storage).sin_port, 0};
  }
  const auto v6 = socket_address<sockaddr_in6>(storage);
  return {address_of(storage), v6.sin6_port, v6.sin6_scope_id};
}

void copy_address(const Address& address, std::uint32_t (&words)[4]) {
  const std::size_t offset = address.is_v4() ? Address::kV4Offset : 0;
  std::memcpy(words, &address.bytes[offset], address.bytes.size() - offset);
}

// The user whose process holds the socket from `peer` to `local`; empty where the kernel knows no such socket, or
// nobody holds it any more. Both matter: a look-up that finds no connection falls back to a listening socket on the
// same port, and a socket whose process has closed it is reported as root's.
std::optional<uid_t> socket_owner(int sock_diag, const End& peer, const End& local) {
  struct {
    nlmsghdr header{};
    inet_diag_req_v2 query{};
  } request;
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.query.sdiag_family = peer.address.is_v4() ? AF_INET : AF_INET6;
  request.query.sdiag_protocol = IPPROTO_TCP;
  request.query.idiag_states = ~0u;
  request.query.id.idiag_sport = peer.port_be;
  request.query.id.idiag_dport = local.port_be;
  copy_address(peer.address, request.query.id.idiag_src);
  copy_address(local.address, request.query.id.idiag_dst);
  request.query.id.idiag_if = peer.scope_index;
  request.query.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  request.query.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  alignas(nlmsghdr) char reply[8192];
  while (::recv(sock_diag, reply, sizeof reply, MSG_DONTWAIT) > 0) {
  }  // what an earlier query may have left
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(sock_diag, &request, sizeof request, 0, reinterpret_cast<const sockaddr*>(&kernel), sizeof kernel) < 0) {
    return std::nullopt;
  }
  // The kernel answers before sendto() returns.
  const ssize_t received = ::recv(sock_diag, reply, sizeof reply, MSG_DONTWAIT);
  nlmsghdr header;
  inet_diag_msg found;
  if (received < static_cast<ssize_t>(sizeof header + sizeof found)) return std::nullopt;
  std::memcpy(&header, reply, sizeof header);
  std::memcpy(&found, reply + sizeof header, sizeof found);
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return std::nullopt;
  const bool is_the_connection = found.id.idiag_sport == peer.port_be && found.id.idiag_dport == local.port_be;
  if (!is_the_connection || found.idiag_inode == 0) return std::nullopt;
  return found.idiag_uid;
}

}  // namespace

bool CidrBlock::contains(const Address& address) const {
  if (first.is_v4() && prefix_bits >= 96 ? !address.is_v4() : address.is_v4()) return false;
  const auto whole = static_cast<std::size_t>(prefix_bits / 8);
  if (!std::equal(first.bytes.begin(), first.bytes.begin() + prefix_bits / 8, address.bytes.begin())) return false;
  if (prefix_bits % 8 == 0) return true;
  return (first.bytes[whole] ^ address.bytes[whole]) >> (8 - prefix_bits % 8) == 0;
}

AllowList AllowList::parse(const std::vector<std::string>& blocks) {
  AllowList list;
  for (const auto& block : blocks) {
    if (block == "any") {
      list.is_any = true;
    } else {
      list.blocks.insert(parse_block(block));
    }
  }
  return list;
}

std::optional<std::string> refusal(const Caller& caller, uid_t our_uid, const AllowList& allow) {
  if (allow.is_any) return std::nullopt;
  const std::string address = caller.address.text();
  if (caller.is_this_host) {
    if (caller.owner == our_uid) return std::nullopt;
    const std::string whose =
        caller.owner ? "of uid " + std::to_string(*caller.owner) : "whose process has closed it already";
    return "a connection " + whose + " from this host (" + address + "): the store is for uid " +
           std::to_string(our_uid) + "; " + allow.option + "=any admits everybody";
  }
  const auto admits = [&caller](const CidrBlock& block) { return block.contains(caller.address); };
  if (std::any_of(allow.blocks.begin(), allow.blocks.end(), admits)) return std::nullopt;
  return "a connection from " + address + ", which is neither this host nor an allowed address; " + allow.option + "=" +
         address + (caller.address.is_v4() ? "/32" : "/128") + " admits it, " + allow.option + "=any everybody";
}

Door::Door(AllowList allow)
    : allow_(std::move(allow)), sock_diag_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {}

void Door::allow(const AllowList& more) {
  allow_.is_any = allow_.is_any || more.is_any;
  allow_.blocks.insert(more.blocks.begin(), more.blocks.end());
}

std::optional<std::string> Door::refusal(const sockaddr_storage& peer, const sockaddr_storage& local) const {
  if (allow_.is_any) return std::nullopt;
  const End peer_end = end_of(peer);
  const End local_end = end_of(local);
  Caller caller{.address = peer_end.address};
  caller.is_this_host =
      caller.address.is_loopback() || caller.address == local_end.address || is_on_interface(caller.address);
  if (caller.is_this_host) caller.owner = socket_owner(sock_diag_.get(), peer_end, local_end);
  return store::refusal(caller, ::geteuid(), allow_);
}

}  // namespace ddp::store
