#include "rendezvous/membership/admission.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace ddp::rendezvous {
namespace {

constexpr std::uint32_t kRoundNumberMax = 0xf0000000;

std::string nodes_text(int low, int high) {
  return "--nnodes=" + std::to_string(low) + (low == high ? "" : ":" + std::to_string(high));
}

std::string seconds_text(std::chrono::milliseconds time) {
  const auto ms = time.count() % 1000;
  auto fraction = ms == 0 ? "" : "." + std::to_string(1000 + ms).substr(1);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return std::to_string(time.count() / 1000) + fraction;
}

// A setting of the job that a node was started with, as it is given, and without its value.
struct Setting {
  std::string text;
  const char* option;
  // An older program does not say every setting.
  bool operator==(const Setting& other) const { return text == other.text || text.empty() || other.text.empty(); }
};

std::optional<std::chrono::milliseconds> heartbeat_timeout_of(const Hello& its) { return its.heartbeat_timeout; }
std::optional<std::chrono::milliseconds> heartbeat_timeout_of(const MembershipOptions& its) {
  return its.nodes_heartbeat_timeout;
}

// Those of a hello, or of a membership.
template <class Settings>
std::array<Setting, 6> settings_of(const Settings& its) {
  const auto window =
      its.restart_window.count() == 0 ? "no --restart-window" : "--restart-window=" + seconds_text(its.restart_window);
  const auto heartbeat = heartbeat_timeout_of(its);
  return {{{nodes_text(its.nodes_min, its.nodes_max), "--nnodes"},
           {"--max-restarts=" + std::to_string(its.restarts_max), "--max-restarts"},
           {window, "--restart-window"},
           {"join_timeout=" + seconds_text(its.join_timeout), "join_timeout of --rdzv-conf"},
           {"last_call_timeout=" + seconds_text(its.last_call_timeout), "last_call_timeout of --rdzv-conf"},
           {heartbeat ? "heartbeat_timeout=" + seconds_text(*heartbeat) : "", "heartbeat_timeout of --rdzv-conf"}}};
}

}  // namespace

std::optional<Refused> Admission::other_job(const Hello& hello) const {
  const bool is_of_other_step =
      !hello.slurm_run.empty() && !options.slurm_run.empty() && hello.slurm_run != options.slurm_run;
  if (hello.run_id == options.run_id && is_of_other_step)
    return Refused{"the job '" + options.run_id + "' at the endpoint is of Slurm's step " + options.slurm_run +
                       ", not " + hello.slurm_run,
                   "another --rdzv-id, the same on all nodes, or `--rdzv-endpoint=HOST:PORT` for this job", true};
  if (hello.run_id == options.run_id) return {};
  // The id is not told: without a token it is all that a stranger needs to join.
  return Refused{"the endpoint serves another job than '" + hello.run_id + "'",
                 "the --rdzv-id with which the endpoint's ddprun was started, or another port for this job", true};
}

std::optional<Refused> Admission::objection(const Hello& hello) const {
  if (auto other = other_job(hello)) return other;
  const bool may_settings_follow = claims_round(hello) && follows_claims();
  const auto its = settings_of(hello), ours = settings_of(options);
  const auto [other, own] = std::mismatch(its.begin(), its.end(), ours.begin());
  if (!may_settings_follow && other != its.end())
    return Refused{"this node was started with " + other->text + ", the endpoint with " + own->text,
                   std::string("give all nodes the same ") + own->option, false, hello.held.has_value()};
  if (hello.node_rank) {
    if (*hello.node_rank >= (may_settings_follow ? hello.nodes_max : options.nodes_max))
      return Refused{
          "--node-rank=" + std::to_string(*hello.node_rank) + " is beyond " + counted(options.nodes_max, "node"),
          "node ranks go from 0 to " + std::to_string(options.nodes_max - 1)};
    // Once a round has begun the newcomer is more likely the replacement of a node whose end is not known yet: it
    // waits.
    const bool may_be_taken = !has_begun && !claims_round(hello) && nodes.may_be_wished(*hello.node_rank);
    for (auto entry = nodes.begin(); may_be_taken && entry != nodes.end(); ++entry)
      if (const auto& [id, node] = *entry; node.hello.node_rank == hello.node_rank && !nodes.is_absent(id))
        return Refused{"node rank " + std::to_string(*hello.node_rank) + " is taken by host " + node.hello.host_name,
                       "give each node a --node-rank of its own"};
  }
  if (claims_round(hello) && !is_possible(hello))
    return Refused{"this node says that it has round " + std::to_string(hello.held->round.number) + " of " +
                       counted(hello.held->group_world_size, "node") + ", which can't be",
                   "start ddprun again on this host", false, true};
  return {};
}

bool Admission::is_possible(const Hello& hello) const {
  const auto& held = *hello.held;
  return held.group_world_size <= (follows_claims() ? hello.nodes_max : options.nodes_max) &&
         held.group_world_size >= (follows_claims() ? hello.nodes_min : options.nodes_min) &&
         held.round.term <= options.term_max && held.round.number <= kRoundNumberMax;
}

int Admission::nodes_max_for(const Hello& hello) const {
  return claims_round(hello) && follows_claims() ? std::max(hello.nodes_max, options.nodes_max) : options.nodes_max;
}

Refused refusal_of_round(const std::string& host_name, const Held& held) {
  Refused refused{"the nodes at the endpoint know nothing of round " + std::to_string(held.round.number) +
                      " of the job, which this node has",
                  "start ddprun again on this host, so that it joins without that round", false, true};
  if (held.nonces.empty()) {
    refused.what += " and cannot prove, as ddprun on host " + host_name + " is too old, or the endpoint was";
    refused.try_this = "upgrade ddprun on host " + host_name + " and start it again";
  }
  return refused;
}

}  // namespace ddp::rendezvous
