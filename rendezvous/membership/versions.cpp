#include "rendezvous/membership/versions.hpp"

#include <algorithm>

#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {

std::variant<int, Refused> choose_version(const Hello& hello, const VersionRange& endpoint,
                                          const std::string& endpoint_program) {
  const auto& node = hello.versions;
  const bool is_range = node.low <= node.high;
  if (is_range && node.low <= endpoint.high && endpoint.low <= node.high) return std::min(node.high, endpoint.high);
  auto refused = is_range ? version_too_old_refusal(hello, endpoint, endpoint_program)
                          : not_a_range_refusal(hello, endpoint, endpoint_program);
  // The operator may bring the other version back: a node that has workers tries again for a limited time.
  refused.is_round_unknown = hello.held.has_value();
  return refused;
}

std::optional<Refused> refuse_version(const Welcome& welcome, const VersionRange& node) {
  if (welcome.version >= node.low && welcome.version <= node.high) return {};
  return chosen_version_refusal(welcome, node);
}

}  // namespace ddp::rendezvous
