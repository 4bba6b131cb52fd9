// Decides who may connect to the store, which has no authentication of its own.
//
// A connection from this host must belong to our user. A connection from another host must come from an allowed
// address. This protects against mistakes and other users of the host. It is no authentication.
//
// refusal() is pure. AccessControl asks the kernel for its facts: the addresses of this host's interfaces, and the
// owner of the socket at the other end.
//
// Threads: one caller at a time.
// Protocol: docs/store_protocol.md, "Who may connect".
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <compare>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "base/socket_owner.hpp"

namespace ddp::store {

struct CidrBlock {
  base::Address first;
  int prefix_bits = 128;  // counted in the 128 bits of the mapped form: 10.0.0.0/8 has 104

  bool contains(const base::Address& address) const;  // no IPv6 block contains an IPv4 address, not even ::/0
  auto operator<=>(const CidrBlock&) const = default;
};

struct AllowList {
  bool is_any = false;
  std::set<CidrBlock> blocks;
  std::string option = "--store-allow";  // what admits more, for messages

  // Reads blocks such as 10.0.0.0/8, fd00::/8, 192.168.1.7 (that one address), or "any". Throws InvalidArgument with
  // the one that is malformed and why.
  static AllowList parse(const std::vector<std::string>& blocks);
};

struct Caller {
  base::Address address{};
  bool is_this_host = false;     // its address is one of our own
  std::optional<uid_t> owner{};  // of its socket; empty where that is not known
};

// Why the caller is refused, with the option that admits it; empty where it is admitted.
std::optional<std::string> refusal(const Caller& caller, uid_t our_uid, const AllowList& allow);

class AccessControl {
 public:
  explicit AccessControl(AllowList allow);

  // Admits these too, from now on.
  void allow(const AllowList& more);

  // Admits these too, in place of those of the round before.
  void begin_round(std::set<base::Address> members) { members_ = std::move(members); }

  // The same for a connection between these two addresses, each with its port.
  std::optional<std::string> refusal(const sockaddr_storage& peer, const sockaddr_storage& local) const;

 private:
  AllowList allow_;
  std::set<base::Address> members_;
  base::SocketOwners owners_;
};

}  // namespace ddp::store
