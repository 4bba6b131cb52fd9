// What a worker that links libddp and its agent say to each other, over the socket that the worker inherited: one JSON
// object a packet, with the field `type`.
//
// Pure. Protocol: docs/worker_link.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ddp::worker_link {

constexpr int kVersion = 1;
constexpr std::size_t kPacketBytesMax = 16 * 1024;
constexpr std::size_t kRanksMax = 64;       // that a message names
constexpr std::size_t kWhyBytesMax = 1024;  // a longer reason is cut
constexpr std::size_t kVariablesMax = 64;

// "<descriptor>:<inode>" of the worker's end. The inode tells a program that was started by a worker, and has some
// other file under that number, that the socket is not its own; it is also the mark by which the worker's descendants
// are known.
constexpr const char* kSocketVariable = "DDPRUN_AGENT_SOCKET";

// --- from a worker ---

// How a worker has parted from the groups of its round, said as soon as it has.
struct Departure {
  enum class Kind { in_order, own_error, for_others };
  std::uint32_t round = 0;
  Kind kind = Kind::in_order;
  std::vector<int> ranks{};  // of the job, that it has left for; only of `for_others`, and at most kRanksMax
  std::string why{};         // one line; may be empty
  // Only of `for_others`; an older agent ignores these.
  std::vector<int> unreached{};   // ranks of the job on hosts that gave its host no answer; at most kRanksMax
  bool was_in_call = false;       // it had entered a call that did not complete
  std::vector<int> hung_ranks{};  // of `ranks`: those that did not come to a collective by its deadline
  bool operator==(const Departure&) const = default;
};

const char* name_of(Departure::Kind kind);  // "own_error"

// First, and again when one of these changes.
struct LinkHello {
  int version = kVersion;
  bool takes_seats = false;  // it can be given a seat in the next round, instead of being stopped
  // It asks should_stop(): it can be told a step at which to stop, instead of being signalled.
  bool takes_stops = false;
  std::optional<Departure> departure{};  // an older agent ignores the field
  bool operator==(const LinkHello&) const = default;
};

// It has left the round's group, of which nothing is in use any more, and waits for a seat.
struct LinkLeft {
  std::uint32_t round = 0;
  std::vector<int> hung_ranks{};  // that did not come to a collective by its deadline; at most kRanksMax
  std::string why{};              // one line
  bool was_in_call = false;       // as in Departure; an older agent ignores it
  bool operator==(const LinkLeft&) const = default;
};

// How far it has come, in the present process; said again when it has come further, not at every step.
struct LinkProgress {
  std::uint32_t round = 0;
  bool has_stepped = false;                // it has finished a step of this round
  std::optional<std::uint64_t> commits{};  // of its ElasticState, over all rounds; empty: it has none
  // Of the newest checkpoint; empty: it writes none. 0 may mean none yet.
  std::optional<std::uint64_t> checkpoint_step{};
  bool operator==(const LinkProgress&) const = default;
};

// The answer to LinkPrepareStop: the next call of should_stop() in this round that it can still say yes to. It waits in
// that call until LinkStopAt comes.
struct LinkStopReady {
  std::uint32_t round = 0;
  std::uint64_t call = 0;  // from 1
  bool operator==(const LinkStopReady&) const = default;
};

// should_stop() has said yes: when it ends now with 0, it has stopped as it was told.
struct LinkStopping {
  std::uint32_t round = 0;
  bool operator==(const LinkStopping&) const = default;
};

using FromWorker = std::variant<LinkHello, LinkLeft, LinkProgress, LinkStopReady, LinkStopping>;

// --- to a worker ---

// To leave whatever collective it is in.
struct LinkRoundOver {
  std::uint32_t round = 0;
  std::string why{};
  bool operator==(const LinkRoundOver&) const = default;
};

// Its part in the next round, as the environment of a worker that is started for it would say.
struct LinkSeat {
  std::map<std::string, std::string> variables;
  bool operator==(const LinkSeat&) const = default;
};

// It has no further part in the job: there is no seat to wait for, and the SIGTERM that comes now is for it.
struct LinkStop {
  std::string why{};
  bool operator==(const LinkStop&) const = default;
};

struct LinkPrepareStop {
  std::uint32_t round = 0;
  bool operator==(const LinkPrepareStop&) const = default;
};

// The call of should_stop() in this round, from 1, that is the first to say yes, on all ranks.
struct LinkStopAt {
  std::uint32_t round = 0;
  std::uint64_t call = 0;
  bool operator==(const LinkStopAt&) const = default;
};

using ToWorker = std::variant<LinkRoundOver, LinkSeat, LinkStop, LinkPrepareStop, LinkStopAt>;

// At most kPacketBytesMax, as far as lists and texts are within their limits; texts are cut to theirs.
std::string encode(const FromWorker& message);
std::string encode(const ToWorker& message);

// Empty for what is none of these messages, or beyond a limit. Fields that are not known are ignored.
std::optional<FromWorker> parse_from_worker(std::string_view packet);
std::optional<ToWorker> parse_to_worker(std::string_view packet);

}  // namespace ddp::worker_link
