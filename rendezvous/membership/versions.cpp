#include "rendezvous/membership/versions.hpp"

#include <algorithm>

namespace ddp::rendezvous {
namespace {

constexpr const char* kProtocol = " of the control channel's protocol";

std::string text_of(const VersionRange& range) {
  if (range.low == range.high) return "version " + std::to_string(range.low);
  return "versions " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

}  // namespace

std::variant<int, Refused> choose_version(const Hello& hello, const VersionRange& endpoint,
                                          const std::string& endpoint_program) {
  const auto& node = hello.versions;
  const bool is_range = node.low <= node.high;
  if (is_range && node.low <= endpoint.high && endpoint.low <= node.high) return std::min(node.high, endpoint.high);
  const auto node_program = "ddprun on host " + hello.host_name;
  const auto both = node_program + " speaks " + text_of(node) + kProtocol + ", " + endpoint_program +
                    " at the endpoint speaks " + text_of(endpoint);
  // The operator may bring the other version back: a node that has workers tries again for a limited time.
  const bool may_come_again = hello.held.has_value();
  if (!is_range)
    return Refused{both + ": the first of these is no range", "install ddprun again on host " + hello.host_name, false,
                   may_come_again};
  const bool is_node_older = node.high < endpoint.low;
  return Refused{
      both + ": " + (is_node_older ? "the node's ddprun" : "the endpoint's " + endpoint_program) + " is too old",
      "upgrade " + (is_node_older ? node_program : endpoint_program + " at the endpoint"), false, may_come_again};
}

std::optional<Refused> refuse_version(const Welcome& welcome, const VersionRange& node) {
  if (welcome.version >= node.low && welcome.version <= node.high) return {};
  const bool is_node_older = node.high < welcome.versions.low;
  return Refused{
      "the endpoint speaks " + text_of(welcome.versions) + kProtocol + " and chose version " +
          std::to_string(welcome.version) + ", this node's ddprun speaks " + text_of(node),
      is_node_older ? "upgrade ddprun on this host" : "upgrade what serves the endpoint, ddprun or ddp-rendezvous"};
}

}  // namespace ddp::rendezvous
