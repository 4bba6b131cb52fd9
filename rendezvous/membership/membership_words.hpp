// What membership says to the operator at the endpoint, to the nodes of the job and to those that it refuses.
//
// Pure. Words for one failure are in failure.hpp, those for a stop and for a round's reasons in reasons.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/messages.hpp"
#include "rendezvous/membership/options.hpp"
#include "rendezvous/membership/rank_set.hpp"

namespace ddp::rendezvous {

// --- nodes that come and go

std::string node_refused_text(const std::string& host, const std::string& address, const Refused& refused);
std::string node_left_text(const std::string& host, const std::string& why);
std::string node_lost_text(int group_rank, const std::string& host, const std::string& why);
std::string left_out_text(const std::string& host);  // for a while, after it ended rounds
std::string left_out_for_link_text(const std::string& host);
std::string links_work_text(const std::string& host);
std::string waiting_for_enough_text(int missing, std::chrono::milliseconds limit, const std::string& names);
std::string last_call_text(int wanted, std::chrono::milliseconds limit, const std::string& names);
std::string waiting_for_all_text(std::chrono::milliseconds limit);  // none of the last round is here
std::string newcomers_text(int count, const std::string& names);    // "1 more node has come: gpu3"
std::string next_round_begins_text(const std::string& newcomers, std::chrono::milliseconds left);
struct RestartNumber {
  int count = 0, max = 0;
};
std::string pause_text(const std::string& reason, RestartNumber restart, std::chrono::milliseconds length,
                       int failures);

// --- a round that another membership began

std::string adopted_text(std::int64_t round, int nodes, const std::optional<Loss>& loss);
std::string claim_ignored_text(const std::string& place, std::uint32_t round, int untold);
std::string place_text(const std::string& host, const std::string& address);  // "host a (10.0.0.1)"
std::string newer_round_text(std::uint32_t round, const std::string& host);
std::string lone_round_text(std::uint32_t round);
std::string has_other_round_text(std::uint32_t round);
std::string lost_meanwhile_text(int group_rank);
std::string lost_endpoint_text(int group_rank, const std::optional<std::string>& why);
std::string endpoint_has_left_text(int group_rank);
std::string ddprun_ended_text(int signal_number);    // "its ddprun was killed by SIGKILL"; 0: not known
std::string nodes_text(const RankSet& group_ranks);  // "nodes 1, 3", "nodes 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"
std::string did_not_come_text(const std::optional<Loss>& loss, const std::string& nodes,
                              std::chrono::milliseconds limit);
constexpr const char* kBegunElsewhere = "another membership began it";
constexpr const char* kWentOnWithoutThisNode = "the other nodes have gone on without this one";
StopRound went_on_without(std::uint32_t round, bool may_reseat);

// --- too few nodes are here to go on

constexpr const char* kOthersWentOn = "other nodes of the job went on without those that are here";
std::string too_few_text(int silent, std::int64_t round, int here);
std::string waiting_for_others_text(const std::string& why_too_few, std::chrono::milliseconds limit);

// --- what ends a round, or a node's part in it

std::string store_not_opened_text(std::chrono::milliseconds limit);
std::string cannot_start_text(const std::string& host);
std::string out_of_touch_text(const std::string& host, const std::optional<std::string>& why);
std::string link_text(const std::string& host, const std::string& other);  // "hosts a and b"
std::string broken_links_text(const std::vector<std::string>& links);
std::string failure_reason_text(const FailureReport& failure, bool is_certain);
constexpr const char* kDidNotEndWorkers = "it did not end its workers";

// --- stops

std::string spare_leaves_text(const std::string& why);
std::string leaves_text(const std::string& why);
constexpr const char* kNodesLeave = "nodes leave the job";
std::string second_stop_text(const std::string& why);
std::string stopped_by_text(const std::string& why, bool is_before_first_round);
std::string warned_text(int signal_number, const std::string& host, bool leaves);
constexpr const char* kNoAgreement = "the nodes did not agree on a step to stop at; the warning is passed over";

// --- refusals: what and what to try; the caller says what follows

Refused store_not_opened_refusal(std::chrono::milliseconds limit);
Refused never_stopped_refusal();
Refused cannot_start_refusal(const std::string& why);
Refused survivors_refusal(std::uint32_t round);
Refused other_step_refusal(const std::string& run_id, const std::string& endpoint_step, const std::string& node_step);
Refused other_job_refusal(const std::string& run_id);
Refused other_setting_refusal(JobSetting differs, const JobSettings& of_node, const JobSettings& of_endpoint);
Refused rank_too_high_refusal(int node_rank, int nodes_max);
Refused rank_taken_refusal(int node_rank, const std::string& host);
Refused impossible_round_refusal(const Held& held);
Refused unknown_round_refusal(const std::string& host, const Held& held);
// endpoint_program: "ddprun" or "ddp-rendezvous".
Refused not_a_range_refusal(const Hello& hello, const VersionRange& endpoint, const std::string& endpoint_program);
Refused version_too_old_refusal(const Hello& hello, const VersionRange& endpoint, const std::string& endpoint_program);
Refused chosen_version_refusal(const Welcome& welcome, const VersionRange& node);

// --- how the job ended

std::string survivors_text(const std::optional<MemberChange>& change);
std::string unexplained_stop_text(const std::optional<std::string>& why);
std::string stopped_at_step_text(int workers);
std::string no_progress_text(const std::optional<std::string>& before, int rounds);
std::string too_few_came_text(const MembershipOptions& options, int count, const std::string& names,
                              const std::optional<std::string>& reason);
std::string none_came_back_text(const std::string& why_too_few, std::chrono::milliseconds limit);

constexpr const char* kLossAdvice =
    "look at that host and at ddprun's output there; `--max-restarts=N` waits for a node in its place";
constexpr const char* kTimeLimitAdvice = "a longer --timeout; `--report=FILE` shows how long each round took";
constexpr const char* kLinkAdvice =
    "look at the network between these hosts, and at firewalls: both answer ddprun, and their workers do not reach "
    "each "
    "other; `--nnodes=MIN:MAX` goes on without one of them";
constexpr const char* kSurvivorsAdvice =
    "look at the output of ddprun on the other nodes, one of which says where they are";
constexpr const char* kUnexplainedStopAdvice =
    "look at the output of ddprun on the other nodes; install the same version on all of them";
constexpr const char* kTooFewCameAdvice =
    "look at the output of ddprun on the others: each must be started with the same --nnodes, --rdzv-id "
    "and endpoint; `--rdzv-conf=join_timeout=SECONDS` waits longer";
constexpr const char* kTryTogether =
    "look at the network between the nodes; when it works, start the job again from its newest checkpoint";

}  // namespace ddp::rendezvous
