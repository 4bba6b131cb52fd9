#include "base/socket_owner.hpp"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>

#include <cstring>

namespace ddp::base {
namespace {

template <class Socket>
Socket as(const sockaddr_storage& storage) {
  Socket address;
  std::memcpy(&address, &storage, sizeof address);
  return address;
}

void copy_address(const Address& address, std::uint32_t (&words)[4]) {
  const std::size_t offset = address.is_v4() ? Address::kV4Offset : 0;
  std::memcpy(words, &address.bytes[offset], address.bytes.size() - offset);
}

}  // namespace

SocketEnd socket_end_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return {address_of(address), as<sockaddr_in>(address).sin_port, 0};
  const auto v6 = as<sockaddr_in6>(address);
  return {address_of(address), v6.sin6_port, v6.sin6_scope_id};
}

SocketOwners::SocketOwners() : sock_diag_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {}

std::optional<uid_t> SocketOwners::owner_of(const SocketEnd& peer, const SocketEnd& local) const {
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
  while (::recv(sock_diag_.get(), reply, sizeof reply, MSG_DONTWAIT) > 0) {
  }  // what an earlier query may have left
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(sock_diag_.get(), &request, sizeof request, 0, reinterpret_cast<const sockaddr*>(&kernel),
               sizeof kernel) < 0) {
    return std::nullopt;
  }
  // The kernel answers before sendto() returns.
  const ssize_t received = ::recv(sock_diag_.get(), reply, sizeof reply, MSG_DONTWAIT);
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

}  // namespace ddp::base
