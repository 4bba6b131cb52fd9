// What agents and membership say to each other. Each message is bounded, however large the job: an agent hears of its
// own ranks, never the list of all.
//
// Protocol: docs/control_channel.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/round.hpp"
#include "rendezvous/membership/failure.hpp"
#include "rendezvous/membership/run_report.hpp"

namespace ddp::rendezvous {

// The versions of this protocol that a program speaks: all from `low` to `high`.
struct VersionRange {
  int low = 1, high = 1;
  bool operator==(const VersionRange&) const = default;
};
constexpr VersionRange kVersions{1, 1};  // that this program speaks
constexpr int kVersionMax = 1'000'000;

// --- from an agent ---

// Restarts of a job that its window may still count, and how long ago they were: clocks of nodes differ.
struct SpentRestarts {
  std::chrono::milliseconds age{0};
  int count = 1;
  bool operator==(const SpentRestarts&) const = default;
};
constexpr std::size_t kSpentRestartsMax = 64;                                // in one message
constexpr std::chrono::milliseconds kAgeMax = std::chrono::hours(366 * 24);  // which no window exceeds

// What an agent still has of a round, when it comes to a membership that may not know of it: after a broken connection,
// after the endpoint was started again, at the next host.
struct Held {
  RoundId round;
  int group_rank = 0, group_world_size = 1;
  int restart_count = 0;        // of the job, as it was told last
  bool is_established = false;  // it was told so
  bool is_left_behind = false;  // it was told that the others have gone on without it
  // Of the last rounds that the node was a member of, at most kNoncesMax; the first is that of `round`. Only members
  // know the nonce of a round, so nodes that share one were members together. Empty: an older ddprun has no nonces, and
  // a round of an older membership has none.
  std::vector<std::string> nonces{};
  std::optional<std::uint64_t> stop_call{};  // that StopAt has told this node in `round`
  // Those of restart_count that a window of restarts counts, with their ages now, the oldest first. Empty: not known.
  std::optional<std::vector<SpentRestarts>> spent_restarts{};
  // The node that had the endpoint, and the numeric address at which this node reached it there. Empty: a daemon had
  // it, or a node that took over from its host, or there were several ports.
  std::optional<int> host_group_rank{};
  std::string endpoint_address{};
  std::uint64_t job_started = 0;  // as StartRound has told it
  bool operator==(const Held&) const = default;
};
constexpr std::size_t kNoncesMax = 8;

constexpr std::size_t kAddressesMax = 256;            // in one message
constexpr std::size_t kRoundAddressesMax = 1u << 18;  // that may reach the store of a round: four of each of most nodes
constexpr int kRoundWithLogsMax = 1'000'000'000;
constexpr std::int64_t kUnixSecondsMax = 253'402'300'799;  // the end of the year 9999

// A node that has ended, as the kernel of its host says to a later ddprun there. The nonce is that of `round`: only
// members know it.
struct EndedNode {
  std::string node_key;
  RoundId round;  // its last one, as far as it has come to write it down
  int group_rank = 0, group_world_size = 1;
  std::string nonce;
  bool operator==(const EndedNode&) const = default;
};
constexpr std::size_t kEndedNodesMax = 8;

// The first thing that an agent says on each connection.
struct Hello {
  VersionRange versions = kVersions;  // that this node speaks
  std::string run_id;
  std::string node_key;  // 32 hexadecimal digits, of this run of ddprun and known to membership alone: it names the
                         // node when it comes again, and proves the word of its guardian that it has ended
  std::string host_name;
  std::optional<int> node_rank;  // wished
  int nodes_min = 1, nodes_max = 1;
  int workers = 1;
  std::string role = "default";
  std::string local_address;  // under which others are to reach this node; empty: as it is seen
  // Of its interfaces, numeric and at most kAddressesMax: its workers connect to the store from them.
  std::vector<std::string> addresses;
  std::uint16_t standby_port = 0;  // on which it would serve the endpoint, were it the next host; 0: it would not
  int highest_round = -1;          // that it has logs of; at most kRoundWithLogsMax
  std::uint64_t started = 0;       // when this ddprun began, in Unix seconds; 0: an older one does not say it
  std::optional<Held> held;        // empty before its first round
  // With the number of nodes, what a job has that begins with this node.
  int restarts_max = 0;
  std::chrono::milliseconds restart_window{0};
  std::chrono::milliseconds join_timeout{600'000}, last_call_timeout{30'000};
  std::optional<std::chrono::milliseconds> heartbeat_timeout{};  // of an endpoint that it serves; older ones say none
  std::chrono::milliseconds grace{30'000};                       // that its workers have to end, when they are stopped
  bool was_welcomed = false;        // on a connection before: others of its job may be about to come too
  bool is_served_by_agent = false;  // the endpoint, by one of the job: who else is at one of its ports is passed by
  bool wants_report = false;        // of the run, when the job has ended; group rank 0 gets it anyway
  std::string slurm_run;  // "42.0.r1", at one of whose ports the endpoint is: another may have the same id; empty: none
  // This node serves the job at its standby port, after its first host was lost, and asks nothing: it looks whether
  // another ddprun of the job has come to the endpoint since.
  bool is_host = false;
  bool goes_on = false;                  // as the host it has begun a round
  bool holds_endpoint = false;           // this node has opened it, whoever serves the job now: newcomers come here
  std::vector<EndedNode> ended_nodes{};  // of this job, on this host; at most kEndedNodesMax
  bool operator==(const Hello&) const = default;
};

struct StoreOpened {
  std::uint32_t round = 0;
  std::uint16_t port = 0;
  bool operator==(const StoreOpened&) const = default;
};

// Every worker of the round has been started here, or has its new seat.
struct RoundStarted {
  std::uint32_t round = 0;
  bool operator==(const RoundStarted&) const = default;
};

// Every worker of this node has finished a step of the round. Said where all of them tell of steps.
struct FirstStep {
  std::uint32_t round = 0;
  bool operator==(const FirstStep&) const = default;
};

// A worker of this node failed, the first one of the round here; all of it is told when the node's round has ended.
struct RoundFailed {
  std::uint32_t round = 0;
  std::optional<std::string> what{};      // one line
  std::vector<int> hung_ranks{};          // that a collective's deadline found missing; at most kHungRanksMax
  std::chrono::milliseconds job_time{0};  // when it did
  bool is_for_others = false;             // it left its group for other ranks; older ones do not say it
  bool operator==(const RoundFailed&) const = default;
};

constexpr std::size_t kHungRanksMax = 64;

// What the workers of a node have kept beyond a failure; empty where none of them would keep such a thing.
struct Progress {
  std::optional<std::uint64_t> commits{};  // of an ElasticState, in this round
  // Of the newest checkpoint that this run of the program has saved; 0: none.
  std::optional<std::uint64_t> checkpoint_step{};
  // On the job's clock, when the node heard of the newest commit or checkpoint of this round; empty: of none.
  std::optional<std::chrono::milliseconds> kept_at{};
  bool operator==(const Progress&) const = default;
};

// No process of the round is left on this node but those that have left it and wait for a seat in the next one.
struct RoundEnded {
  std::uint32_t round = 0;
  // At most kFailuresMax. That of which the node holds that the others follow goes first (first_cause()), the rest in
  // the order of their happening.
  std::vector<FailureReport> failures;
  // Workers that ran when the node's stop began and did not fail by themselves, those that wait included.
  int stopped = 0;
  bool tree_survived = false;  // some process could not be killed
  int stopped_at_step = 0;     // workers that ended with 0 after they had come to the agreed step; not among `stopped`
  Progress progress{};
  // Where workers were ended by a signal that this ddprun got too, be it by ddprun: which one, and since when. They are
  // no failures, nor is what fails elsewhere for want of them.
  std::optional<int> signal_number{};
  std::optional<std::chrono::milliseconds> signalled_at{};  // job time
  // Ranks on other hosts that gave its workers no answer, at most kUnreachedMax; and whether every worker of this node
  // had entered a call that did not complete, as it said itself. Older ones say neither.
  std::vector<int> unreached{};
  bool were_in_call = false;
  // Why this node's ddprun has stopped the workers by itself, one line: it had lost touch with the job. Older ones do
  // not say it.
  std::optional<std::string> why_stopped{};
  bool operator==(const RoundEnded&) const = default;
};
constexpr std::size_t kFailuresMax = 8;
constexpr std::size_t kUnreachedMax = 1024;

// This node's ddprun was told to stop; or was warned by the scheduler that it will be, which begins no grace.
struct StopAsked {
  int signal_number = 0;
  bool is_warning = false;
  bool is_second = false;  // this ddprun was told before, too: what still runs is killed
  bool leaves = false;     // the job is to go on without this node, if it can
  // Of --timeout, which is over: the reason of the stop. Empty: somebody has signalled; older ones do not say it.
  std::optional<std::chrono::milliseconds> time_limit{};
  bool operator==(const StopAsked&) const = default;
};

// The answer to PrepareStop: the first step that every worker here can still stop at, counted in calls of should_stop()
// in this round, from 1; 0, to a warning: all of them take part; empty where some worker takes no part.
struct StopReady {
  std::uint32_t round = 0;
  std::optional<std::uint64_t> call{};
  bool operator==(const StopReady&) const = default;
};

// This ddprun ends before its job does. No process of the job is left on its node.
struct Leaving {
  std::string why;
  std::optional<int> exit_code{};  // with which it ends; the job's, if the job ends for this loss
  bool operator==(const Leaving&) const = default;
};

// What does the job's clock show? TimeTold is the answer, at once.
struct TimeAsked {
  std::uint32_t number = 0;  // of the question
  bool operator==(const TimeAsked&) const = default;
};

// The answer to CheckLinks, once all of them work.
struct LinksWork {
  bool operator==(const LinksWork&) const = default;
};

using ToMembership = std::variant<Hello, StoreOpened, RoundStarted, FirstStep, RoundFailed, RoundEnded, StopAsked,
                                  StopReady, Leaving, TimeAsked, LinksWork>;

// --- to an agent ---

struct Welcome {
  std::chrono::milliseconds job_time{0};  // now, on the job's clock
  bool is_spare = false;                  // a round of as many nodes as the job takes is under way: the node waits
  int version = 1;                        // of the protocol, which both sides speak from here on
  VersionRange versions{};                // that the endpoint speaks
  bool operator==(const Welcome&) const = default;
};

// Membership is not here, or no longer: the agent asks there. The connection ends.
struct Elsewhere {
  std::string address;  // a numeric one
  std::uint16_t port = 0;
  bool operator==(const Elsewhere&) const = default;
};

// The agent may not take part; the connection ends.
struct Refused {
  std::string what;
  std::string try_this;
  bool is_other_job = false;      // that is served there: the agent's own may be at another port
  bool is_round_unknown = false;  // that the agent has: it may come again, and its workers have a limited time
  bool operator==(const Refused&) const = default;
};

// To the node that gets group rank 0: begin a fresh store, for these addresses too, and say its port.
struct OpenStore {
  RoundId round;
  std::vector<std::string> allow;  // may come in several messages, of which only the last has is_last
  bool is_last = true;
  bool operator==(const OpenStore&) const = default;
};

// A node that would serve the endpoint next.
struct Successor {
  int group_rank = 0;
  std::string address;  // a numeric one, as membership sees the node
  std::uint16_t port = 0;
  bool operator==(const Successor&) const = default;
};
constexpr std::size_t kSuccessorsMax = 3;

struct StartRound {
  RoundId round;
  int group_rank = 0, group_world_size = 1;
  int rank_first = 0, world_size = 1;
  int role_rank_first = 0, role_world_size = 1;
  int restart_count = 0, restarts_max = 0;
  std::string master_address;  // empty: the endpoint's host, as this agent reaches it
  std::uint16_t master_port = 0;
  std::optional<std::string> why{};  // what ended the round before; empty for the first
  bool is_why_told = false;          // this node has printed that already, with the restart's number
  // In the order of group ranks, at most kSuccessorsMax; none where the endpoint stays.
  std::vector<Successor> successors{};
  std::optional<int> host_group_rank{};  // of the node whose agent serves the endpoint, where one does
  std::string host_node_key{};           // of that node, told to its successors alone: its guardian may speak to them
  // Of the round, 32 hexadecimal digits; secret: its members return it in Held, nothing shows it. Empty: an older
  // membership has none.
  std::string nonce{};
  std::optional<std::vector<SpentRestarts>> spent_restarts{};  // as in Held, now
  // When the job began, in Unix seconds by the clock of one node: the same in all rounds and on all nodes, whose log
  // folders have it in their names. 0: an older membership does not say it.
  std::uint64_t job_started = 0;
  std::optional<RoundTimes> round_before{};  // for those that get the report of the run; `why` above has ended it
  bool operator==(const StartRound&) const = default;
};

// Every member has started the round: this is the set of nodes whose greater part may go on. Who is asked by a
// membership that begins anew says so.
struct RoundEstablished {
  std::uint32_t round = 0;
  bool operator==(const RoundEstablished&) const = default;
};

// The job is to stop at one step: from which on could this node's workers? Of a warning only whether all of them take
// part, and the answer waits until they do; else it comes at once, and the workers wait at their steps for StopAt.
struct PrepareStop {
  std::uint32_t round = 0;
  bool is_warning = false;
  bool operator==(const PrepareStop&) const = default;
};

// All workers of the job stop at this step, by themselves. With a signal the grace begins, and what is left when it is
// over is killed.
struct StopAt {
  std::uint32_t round = 0;
  std::uint64_t call = 0;  // of should_stop() in this round, from 1
  int signal_number = 0;   // that ddprun was told to stop by; 0: only a warning
  bool operator==(const StopAt&) const = default;
};

struct StopRound {
  std::uint32_t round = 0;
  int signal_number = 15;
  bool kill = false;                 // at once
  bool reseat = false;               // another round follows: workers that can take a seat in it live on
  std::optional<std::string> why{};  // one line; empty where this node knows it best
  std::vector<int> hung_ranks{};  // that others missed; killed where they give no sign of life; at most kHungRanksMax
  bool is_left_behind = false;    // the others have gone on without this node: it counts for that round no more
  // As far as is known each worker that has failed did for other ranks. Those that have said nothing get the signal a
  // moment later: they may say for whom they leave. An older node ignores it.
  bool gathers = false;
  std::string proof{};  // in the answer to the call of a host: answer_proof() of a nonce of which that has told a part
  bool operator==(const StopRound&) const = default;
};

// How the job ended: the same for every node.
struct FinishJob {
  int exit_code = 0;
  std::optional<FailureReport> cause;       // where a worker was the cause
  std::vector<FailureReport> consequences;  // workers that failed after it, by themselves; at most kFailuresMax
  int stopped = 0;                          // workers that were stopped
  int world_size = 1;                       // of the last round
  int restarts_max = 0;
  std::optional<std::string> what{};      // where something else was the cause, or was decided because of it
  std::optional<std::string> try_this{};  // where that is an error
  std::optional<RunReport> report{};      // for those that want it
  bool has_left = false;                  // this node alone has ended: the job goes on without it
  bool is_cause_certain = true;           // is_certain() of round_end.hpp
  // The rank among `consequences` whose failure was seen before the cause: seen_before() of round_end.hpp. Empty: the
  // cause was seen first, or the clocks do not tell; older ones do not say it.
  std::optional<int> seen_first{};
  bool operator==(const FinishJob&) const = default;
};

// This host ends before its job does: the next host is to serve it. No process of the job is left on its node.
struct HostLeaves {
  std::optional<std::string> why{};  // one line; none: it was told to stop, and the job goes on without it
  std::vector<int> gone{};           // group ranks of other nodes that have left with it; at most kLeaversMax
  std::optional<int> exit_code{};    // as in Leaving
  bool operator==(const HostLeaves&) const = default;
};

constexpr std::size_t kLeaversMax = 1024;  // in one message
constexpr int kSignalMax = 64;

struct TimeTold {
  std::uint32_t number = 0;  // of the question
  std::chrono::milliseconds job_time{0};
  bool operator==(const TimeTold&) const = default;
};

// The node is left out because it did not reach these agents' hosts. It tries until it does, or takes part in a round.
struct CheckLinks {
  std::vector<Elsewhere> to;  // at most kLinksCheckedMax
  bool operator==(const CheckLinks&) const = default;
};
constexpr std::size_t kLinksCheckedMax = 8;

using ToAgent = std::variant<Welcome, Elsewhere, Refused, OpenStore, StartRound, RoundEstablished, PrepareStop, StopAt,
                             StopRound, FinishJob, HostLeaves, TimeTold, CheckLinks>;

}  // namespace ddp::rendezvous
