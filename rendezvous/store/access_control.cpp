#include "rendezvous/store/access_control.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "ddp/error.hpp"

namespace ddp::store {

using base::Address;

namespace {

CidrBlock parse_block(const std::string& text) {
  const auto fail = [&text](const std::string& why) {
    return InvalidArgument("\"" + text + "\" is no block of addresses: " + why +
                           "; give for example 10.0.0.0/8, fd00::/8, 192.168.1.7 or any");
  };
  const auto slash = text.find('/');
  const std::string base = text.substr(0, slash);
  CidrBlock block;
  int bits_max = 128;
  if (const auto address = base::parse_address(base)) {
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
  const auto own = base::interface_addresses();
  return std::any_of(own.begin(), own.end(), [&](const auto& each) { return each.address == address; });
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

AccessControl::AccessControl(AllowList allow) : allow_(std::move(allow)) {}

void AccessControl::allow(const AllowList& more) {
  allow_.is_any = allow_.is_any || more.is_any;
  allow_.blocks.insert(more.blocks.begin(), more.blocks.end());
}

std::optional<std::string> AccessControl::refusal(const sockaddr_storage& peer, const sockaddr_storage& local) const {
  if (allow_.is_any) return std::nullopt;
  const auto peer_end = base::socket_end_of(peer), local_end = base::socket_end_of(local);
  Caller caller{.address = peer_end.address};
  caller.is_this_host =
      caller.address.is_loopback() || caller.address == local_end.address || is_on_interface(caller.address);
  if (!caller.is_this_host && members_.count(caller.address) != 0) return std::nullopt;
  if (caller.is_this_host) caller.owner = owners_.owner_of(peer_end, local_end);
  return store::refusal(caller, ::geteuid(), allow_);
}

}  // namespace ddp::store
