// The settings of a job, as its membership has them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/limits.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::rendezvous {

// What a daemon knows of a job of the same name that was given up or ended before.
struct JobBefore {
  RoundId last_round;
  int restart_count = 0;                                       // of a job that may go on
  std::optional<std::vector<SpentRestarts>> spent_restarts{};  // of them, as in Held
};

// The node that had the endpoint before this membership began.
struct LostHost {
  std::optional<int> group_rank{};   // in the last round; nobody waits for that node
  std::string node_key{};            // by which its guardian proves that it has ended; empty: not known
  bool is_end_proven = false;        // its guardian has said so, or the host itself
  bool has_left = false;             // the job, in order: it was told to
  RoundId round{};                   // its last one
  std::vector<int> others_gone{};    // group ranks in that round of other nodes whose end is proven
  std::optional<std::string> why{};  // it has ended, as it or its guardian said
  std::optional<int> exit_code{};    // as Leaving has it
};

struct MembershipOptions {
  std::string run_id;
  std::string slurm_run;                        // only nodes of this one, and those that name none
  int nodes_min = 1, nodes_max = 1;             // a round never starts with fewer; with nodes_max it starts at once
  int restarts_max = 0;                         // of the whole job
  std::chrono::milliseconds restart_window{0};  // only those of this time before a failure count; 0: all do
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};  // wait for more nodes between the minimum and the maximum
  // After nodes fell silent only the greater part of a round's nodes goes on. Where membership is not on a node of the
  // job and never stops, whoever reaches it may.
  bool greater_part_only = true;
  // Membership is where the nodes of the job look for it first, not with a node that took over from its host. Where too
  // few nodes are here to go on it waits for others instead of stepping down.
  bool holds_endpoint = false;
  bool has_token = false;  // whoever says hello has proven to know the job's
  // The endpoint as the user named it, numeric, where that is an address of this host: whoever had the endpoint there
  // before has ended. Empty: it is a name, or the address is not this host's own.
  std::string endpoint_address;
  RoundId term;                                     // its number is not used; a round that is heard of makes it greater
  std::uint64_t term_max = std::uint64_t{1} << 62;  // of a round that a node may have
  std::chrono::milliseconds heartbeat_timeout{3'000};                  // silence for as long is a node's loss
  std::optional<std::chrono::milliseconds> nodes_heartbeat_timeout{};  // which the nodes were started with
  JobBefore before;                    // whoever has an older round than its last one was left behind
  std::function<std::string()> nonce;  // of each round another one, that nobody can guess: 32 hexadecimal digits
  LostHost lost;                       // whose end or silence made this membership begin

  // In which a node may come again whose connection broke: it is silent meanwhile.
  std::chrono::milliseconds resume_window() const {
    return std::min<std::chrono::milliseconds>(std::chrono::seconds(1), heartbeat_timeout);
  }
};

// What all nodes of a job are to be started with.
struct JobSettings {
  int nodes_min = 1, nodes_max = 1, restarts_max = 0;
  std::chrono::milliseconds restart_window{0}, join_timeout{0}, last_call_timeout{0};
  std::optional<std::chrono::milliseconds> heartbeat_timeout{};  // empty: an older program does not say it
};
enum class JobSetting { nodes, restarts_max, restart_window, join_timeout, last_call_timeout, heartbeat_timeout };
JobSettings settings_of(const Hello& hello);
JobSettings settings_of(const MembershipOptions& options);
// What one side does not say is not compared.
std::optional<JobSetting> first_difference(const JobSettings& a, const JobSettings& b);

// The settings that a node brings: of a job that begins with it, or whose round it has.
void take_settings(MembershipOptions& options, const Hello& hello);

// Those of a job that begins with this node. Its term is made newer than that round.
MembershipOptions options_of(const Hello& hello, RoundId term, const JobBefore& before = {});

// The same, in a daemon: it never stops, so it goes on with whoever reaches it.
MembershipOptions daemon_options(const Hello& hello, RoundId term, std::chrono::milliseconds heartbeat_timeout,
                                 const JobBefore& before);

// The same, in the process of that node.
struct AgentHosting {
  std::chrono::milliseconds heartbeat_timeout{3'000};
  bool has_token = false;
  bool is_next = false;          // after another host, away from the endpoint
  std::string endpoint_address;  // see MembershipOptions
  LostHost lost{};
};
MembershipOptions agent_options(const Hello& hello, RoundId term, AgentHosting hosting);

}  // namespace ddp::rendezvous
