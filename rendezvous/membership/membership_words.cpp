#include "rendezvous/membership/membership_words.hpp"

#include <algorithm>
#include <csignal>
#include <cstddef>

#include "rendezvous/membership/limits.hpp"

namespace ddp::rendezvous {
namespace {

constexpr std::size_t kRanksShown = 8;
constexpr const char* kProtocol = " of the control channel's protocol";

std::string node_counts_text(const JobSettings& settings) {
  return "--nnodes=" + std::to_string(settings.nodes_min) +
         (settings.nodes_min == settings.nodes_max ? "" : ":" + std::to_string(settings.nodes_max));
}

std::string seconds_text(std::chrono::milliseconds time) {
  const auto ms = time.count() % 1000;
  auto fraction = ms == 0 ? "" : "." + std::to_string(1000 + ms).substr(1);
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  return std::to_string(time.count() / 1000) + fraction;
}

// As a user gives it.
std::string setting_text(JobSetting setting, const JobSettings& all) {
  switch (setting) {
    case JobSetting::nodes: return node_counts_text(all);
    case JobSetting::restarts_max: return "--max-restarts=" + std::to_string(all.restarts_max);
    case JobSetting::restart_window:
      return all.restart_window.count() == 0 ? "no --restart-window"
                                             : "--restart-window=" + seconds_text(all.restart_window);
    case JobSetting::join_timeout: return "join_timeout=" + seconds_text(all.join_timeout);
    case JobSetting::last_call_timeout: return "last_call_timeout=" + seconds_text(all.last_call_timeout);
    case JobSetting::heartbeat_timeout: return "heartbeat_timeout=" + seconds_text(all.heartbeat_timeout.value());
  }
  return {};
}

std::string option_text(JobSetting setting) {
  switch (setting) {
    case JobSetting::nodes: return "--nnodes";
    case JobSetting::restarts_max: return "--max-restarts";
    case JobSetting::restart_window: return "--restart-window";
    case JobSetting::join_timeout: return "join_timeout of --rdzv-conf";
    case JobSetting::last_call_timeout: return "last_call_timeout of --rdzv-conf";
    case JobSetting::heartbeat_timeout: return "heartbeat_timeout of --rdzv-conf";
  }
  return {};
}

std::string text_of(const VersionRange& range) {
  if (range.low == range.high) return "version " + std::to_string(range.low);
  return "versions " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

std::string node_program(const Hello& hello) { return "ddprun on host " + hello.host_name; }

std::string both_versions_text(const Hello& hello, const VersionRange& endpoint, const std::string& endpoint_program) {
  return node_program(hello) + " speaks " + text_of(hello.versions) + kProtocol + ", " + endpoint_program +
         " at the endpoint speaks " + text_of(endpoint);
}

}  // namespace

// --- nodes that come and go

std::string node_refused_text(const std::string& host, const std::string& address, const Refused& refused) {
  return place_text(host, address) + " was refused: " + refused.what;
}

std::string node_left_text(const std::string& host, const std::string& why) {
  return "host " + host + " has left: " + why;
}

std::string node_lost_text(int group_rank, const std::string& host, const std::string& why) {
  return "node " + std::to_string(group_rank) + " (host " + host + ") was lost: " + why;
}

std::string left_out_text(const std::string& host) {
  return "host " + host + " ended " + std::to_string(CoolDown::kBlames) +
         " rounds within 10 min and is left out for 5 min";
}

std::string left_out_for_link_text(const std::string& host) {
  return "host " + host + " is left out until its links work, for 5 min at most";
}
std::string links_work_text(const std::string& host) {
  return "host " + host + " reaches the others again: it takes part again";
}

std::string waiting_for_enough_text(int missing, std::chrono::milliseconds limit, const std::string& names) {
  return "waiting for " + counted(missing, "more node") + ", for up to " + describe_duration(limit) +
         "; here: " + names;
}

std::string last_call_text(int wanted, std::chrono::milliseconds limit, const std::string& names) {
  return "waiting " + describe_duration(limit) + " for up to " + counted(wanted, "more node") + "; here: " + names;
}

std::string newcomers_text(int count, const std::string& names) {
  return counted(count, "more node") + (count == 1 ? " has come: " : " have come: ") + names;
}

std::string next_round_begins_text(const std::string& newcomers, std::chrono::milliseconds left) {
  return newcomers + "; the next round begins in " + describe_duration(left);
}

std::string pause_text(const std::string& reason, RestartNumber restart, std::chrono::milliseconds length,
                       int failures) {
  return reason + ": restart " + std::to_string(restart.count) + " of " + std::to_string(restart.max) + " begins in " +
         describe_duration(length) + ", because " +
         (failures == 1 ? "the last round" : "the last " + std::to_string(failures) + " rounds") +
         " ended within 10 s of the start, before a first step";
}

// --- a round that another membership began

std::string adopted_text(std::int64_t round, int nodes, const std::optional<Loss>& loss) {
  return "the job is in round " + std::to_string(round) + " of " + counted(nodes, "node") + ", which go on" +
         (loss ? "; " + loss->what : "");
}

std::string claim_ignored_text(const std::string& place, std::uint32_t round, int untold) {
  return place + " says that it has round " + std::to_string(round) +
         " of the job, of which the nodes here know nothing: that does not count" +
         (untold == 0 ? "" : "; " + counted(untold, "claim") + " before it did not either");
}

std::string place_text(const std::string& host, const std::string& address) {
  return "host " + host + " (" + address + ")";
}

std::string newer_round_text(std::uint32_t round, const std::string& host) {
  return "a newer round of the job, " + std::to_string(round) + ", has begun elsewhere, and host " + host +
         " had a part in it";
}

std::string lone_round_text(std::uint32_t round) {
  return "this node has round " + std::to_string(round) + " of the job, and nobody else here does";
}

std::string has_other_round_text(std::uint32_t round) { return "it has round " + std::to_string(round) + " of others"; }

std::string lost_meanwhile_text(int group_rank) { return "node " + std::to_string(group_rank) + " was lost meanwhile"; }

std::string lost_endpoint_text(int group_rank, const std::optional<std::string>& why) {
  return "node " + std::to_string(group_rank) + ", which had the endpoint, was lost" + (why ? ": " + *why : "");
}

std::string ddprun_ended_text(int signal_number) {
  if (signal_number == 0) return "its ddprun ended";
  return "its ddprun " + describe(Ending{Ending::Kind::killed, signal_number});
}

std::string endpoint_has_left_text(int group_rank) {
  return "node " + std::to_string(group_rank) + ", which had the endpoint, has left the job";
}

std::string nodes_text(const RankSet& group_ranks) {
  std::string out = group_ranks.size() == 1 ? "node " : "nodes ";
  const auto shown = group_ranks.lowest(kRanksShown);
  for (const int rank : shown) out += (rank == shown.front() ? "" : ", ") + std::to_string(rank);
  if (group_ranks.size() > kRanksShown) out += " and " + std::to_string(group_ranks.size() - kRanksShown) + " more";
  return out;
}

std::string did_not_come_text(const std::optional<Loss>& loss, const std::string& nodes,
                              std::chrono::milliseconds limit) {
  return (loss ? loss->what + "; " : "") + nodes + " did not come within " + describe_duration(limit) +
         " after the endpoint was lost";
}

// --- too few nodes are here to go on

std::string too_few_text(int silent, std::int64_t round, int here) {
  return counted(silent, "node") + " of round " + std::to_string(round) + " fell silent, and may go on without the " +
         counted(here, "node") + " here, too few to go on themselves";
}

std::string waiting_for_all_text(std::chrono::milliseconds limit) {
  return "all nodes of the last round fell silent, and their workers may still run with what they have kept; "
         "waiting for one of them for up to " +
         describe_duration(limit);
}

std::string waiting_for_others_text(const std::string& why_too_few, std::chrono::milliseconds limit) {
  return why_too_few + "; waiting for them for up to " + describe_duration(limit);
}

// --- what ends a round, or a node's part in it

std::string store_not_opened_text(std::chrono::milliseconds limit) {
  return "it did not open the store within " + describe_duration(limit);
}

std::string cannot_start_text(const std::string& host) {
  return "host " + host + " can't start the program and is left out";
}

std::string out_of_touch_text(const std::string& host, const std::optional<std::string>& why) {
  return "host " + host + " has stopped its workers" + (why ? ": " + *why : ", as it was out of touch with the job");
}

std::string link_text(const std::string& host, const std::string& other) { return "hosts " + host + " and " + other; }

std::string broken_links_text(const std::vector<std::string>& links) {
  constexpr std::size_t kLinksShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(links.size(), kLinksShown); ++i) text += (i == 0 ? "" : ", ") + links[i];
  if (links.size() > kLinksShown) text += " and " + counted(static_cast<int>(links.size() - kLinksShown), "more pair");
  return text + " can't reach each other, and no rank there hangs";
}

std::string failure_reason_text(const FailureReport& failure, bool is_certain) {
  return describe_failure(failure) + certainty_text(is_certain) +
         (failure.says_why() ? " (" + failure.message + ")" : "");
}

// --- stops

StopRound went_on_without(std::uint32_t round, bool may_reseat) {
  return {round, SIGTERM, false, may_reseat, kWentOnWithoutThisNode, {}, true};
}

std::string spare_leaves_text(const std::string& why) { return why + ", which was a spare: it leaves"; }

std::string second_stop_text(const std::string& why) { return "a second " + why; }

std::string stopped_by_text(const std::string& why, bool is_before_first_round) {
  return "stopped by " + why + (is_before_first_round ? " before the first round" : "");
}

std::string leaves_text(const std::string& why) { return why + ", which leaves the job"; }

std::string warned_text(int signal_number, const std::string& host, bool leaves) {
  return signal_name(signal_number) + " to ddprun on host " + host + ": " +
         (leaves ? "this node leaves the job" : "the job is to stop") + " at its next step";
}

// --- refusals

Refused store_not_opened_refusal(std::chrono::milliseconds limit) {
  return {"this node did not open the store of the job within " + describe_duration(limit),
          "`top` and `dmesg` there: a machine that is this slow can't serve the others"};
}

Refused never_stopped_refusal() {
  return {"this node did not end its workers within twice the grace, of which an hour counts, and a minute",
          "look for processes of the job there that can't be killed: `ps -eo pid,stat,wchan:30,args`"};
}

Refused cannot_start_refusal(const std::string& why) {
  return {"the program can't be started on this host: " + why, "install it as on the other nodes of the job"};
}

Refused survivors_refusal(std::uint32_t round) {
  return {"processes of round " + std::to_string(round) + " could not be killed on this host",
          "the output of ddprun there says where they are"};
}

Refused other_step_refusal(const std::string& run_id, const std::string& endpoint_step, const std::string& node_step) {
  return {"the job '" + run_id + "' at the endpoint is of Slurm's step " + endpoint_step + ", not " + node_step,
          "another --rdzv-id, the same on all nodes, or `--rdzv-endpoint=HOST:PORT` for this job"};
}

Refused other_job_refusal(const std::string& run_id) {
  return {"the endpoint serves another job than '" + run_id + "'",
          "the --rdzv-id with which the endpoint's ddprun was started, or another port for this job"};
}

Refused other_setting_refusal(JobSetting differs, const JobSettings& of_node, const JobSettings& of_endpoint) {
  return {"this node was started with " + setting_text(differs, of_node) + ", the endpoint with " +
              setting_text(differs, of_endpoint),
          "give all nodes the same " + option_text(differs)};
}

Refused rank_too_high_refusal(int node_rank, int nodes_max) {
  return {"--node-rank=" + std::to_string(node_rank) + " is beyond " + counted(nodes_max, "node"),
          "node ranks go from 0 to " + std::to_string(nodes_max - 1)};
}

Refused rank_taken_refusal(int node_rank, const std::string& host) {
  return {"node rank " + std::to_string(node_rank) + " is taken by host " + host,
          "give each node a --node-rank of its own"};
}

Refused impossible_round_refusal(const Held& held) {
  return {"this node says that it has round " + std::to_string(held.round.number) + " of " +
              counted(held.group_world_size, "node") + ", which can't be",
          "start ddprun again on this host"};
}

Refused unknown_round_refusal(const std::string& host, const Held& held) {
  const auto what = "the nodes at the endpoint know nothing of round " + std::to_string(held.round.number) +
                    " of the job, which this node has";
  if (!held.nonces.empty()) return {what, "start ddprun again on this host, so that it joins without that round"};
  return {what + " and cannot prove, as ddprun on host " + host + " is too old, or the endpoint was",
          "upgrade ddprun on host " + host + " and start it again"};
}

Refused not_a_range_refusal(const Hello& hello, const VersionRange& endpoint, const std::string& endpoint_program) {
  return {both_versions_text(hello, endpoint, endpoint_program) + ": the first of these is no range",
          "install ddprun again on host " + hello.host_name};
}

Refused version_too_old_refusal(const Hello& hello, const VersionRange& endpoint, const std::string& endpoint_program) {
  const auto both = both_versions_text(hello, endpoint, endpoint_program);
  if (hello.versions.high < endpoint.low)
    return {both + ": the node's ddprun is too old", "upgrade " + node_program(hello)};
  return {both + ": the endpoint's " + endpoint_program + " is too old",
          "upgrade " + endpoint_program + " at the endpoint"};
}

Refused chosen_version_refusal(const Welcome& welcome, const VersionRange& node) {
  return {"the endpoint speaks " + text_of(welcome.versions) + kProtocol + " and chose version " +
              std::to_string(welcome.version) + ", this node's ddprun speaks " + text_of(node),
          node.high < welcome.versions.low ? "upgrade ddprun on this host"
                                           : "upgrade what serves the endpoint, ddprun or ddp-rendezvous"};
}

// --- how the job ended

std::string survivors_text(const std::optional<MemberChange>& change) {
  return "processes of the job could not be killed, so no other round may begin" + (change ? "; " + change->who : "");
}

std::string unexplained_stop_text(const std::optional<std::string>& why) {
  return "the workers were stopped (" + why.value_or("") + "), and no node has named one that failed";
}

std::string stopped_at_step_text(int workers) {
  return "stopped on purpose: " + counted(workers, "worker") + " stopped at one step and ended well";
}

std::string no_progress_text(const std::optional<std::string>& before, int rounds) {
  return (before ? *before + "; " : "") + counted(rounds, "round") +
         " in a row failed without a commit or a checkpoint in between, so no other one begins";
}

std::string too_few_came_text(const MembershipOptions& options, int count, const std::string& names,
                              const std::optional<std::string>& reason) {
  const auto text = "only " + std::to_string(count) + " of " + counted(options.nodes_min, "node") + " came within " +
                    describe_duration(options.join_timeout) + ": " + names;
  return reason ? *reason + "; after that " + text : text;
}

std::string none_came_back_text(const std::string& why_too_few, std::chrono::milliseconds limit) {
  return why_too_few + "; none of them came back within " + describe_duration(limit);
}

}  // namespace ddp::rendezvous
