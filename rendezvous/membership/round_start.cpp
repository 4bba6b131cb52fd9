#include "rendezvous/membership/round_start.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/address.hpp"
#include "base/loopback.hpp"
#include "rendezvous/membership/group_ranks.hpp"
#include "rendezvous/membership/round_end.hpp"

namespace ddp::rendezvous {
namespace {

// Where the endpoint is on a node of the job: those that could serve it in its place. An address on loopback is of use
// to them only where all are on one host.
std::vector<Successor> successors(const Nodes& nodes, const std::vector<NodeId>& members) {
  const auto is_embedded = [](const auto& entry) { return entry.second.is_endpoint_host; };
  if (std::none_of(nodes.begin(), nodes.end(), is_embedded)) return {};
  const bool is_one_host = std::all_of(members.begin(), members.end(), [&](NodeId id) {
    return nodes.at(id).is_endpoint_host || base::is_loopback_host(nodes.at(id).seen_address);
  });
  std::vector<Successor> out;
  for (const auto id : members) {
    const auto& node = nodes.at(id);
    if (out.size() == kSuccessorsMax) break;
    if (node.is_endpoint_host || node.hello.standby_port == 0 || !base::parse_address(node.seen_address)) continue;
    if (is_one_host || !base::is_loopback_host(node.seen_address))
      out.push_back({*node.group_rank, node.seen_address, node.hello.standby_port});
  }
  return out;
}

// Under which workers reach the store of this node; empty: the endpoint's host.
std::string master_address(const Node& first) {
  if (!first.hello.local_address.empty()) return first.hello.local_address;
  // A node that is seen on loopback is on the endpoint's host.
  if (first.is_endpoint_host || base::is_loopback_host(first.seen_address)) return {};
  return first.seen_address;
}

}  // namespace

std::vector<NodeId> candidates(const Nodes& nodes, const CoolDown& cool_down, int nodes_min, TimePoint now) {
  std::vector<NodeId> all, fit;
  const bool is_anyone_out = cool_down.is_anyone_out(now);
  for (const auto& [id, node] : nodes) {
    if (!nodes.is_available(id, node)) continue;
    all.push_back(id);
    if (is_anyone_out && !cool_down.is_out(place_of(node.hello.host_name, node.seen_address), now)) fit.push_back(id);
  }
  if (!is_anyone_out || fit.size() < static_cast<std::size_t>(nodes_min)) return all;
  const auto holders = nodes.holders_of_newest_work();
  if (std::any_of(fit.begin(), fit.end(), [&](NodeId id) { return holders.count(id) != 0; })) return fit;
  fit.insert(fit.end(), holders.begin(), holders.end());
  std::sort(fit.begin(), fit.end());
  return fit;
}

std::vector<NodeId> members_of_next_round(const Nodes& nodes, const std::vector<NodeId>& candidates, int nodes_max) {
  const auto holders = nodes.holders_of_newest_work();
  std::vector<RankCandidate> those;
  for (const auto id : candidates) {
    const auto& node = nodes.at(id);
    those.push_back({node.group_rank, node.hello.node_rank, node.is_endpoint_host, node.hello.host_name,
                     node.has_older_work, holders.count(id) != 0});
  }
  std::vector<NodeId> out;
  for (const auto index : give_group_ranks(those, static_cast<std::size_t>(nodes_max)))
    out.push_back(candidates[index]);
  return out;
}

std::vector<OpenStore> store_requests(const RoundId& round, const Nodes& nodes, const std::vector<NodeId>& members) {
  std::vector<OpenStore> out;
  OpenStore open{round, {}, false};
  const auto each_max = kRoundAddressesMax / members.size() - 1;  // besides the one that it is seen at
  for (const auto id : members) {
    if (id == members.front()) continue;
    const auto& node = nodes.at(id);
    auto addresses = node.hello.addresses;
    if (addresses.size() > each_max) addresses.resize(each_max);
    if (!node.seen_address.empty()) addresses.push_back(node.seen_address);
    for (auto& address : addresses) {
      open.allow.push_back(std::move(address));
      if (open.allow.size() == kAddressesMax) out.push_back(std::exchange(open, {round, {}, false}));
    }
  }
  open.is_last = true;
  out.push_back(std::move(open));
  return out;
}

std::uint64_t job_start(const Nodes& nodes, const std::vector<NodeId>& members) {
  for (const auto id : members)
    if (const auto& held = nodes.at(id).hello.held; held && held->job_started != 0) return held->job_started;
  return nodes.at(members.front()).hello.started;
}

void tell_starts(StartRound start, const Nodes& nodes, const std::vector<NodeId>& members,
                 const std::function<void(NodeId, const StartRound&)>& tell) {
  int world_size = 0;
  std::map<std::string, int> role_sizes, role_ranks;
  std::string host_key;
  for (const auto id : members) {
    const auto& node = nodes.at(id);
    world_size += node.hello.workers;
    role_sizes[node.hello.role] += node.hello.workers;
    if (!node.is_endpoint_host) continue;
    start.host_group_rank = node.group_rank;
    host_key = node.hello.node_key;
  }
  start.group_world_size = static_cast<int>(members.size());
  start.world_size = world_size;
  start.successors = successors(nodes, members);
  start.master_address = master_address(nodes.at(members.front()));
  const bool is_why_told = start.is_why_told;
  for (const auto id : members) {
    const auto& hello = nodes.at(id).hello;
    start.is_why_told = is_why_told && nodes.at(id).is_endpoint_host;
    start.role_rank_first = role_ranks[hello.role];
    start.role_world_size = role_sizes[hello.role];
    const bool is_successor = std::any_of(start.successors.begin(), start.successors.end(),
                                          [&](const Successor& its) { return its.group_rank == start.group_rank; });
    start.host_node_key = is_successor ? host_key : "";
    tell(id, start);
    ++start.group_rank;
    start.rank_first += hello.workers;
    role_ranks[hello.role] += hello.workers;
  }
}

std::optional<int> rank_first_of(const Node& member, const Nodes& nodes) {
  if (member.part->told) return member.part->told->rank_first;
  int before = 0, ranks = 0;
  for (const auto& [id, other] : nodes)
    if (other.is_member() && *other.group_rank < *member.group_rank) {
      ++before;
      ranks += other.hello.workers;
    }
  if (before != *member.group_rank) return {};
  return ranks;
}

FailureReport own_failure(const Node& member, const Nodes& nodes, FailureReport failure) {
  failure.host = member.hello.host_name;
  failure.seen_address = member.seen_address;
  failure.local_rank = std::min(failure.local_rank, member.hello.workers - 1);
  const auto first = rank_first_of(member, nodes);
  if (first && (failure.rank < *first || failure.rank >= *first + member.hello.workers))
    failure.rank = *first + failure.local_rank;
  return failure;
}

}  // namespace ddp::rendezvous
