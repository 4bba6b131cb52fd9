// What the end of a round means: which failure the others follow from, whether the round failed or only its members
// changed. verdict.hpp says how the job ends if no other round follows.
//
// Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/membership/current_round.hpp"
#include "rendezvous/membership/outcome.hpp"
#include "rendezvous/membership/reasons.hpp"

namespace ddp::rendezvous {

// Of several failures, the one that the others follow from. Facts go before times:
//
// 1. A rank that left its group for another rank is a consequence, if that rank is among the failures. So is one that
//    missed a peer without a name, if some failure accuses nobody. Where all are explained that way, in a circle, it is
//    one of those that somebody accuses.
// 2. A rank that said that it left its group for an error of its own missed nobody.
// 3. A death by a signal that had begun when the first failure of its node was noticed, or before its node was told to
//    stop, comes next, whenever it was over: connections close before the memory of a process is freed. Not SIGABRT,
//    by which libraries end their process because another one has failed, nor what a scheduler or ddprun sent.
// 4. A rank that left its group and ran on comes last.
//
// Of equal ones the earliest on the job's clock. A process that was ending when its node looked has the time of that
// look; of those at one time, one that went on ending for 50 ms goes first. But a fault of memory or SIGKILL goes
// before an exit up to 250 ms earlier: reports of deaths from loaded machines are no more exact than that. Times of two
// hosts that differ by no more than the errors of both say nothing. Then the one that more others accuse goes first,
// then a fault or SIGKILL.
//
// Requires at least one; returns its index.
std::size_t first_cause(const std::vector<FailureReport>& failures);

// Whether facts tell that this is the cause: its own end, or what others say of it. Two causes are not certain. One is
// a worker among others that say nothing of each other, if it ended by itself or of a fault of memory after its node
// was told to stop, and another one has ended within 250 ms and the errors of the clocks, or was ending when its node
// looked. The other is a worker that failed for another one, none of which has failed, or each of which failed for the
// next.
bool is_certain(const std::vector<FailureReport>& failures, std::size_t cause);

// The failure that was seen first, if that is another one than the cause: the earliest on the job's clock of those that
// are earlier than the cause by more than the errors of both clocks. Its index.
std::optional<std::size_t> seen_before(const std::vector<FailureReport>& failures, std::size_t cause);

// Null if nothing has failed, and if a node was lost for whose ranks the others left their groups.
const FailureReport* cause_of(const CurrentRound& round);

// Some rank has failed, and each that has says that it did for another one.
bool are_all_for_others(const std::vector<FailureReport>& failures);

// It is an error of its own or a kill, whatever else has failed.
bool speaks_for_itself(const FailureReport& failure);

// Exec will fail again, so another round is of no use.
bool is_hopeless(const FailureReport& failure);

// What a host that ends rounds is remembered by. Its name alone may be said by any node.
std::string place_of(const std::string& host, const std::string& seen_address);

// What died of the signal that stopped ddprun was no failure: whoever signals ddprun may signal the workers too. Nor
// was what ended by itself since a signal has ended its peers; that it did may have been noticed a little earlier.
void forgive_what_follows_from_signals(CurrentRound& round, const JobStop& stop);

// Nor are failures of workers that missed ranks which were stopped before them, to change the members. SIGKILL is no
// consequence of that: what others missed may be the one that it ended.
void forgive_what_follows_from_change(CurrentRound& round);

// A failure that goes with the loss of a node is taken for its consequence. Workers that all ended well have done their
// work, also where a node is lost, or others have come, before the round is over.
// has_begun: its nodes were told to start workers; are_enough_left: nodes, for another round.
bool is_change_of_members(const CurrentRound& round, bool has_begun, bool are_enough_left);

// One line, for the next round. Requires a failure, a loss or a change.
std::string why_ended(const CurrentRound& round, bool is_change_of_members);

// The host that has ended the round, if there is one.
std::optional<std::string> place_to_blame(const CurrentRound& round, bool is_change_of_members);

}  // namespace ddp::rendezvous
