#include "rendezvous/wire/message_json.hpp"

#include <algorithm>
#include <concepts>
#include <iterator>
#include <string_view>
#include <utility>
#include <variant>

#include "base/address.hpp"
#include "base/json_depth.hpp"
#include "base/printable.hpp"
#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "rendezvous/wire/json_value.hpp"

namespace ddp::rendezvous {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kListMax = kAddressesMax;                            // of texts
constexpr std::size_t kNumbersMax = std::max(kUnreachedMax, kLeaversMax);  // of numbers, in any list
// Of any text, in both directions: a longer one is cut where it is written. Eight failures with four texts each and 16
// lines of stderr as ddprun keeps them fit into kControlMessageBytesMax, even if JSON doubles each byte.
constexpr std::size_t kTextBytesMax = 2048;

// --- reading, with the limits ---

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw Error("malformed message: the field \"" + name + "\" " + why);
}

const JsonValue& field(const JsonValue& object, const char* name) {
  const auto* found = object.find(name);
  if (found == nullptr) refuse(name, "is missing");
  return *found;
}

const std::string& text_in(const JsonValue& value, const char* name) {
  const auto* text = std::get_if<std::string>(&value.content);
  if (text == nullptr) refuse(name, "is no text");
  if (text->size() > kTextBytesMax) refuse(name, "is too long");
  if (!base::is_printable(*text)) refuse(name, "holds a control character");
  return *text;
}

const JsonList& list_in(const JsonValue& value, const char* name, std::size_t size_max) {
  const auto* list = std::get_if<JsonList>(&value.content);
  if (list == nullptr || list->size() > size_max) refuse(name, "is no list, or too long");
  return *list;
}

// Requires low and high within 53 bits, as every JSON implementation keeps those.
template <class Integer>
Integer integer_in(const JsonValue& value, const char* name, std::int64_t low, std::int64_t high) {
  if (const auto* number = std::get_if<std::uint64_t>(&value.content)) {
    if (*number > static_cast<std::uint64_t>(high)) refuse(name, "is too large");
    if (low > 0 && *number < static_cast<std::uint64_t>(low)) refuse(name, "is out of range");
    return static_cast<Integer>(*number);
  }
  const auto* number = std::get_if<std::int64_t>(&value.content);
  if (number == nullptr) refuse(name, "is no whole number");
  if (*number < low || *number > high) refuse(name, "is out of range");
  return static_cast<Integer>(*number);
}

void read(const JsonValue& object, const char* name, std::string& out) { out = text_in(field(object, name), name); }

void read(const JsonValue& object, const char* name, bool& out) {
  const auto* value = std::get_if<bool>(&field(object, name).content);
  if (value == nullptr) refuse(name, "is neither true nor false");
  out = *value;
}

template <class Integer>
void read_integer(const JsonValue& object, const char* name, Integer& out, std::int64_t low, std::int64_t high) {
  out = integer_in<Integer>(field(object, name), name, low, high);
}

constexpr int kDepthMax = 8;
constexpr int kWorkersMax = 16'384;                                        // of one node
constexpr int kNodesMax = 65'536;                                          // as --nnodes
constexpr std::int64_t kCountMax = std::int64_t{kWorkersMax} * kNodesMax;  // of ranks, the greatest number; fits an int
constexpr std::int64_t kRoundMax = 0xffffffff, kStepMax = std::int64_t{1} << 52, kPidMax = 0x7fffffff;
constexpr std::int64_t kMillisecondsMax = std::int64_t{100} * 366 * 24 * 3600 * 1000;  // fits nanoseconds of 64 bits

void read(const JsonValue& object, const char* name, int& out) { read_integer(object, name, out, -1, kCountMax); }
void read(const JsonValue& object, const char* name, std::uint32_t& out) {
  read_integer(object, name, out, 0, kRoundMax);
}
void read(const JsonValue& object, const char* name, std::uint16_t& out) { read_integer(object, name, out, 0, 65'535); }
void read(const JsonValue& object, const char* name, std::int64_t& out) { read_integer(object, name, out, 0, kPidMax); }

void read(const JsonValue& object, const char* name, milliseconds& out) {
  std::int64_t count = 0;
  read_integer(object, name, count, -kMillisecondsMax, kMillisecondsMax);
  out = milliseconds(count);
}

void read(const JsonValue& object, const char* name, RoundId& out) {
  std::string text;
  read(object, name, text);
  const auto id = parse_round_id(text);
  if (!id) refuse(name, "is no round id");
  out = *id;
}

void read(const JsonValue& object, const char* name, std::vector<std::string>& out) {
  for (const auto& entry : list_in(field(object, name), name, kListMax)) out.push_back(text_in(entry, name));
}

void read(const JsonValue& object, const char* name, std::uint64_t& out) {
  read_integer(object, name, out, 0, kStepMax);
}

template <class Number>
void read_optional(const JsonValue& object, const char* name, std::optional<Number>& out) {
  if (object.find(name) != nullptr) read(object, name, out.emplace());
}

void read(const JsonValue& object, const char* name, std::optional<bool>& out) { read_optional(object, name, out); }
void read(const JsonValue& object, const char* name, std::optional<int>& out) { read_optional(object, name, out); }
void read(const JsonValue& object, const char* name, std::optional<std::uint64_t>& out) {
  read_optional(object, name, out);
}
void read(const JsonValue& object, const char* name, std::optional<milliseconds>& out) {
  read_optional(object, name, out);
}

// A text of which older peers write an empty one where there is none.
void read(const JsonValue& object, const char* name, std::optional<std::string>& out) {
  const auto* value = object.find(name);
  if (value != nullptr && !text_in(*value, name).empty()) out = text_in(*value, name);
}

// The kinds by their numbers on the wire. The compiler warns of a kind that is missing in the switch.
constexpr bool is_on_the_wire(Ending::Kind kind) {
  switch (kind) {
    case Ending::Kind::exited:
    case Ending::Kind::killed:
    case Ending::Kind::not_started:
    case Ending::Kind::left: return true;
  }
  return false;
}

void read(const JsonValue& object, const char* name, Ending::Kind& out) {
  int value = 0;
  read(object, name, value);
  out = static_cast<Ending::Kind>(value);
  if (!is_on_the_wire(out)) refuse(name, "is out of range");
}

void read(const JsonValue& object, const char* name, std::vector<int>& out) {
  for (const auto& entry : list_in(field(object, name), name, kNumbersMax))
    out.push_back(integer_in<int>(entry, name, -1, kCountMax));
}

void read(const JsonValue& object, Successor& out);
void read(const JsonValue& object, const char* name, std::vector<Successor>& out) {
  for (const auto& entry : list_in(field(object, name), name, kSuccessorsMax)) read(entry, out.emplace_back());
}

void read(const JsonValue& object, SpentRestarts& out);
void read(const JsonValue& object, const char* name, std::optional<std::vector<SpentRestarts>>& out) {
  if (object.find(name) == nullptr) return;
  out.emplace();
  for (const auto& entry : list_in(field(object, name), name, kSpentRestartsMax)) read(entry, out->emplace_back());
}

void read(const JsonValue& object, Held& out);
void read(const JsonValue& object, const char* name, std::optional<Held>& out) {
  if (const auto* value = object.find(name)) read(*value, out.emplace());
}

void read(const JsonValue& object, Elsewhere& out);
void read(const JsonValue& object, const char* name, std::vector<Elsewhere>& out) {
  for (const auto& entry : list_in(field(object, name), name, kLinksCheckedMax)) read(entry, out.emplace_back());
}

void read(const JsonValue& object, EndedNode& out);
void read(const JsonValue& object, const char* name, std::vector<EndedNode>& out) {
  for (const auto& entry : list_in(field(object, name), name, kEndedNodesMax)) read(entry, out.emplace_back());
}

void read(const JsonValue& object, RoundTimes& out);
void read(const JsonValue& object, const char* name, std::vector<RoundTimes>& out) {
  for (const auto& entry : list_in(field(object, name), name, kRoundsReportedMax)) read(entry, out.emplace_back());
}

void read(const JsonValue& object, const char* name, std::optional<RoundTimes>& out) {
  if (const auto* value = object.find(name)) read(*value, out.emplace());
}

void read(const JsonValue& object, RunReport& out);
void read(const JsonValue& object, const char* name, std::optional<RunReport>& out) {
  if (const auto* value = object.find(name)) read(*value, out.emplace());
}

void read(const JsonValue& object, FailureReport& out);

void read(const JsonValue& object, const char* name, std::vector<FailureReport>& out) {
  for (const auto& entry : list_in(field(object, name), name, kFailuresMax)) read(entry, out.emplace_back());
}

void read(const JsonValue& object, const char* name, std::optional<FailureReport>& out) {
  if (const auto* value = object.find(name)) read(*value, out.emplace());
}

// --- writing: straight into the text, which costs a tenth of filling a JSON document and dumping it ---

void append(std::string& out, const std::string& value) {
  const auto text = base::printable(value, kTextBytesMax);
  const auto is_escaped = [](char c) { return c == '"' || c == '\\'; };
  out += '"';
  if (std::none_of(text.begin(), text.end(), is_escaped)) {
    out += text;
  } else {
    for (const char c : text) {
      if (is_escaped(c)) out += '\\';
      out += c;
    }
  }
  out += '"';
}
void append(std::string& out, bool value) { out += value ? "true" : "false"; }
template <std::integral Integer>
void append(std::string& out, Integer value) {
  out += std::to_string(value);
}
void append(std::string& out, milliseconds value) { append(out, value.count()); }
void append(std::string& out, const RoundId& value) { append(out, to_string(value)); }

void append(std::string& out, const FailureReport& failure);
void append(std::string& out, const Successor& successor);
void append(std::string& out, const SpentRestarts& restarts);
void append(std::string& out, const Held& held);
void append(std::string& out, const EndedNode& node);
void append(std::string& out, const Elsewhere& there);
void append(std::string& out, const RoundTimes& round);
void append(std::string& out, const RunReport& report);

template <class Item>
void append(std::string& out, const std::vector<Item>& list) {
  out += '[';
  for (const auto& item : list) {
    if (&item != list.data()) out += ',';
    append(out, item);
  }
  out += ']';
}

// A field of an object whose brace is open.
template <class Value>
void write(std::string& object, const char* name, const Value& value) {
  if (object.back() != '{') object += ',';
  object.append("\"").append(name).append("\":");
  append(object, value);
}
template <class Value>
void write(std::string& object, const char* name, const std::optional<Value>& value) {
  if (value) write(object, name, *value);
}

// Older peers want the field.
void write(std::string& object, const char* name, const std::optional<std::string>& value) {
  write(object, name, value.value_or(""));
}

// --- each message once, for both ways: visit(field name, field), or visit(field name, field, value if it is absent)
// --- Older peers do not write every field.

template <class Visit>
void fields(SpentRestarts& m, Visit visit) {
  visit("age_ms", m.age);
  visit("count", m.count);
}

template <class Visit>
void fields(Held& m, Visit visit) {
  visit("round", m.round);
  visit("group_rank", m.group_rank);
  visit("group_world_size", m.group_world_size);
  visit("restart_count", m.restart_count);
  visit("is_established", m.is_established);
  visit("is_left_behind", m.is_left_behind);
  visit("nonces", m.nonces, std::vector<std::string>());
  visit("stop_call", m.stop_call);
  visit("host_group_rank", m.host_group_rank);
  visit("endpoint_address", m.endpoint_address, std::string());
  visit("spent_restarts", m.spent_restarts);
  visit("job_started", m.job_started, std::uint64_t{0});
}

template <class Visit>
void fields(EndedNode& m, Visit visit) {
  visit("node_key", m.node_key);
  visit("round", m.round);
  visit("group_rank", m.group_rank);
  visit("group_world_size", m.group_world_size);
  visit("nonce", m.nonce);
}

template <class Visit>
void fields(Hello& m, Visit visit) {
  visit("version", m.versions.low);  // this name, as older endpoints look for it
  visit("version_max", m.versions.high, m.versions.low);
  visit("run_id", m.run_id);
  visit("node_key", m.node_key);
  visit("host_name", m.host_name);
  visit("node_rank", m.node_rank);
  visit("nodes_min", m.nodes_min);
  visit("nodes_max", m.nodes_max);
  visit("workers", m.workers);
  visit("role", m.role);
  visit("local_address", m.local_address);
  visit("addresses", m.addresses);
  visit("standby_port", m.standby_port);
  visit("highest_round", m.highest_round);
  visit("started", m.started, std::uint64_t{0});
  visit("held", m.held);
  visit("restarts_max", m.restarts_max);
  visit("restart_window_ms", m.restart_window);
  visit("join_timeout_ms", m.join_timeout);
  visit("last_call_timeout_ms", m.last_call_timeout);
  visit("heartbeat_timeout_ms", m.heartbeat_timeout);
  visit("grace_ms", m.grace);
  visit("was_welcomed", m.was_welcomed);
  visit("is_served_by_agent", m.is_served_by_agent);
  visit("wants_report", m.wants_report);
  visit("slurm_run", m.slurm_run);
  visit("is_host", m.is_host, false);
  visit("goes_on", m.goes_on, false);
  visit("holds_endpoint", m.holds_endpoint, false);
  visit("ended_nodes", m.ended_nodes, std::vector<EndedNode>());
}

template <class Visit>
void fields(StoreOpened& m, Visit visit) {
  visit("round", m.round);
  visit("port", m.port);
}

template <class Visit>
void fields(RoundStarted& m, Visit visit) {
  visit("round", m.round);
}

template <class Visit>
void fields(FirstStep& m, Visit visit) {
  visit("round", m.round);
}

template <class Visit>
void fields(RoundFailed& m, Visit visit) {
  visit("round", m.round);
  visit("what", m.what);
  visit("job_time_ms", m.job_time);
  visit("hung_ranks", m.hung_ranks);
  visit("is_for_others", m.is_for_others, false);
}

template <class Visit>
void fields(RoundEnded& m, Visit visit) {
  visit("round", m.round);
  visit("failures", m.failures);
  visit("stopped", m.stopped);
  visit("tree_survived", m.tree_survived);
  visit("stopped_at_step", m.stopped_at_step);
  visit("commits", m.progress.commits);
  visit("checkpoint_step", m.progress.checkpoint_step);
  visit("kept_at_ms", m.progress.kept_at);
  visit("signal_number", m.signal_number);
  visit("signalled_at_ms", m.signalled_at);
  visit("unreached", m.unreached, std::vector<int>());
  visit("were_in_call", m.were_in_call, false);
  visit("why_stopped", m.why_stopped);
}

template <class Visit>
void fields(StopAsked& m, Visit visit) {
  visit("signal_number", m.signal_number);
  visit("is_warning", m.is_warning);
  visit("is_second", m.is_second, false);
  visit("leaves", m.leaves, false);
  visit("time_limit_ms", m.time_limit);
}

template <class Visit>
void fields(Leaving& m, Visit visit) {
  visit("why", m.why);
  visit("exit_code", m.exit_code);
}

template <class Visit>
void fields(TimeAsked& m, Visit visit) {
  visit("number", m.number);
}

template <class Visit>
void fields(HostLeaves& m, Visit visit) {
  visit("why", m.why);
  visit("gone", m.gone, std::vector<int>());
  visit("exit_code", m.exit_code);
}

template <class Visit>
void fields(TimeTold& m, Visit visit) {
  visit("number", m.number);
  visit("job_time_ms", m.job_time);
}

template <class Visit>
void fields(StopReady& m, Visit visit) {
  visit("round", m.round);
  visit("call", m.call);
}

template <class Visit>
void fields(Welcome& m, Visit visit) {
  visit("job_time_ms", m.job_time);
  visit("is_spare", m.is_spare);
  visit("version", m.version, 1);
  visit("version_min", m.versions.low, m.version);
  visit("version_max", m.versions.high, m.version);
}

template <class Visit>
void fields(Elsewhere& m, Visit visit) {
  visit("address", m.address);
  visit("port", m.port);
}

template <class Visit>
void fields(Successor& m, Visit visit) {
  visit("group_rank", m.group_rank);
  visit("address", m.address);
  visit("port", m.port);
}

template <class Visit>
void fields(Refused& m, Visit visit) {
  visit("what", m.what);
  visit("try", m.try_this);
  visit("is_other_job", m.is_other_job);
  visit("is_round_unknown", m.is_round_unknown, false);
}

template <class Visit>
void fields(OpenStore& m, Visit visit) {
  visit("round", m.round);
  visit("allow", m.allow);
  visit("is_last", m.is_last);
}

template <class Visit>
void fields(StartRound& m, Visit visit) {
  visit("round", m.round);
  visit("group_rank", m.group_rank);
  visit("group_world_size", m.group_world_size);
  visit("rank_first", m.rank_first);
  visit("world_size", m.world_size);
  visit("role_rank_first", m.role_rank_first);
  visit("role_world_size", m.role_world_size);
  visit("restart_count", m.restart_count);
  visit("restarts_max", m.restarts_max);
  visit("master_address", m.master_address);
  visit("master_port", m.master_port);
  visit("why", m.why);
  visit("is_why_told", m.is_why_told, false);
  visit("successors", m.successors);
  visit("host_group_rank", m.host_group_rank);
  visit("host_node_key", m.host_node_key, std::string());
  visit("nonce", m.nonce, std::string());
  visit("spent_restarts", m.spent_restarts);
  visit("job_started", m.job_started, std::uint64_t{0});
  visit("round_before", m.round_before);
}

template <class Visit>
void fields(RoundEstablished& m, Visit visit) {
  visit("round", m.round);
}

template <class Visit>
void fields(PrepareStop& m, Visit visit) {
  visit("round", m.round);
  visit("is_warning", m.is_warning);
}

template <class Visit>
void fields(StopAt& m, Visit visit) {
  visit("round", m.round);
  visit("call", m.call);
  visit("signal_number", m.signal_number);
}

template <class Visit>
void fields(StopRound& m, Visit visit) {
  visit("round", m.round);
  visit("signal_number", m.signal_number);
  visit("kill", m.kill);
  visit("reseat", m.reseat);
  visit("why", m.why);
  visit("hung_ranks", m.hung_ranks);
  visit("is_left_behind", m.is_left_behind);
  visit("gathers", m.gathers, false);
  visit("proof", m.proof, std::string());
}

template <class Visit>
void fields(LinksWork&, Visit) {}

template <class Visit>
void fields(CheckLinks& m, Visit visit) {
  visit("to", m.to);
}

template <class Visit>
void fields(FinishJob& m, Visit visit) {
  visit("exit_code", m.exit_code);
  visit("cause", m.cause);
  visit("is_cause_certain", m.is_cause_certain, true);
  visit("seen_first", m.seen_first);
  visit("consequences", m.consequences);
  visit("stopped", m.stopped);
  visit("world_size", m.world_size);
  visit("restarts_max", m.restarts_max);
  visit("what", m.what);
  visit("try", m.try_this);
  visit("report", m.report);
  visit("has_left", m.has_left, false);
}

template <class Visit>
void fields(RoundTimes& m, Visit visit) {
  visit("round", m.round);
  visit("why", m.why);
  visit("nodes", m.nodes);
  visit("world_size", m.world_size);
  visit("detect_ms", m.detect);
  visit("stop_ms", m.stop);
  visit("rendezvous_ms", m.rendezvous);
  visit("start_ms", m.start);
  visit("first_step_ms", m.first_step);
  visit("worked_ms", m.worked);
  visit("lost_ms", m.lost);
}

template <class Visit>
void fields(RunReport& m, Visit visit) {
  visit("total_ms", m.total);
  visit("worked_ms", m.worked);
  visit("rounds_count", m.rounds_count);
  visit("rounds", m.rounds);
  visit("useful_ms", m.useful);
}

template <class Visit>
void fields(FailureReport& m, Visit visit) {
  visit("rank", m.rank);
  visit("local_rank", m.local_rank);
  visit("host", m.host);
  visit("pid", m.pid);
  visit("program", m.program);
  visit("ending_value", m.ending.value);
  visit("core_dumped", m.ending.core_dumped);
  visit("out_of_memory", m.ending.out_of_memory);
  visit("round", m.round);
  visit("after_ms", m.after);
  visit("job_time_ms", m.job_time);
  visit("message", m.message);
  visit("stderr_tail", m.stderr_tail);
  visit("stderr_file", m.stderr_file);
  visit("stderr_lost", m.stderr_lost, "");
  visit("gpu_faults", m.gpu_faults, "");
  visit("accused", m.accused, std::vector<int>());
  visit("is_own_error", m.is_own_error, false);
  visit("was_ending", m.was_ending, false);
  visit("was_ending_for_ms", m.was_ending_for, milliseconds(0));
  visit("killed_for", m.killed_for, "");
  visit("job_time_error_ms", m.job_time_error, milliseconds(0));
  visit("missed_a_peer", m.missed_a_peer, false);
  visit("runs_python", m.runs_python, false);
}

// --- values that other nodes compute with ---

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high) refuse(name, "is out of range");
}

constexpr std::int64_t kWaitMax = std::int64_t{366} * 24 * 3600 * 1000;
constexpr std::size_t kNameBytesMax = 256;
constexpr int kExitCodeMax = 255;  // more would be cut, and 256 be taken for success
constexpr int kErrnoMax = 4095;

void check_count(const char* name, std::int64_t value) { check_range(name, value, 0, kCountMax); }
void check_port(std::uint16_t port) { check_range("port", port, 1, 0xffff); }
void check_time(const char* name, milliseconds time) { check_range(name, time.count(), 0, kMillisecondsMax); }
void check_time(const char* name, const std::optional<milliseconds>& time) {
  if (time) check_time(name, *time);
}
void check_wait(const char* name, milliseconds time) { check_range(name, time.count(), 0, kWaitMax); }

// A success would be that of the job.
void check_failed(const char* name, const std::optional<int>& exit_code) {
  if (exit_code) check_range(name, *exit_code, 1, kExitCodeMax);
}

void check_unix_seconds(const char* name, std::uint64_t time) {
  check_range(name, static_cast<std::int64_t>(time), 0, kUnixSecondsMax);
}

void check_name(const char* name, const std::string& text) {
  if (text.size() > kNameBytesMax) refuse(name, "is too long");
}

// Other nodes connect to this address, and the store accepts connections from it.
void check_address(const char* name, const std::string& text) {
  if (!base::parse_address(text)) refuse(name, "is no address");
}

// Workers look it up.
void check_host(const char* name, const std::string& text) {
  if (!text.empty() && !base::is_host(text)) refuse(name, "is neither an address nor the name of a host");
}

void check_ranks(const std::vector<int>& ranks) {
  if (ranks.size() > kHungRanksMax) refuse("hung_ranks", "is too long");
  for (const int rank : ranks) check_count("hung_ranks", rank);
}

// A node's key, or the nonce of a round.
void check_secret(const char* name, const std::string& text) {
  if (!base::is_random_key(text)) refuse(name, "is not 32 hexadecimal digits");
}

// Each message has a check, be it an empty one: those without one do not compile. The kinds of fields have theirs
// above: a text, for example, holds no control character.

void check(const Hello& m) {
  check_range("version", m.versions.low, 1, kVersionMax);
  check_range("version_max", m.versions.high, m.versions.low, kVersionMax);
  check_name("run_id", m.run_id);
  check_name("host_name", m.host_name);
  check_name("role", m.role);
  check_name("slurm_run", m.slurm_run);
  check_host("local_address", m.local_address);
  check_range("workers", m.workers, 1, kWorkersMax);
  check_range("highest_round", m.highest_round, -1, kRoundWithLogsMax);
  check_unix_seconds("started", m.started);
  check_range("nodes_max", m.nodes_max, 1, kNodesMax);
  check_range("nodes_min", m.nodes_min, 1, m.nodes_max);
  check_count("restarts_max", m.restarts_max);
  check_wait("restart_window_ms", m.restart_window);
  check_wait("join_timeout_ms", m.join_timeout);
  check_wait("last_call_timeout_ms", m.last_call_timeout);
  if (m.heartbeat_timeout) check_wait("heartbeat_timeout_ms", *m.heartbeat_timeout);
  check_wait("grace_ms", m.grace);
  if (m.node_rank) check_range("node_rank", *m.node_rank, 0, kNodesMax - 1);
  check_secret("node_key", m.node_key);
  for (const auto& address : m.addresses) check_address("addresses", address);
}

void check(const SpentRestarts& m) {
  check_wait("age_ms", m.age);
  check_range("count", m.count, 1, kCountMax);
}

void check(const Held& m) {
  check_range("group_world_size", m.group_world_size, 1, kNodesMax);
  check_range("group_rank", m.group_rank, 0, m.group_world_size - 1);
  check_count("restart_count", m.restart_count);
  if (m.nonces.size() > kNoncesMax) refuse("nonces", "is too long");
  for (const auto& nonce : m.nonces) check_secret("nonces", nonce);
  check_unix_seconds("job_started", m.job_started);
  if (m.stop_call) check_range("stop_call", static_cast<std::int64_t>(*m.stop_call), 1, kStepMax);
  if (m.host_group_rank) check_range("host_group_rank", *m.host_group_rank, 0, m.group_world_size - 1);
  if (!m.endpoint_address.empty()) check_address("endpoint_address", m.endpoint_address);
}

void check(const EndedNode& m) {
  check_secret("node_key", m.node_key);
  check_range("group_world_size", m.group_world_size, 1, kNodesMax);
  check_range("group_rank", m.group_rank, 0, m.group_world_size - 1);
  check_secret("nonce", m.nonce);
}

void check(const StoreOpened& m) { check_port(m.port); }
void check(const RoundStarted&) {}
void check(const FirstStep&) {}
void check(const RoundFailed& m) { check_ranks(m.hung_ranks); }

void check(const RoundEnded& m) {
  check_range("stopped", m.stopped, 0, kWorkersMax);
  check_range("stopped_at_step", m.stopped_at_step, 0, kWorkersMax);
  if (m.signal_number) check_range("signal_number", *m.signal_number, 1, kSignalMax);
  check_time("kept_at_ms", m.progress.kept_at);
  if (m.unreached.size() > kUnreachedMax) refuse("unreached", "is too long");
  for (const int rank : m.unreached) check_count("unreached", rank);
}

void check(const StopAsked& m) {
  check_range("signal_number", m.signal_number, 1, kSignalMax);
  check_time("time_limit_ms", m.time_limit);
}
void check(const StopReady&) {}
void check(const Leaving& m) { check_failed("exit_code", m.exit_code); }
void check(const TimeAsked&) {}
void check(const LinksWork&) {}
void check(const CheckLinks&) {}
void check(const HostLeaves& m) {
  if (m.gone.size() > kLeaversMax) refuse("gone", "is too long");
  for (const int rank : m.gone) check_range("gone", rank, 0, kNodesMax - 1);
  check_failed("exit_code", m.exit_code);
}
void check(const TimeTold& m) { check_time("job_time_ms", m.job_time); }

void check(const FailureReport& m) {
  using Kind = Ending::Kind;
  const auto kind = m.ending.kind;
  check_range("ending_value", m.ending.value, kind == Kind::killed ? 1 : 0,
              kind == Kind::killed   ? kSignalMax
              : kind == Kind::exited ? kExitCodeMax
                                     : kErrnoMax);
  check_count("rank", m.rank);
  check_range("local_rank", m.local_rank, 0, kWorkersMax - 1);
  check_name("host", m.host);
  check_time("after_ms", m.after);
  check_time("job_time_error_ms", m.job_time_error);
  check_time("was_ending_for_ms", m.was_ending_for);
  if (m.stderr_tail.size() > kStderrLinesMax) refuse("stderr_tail", "is too long");
  if (m.accused.size() > kAccusedMax) refuse("accused", "is too long");
  if (m.killed_for.size() > kKilledForBytesMax) refuse("killed_for", "is too long");
  check_name("stderr_lost", m.stderr_lost);
}

void check(const Welcome& m) {
  check_time("job_time_ms", m.job_time);
  check_range("version_min", m.versions.low, 1, kVersionMax);
  check_range("version_max", m.versions.high, m.versions.low, kVersionMax);
  check_range("version", m.version, m.versions.low, m.versions.high);
}

void check(const Elsewhere& m) {
  check_address("address", m.address);
  check_port(m.port);
}

void check(const Successor& m) {
  check_range("group_rank", m.group_rank, 0, kNodesMax - 1);
  check_address("address", m.address);
  check_port(m.port);
}

void check(const Refused&) {}

void check(const OpenStore& m) {
  for (const auto& address : m.allow) check_address("allow", address);
}

void check(const StartRound& m) {
  check_range("group_world_size", m.group_world_size, 1, kNodesMax);
  check_range("group_rank", m.group_rank, 0, m.group_world_size - 1);
  check_range("world_size", m.world_size, m.group_world_size, kCountMax);
  check_range("rank_first", m.rank_first, 0, m.world_size - 1);
  check_range("role_world_size", m.role_world_size, 1, m.world_size);
  check_range("role_rank_first", m.role_rank_first, 0, m.role_world_size - 1);
  check_count("restart_count", m.restart_count);
  check_count("restarts_max", m.restarts_max);
  check_host("master_address", m.master_address);
  check_range("master_port", m.master_port, 1, 0xffff);
  check_unix_seconds("job_started", m.job_started);
  for (const auto& successor : m.successors) check_range("group_rank", successor.group_rank, 0, m.group_world_size - 1);
  if (m.host_group_rank) check_range("host_group_rank", *m.host_group_rank, 0, m.group_world_size - 1);
  if (!m.host_node_key.empty()) check_secret("host_node_key", m.host_node_key);
  if (!m.nonce.empty()) check_secret("nonce", m.nonce);
}

// Of an agent with so many workers, which it alone knows.
void check_share(const StartRound& m, int workers) {
  check_range("rank_first", m.rank_first, 0, m.world_size - workers);
  check_range("role_rank_first", m.role_rank_first, 0, m.role_world_size - workers);
}

void check(const RoundEstablished&) {}
void check(const PrepareStop&) {}

void check(const StopAt& m) {
  check_range("call", static_cast<std::int64_t>(m.call), 1, kStepMax);
  check_range("signal_number", m.signal_number, 0, kSignalMax);
}

void check(const StopRound& m) {
  if (!m.proof.empty()) check_secret("proof", m.proof);
  check_range("signal_number", m.signal_number, 1, kSignalMax);
  check_ranks(m.hung_ranks);
}

void check(const FinishJob& m) {
  if (m.seen_first) check_count("seen_first", *m.seen_first);
  check_range("exit_code", m.exit_code, 0, kExitCodeMax);
  check_count("stopped", m.stopped);
  check_count("world_size", m.world_size);
  check_count("restarts_max", m.restarts_max);
}

void check(const RoundTimes& m) {
  check_range("nodes", m.nodes, 0, kNodesMax);
  check_count("world_size", m.world_size);
  check_time("detect_ms", m.detect);
  check_time("stop_ms", m.stop);
  check_time("rendezvous_ms", m.rendezvous);
  check_time("start_ms", m.start);
  check_time("first_step_ms", m.first_step);
  check_time("worked_ms", m.worked);
  check_time("lost_ms", m.lost);
}

void check(const RunReport& m) {
  check_time("total_ms", m.total);
  check_time("worked_ms", m.worked);
  check_time("useful_ms", m.useful);
  check_count("rounds_count", m.rounds_count);
}

template <class Part>
void read_fields(const JsonValue& object, Part& out) {
  fields(out, [&](const char* name, auto& value, auto... if_absent) {
    if constexpr (sizeof...(if_absent) > 0)
      if (object.find(name) == nullptr) return void(((value = if_absent), ...));
    read(object, name, value);
  });
}

template <class Part>
void write_fields(std::string& object, const Part& part) {
  // What fields() may change is not changed here.
  fields(const_cast<Part&>(part),
         [&](const char* name, const auto& value, const auto&...) { write(object, name, value); });
}

template <class Part>
void read_part(const JsonValue& object, Part& out) {
  if (!std::holds_alternative<JsonObject>(object.content)) throw Error("malformed message: a part of it is no object");
  read_fields(object, out);
  check(out);
}

template <class Part>
void append_part(std::string& out, const Part& part) {
  out += '{';
  write_fields(out, part);
  out += '}';
}

void read(const JsonValue& object, Successor& out) { read_part(object, out); }
void read(const JsonValue& object, SpentRestarts& out) { read_part(object, out); }
void read(const JsonValue& object, Held& out) { read_part(object, out); }
void read(const JsonValue& object, EndedNode& out) { read_part(object, out); }
void read(const JsonValue& object, Elsewhere& out) { read_part(object, out); }
void read(const JsonValue& object, RoundTimes& out) { read_part(object, out); }
void read(const JsonValue& object, RunReport& out) { read_part(object, out); }
void append(std::string& out, const Successor& successor) { append_part(out, successor); }
void append(std::string& out, const SpentRestarts& restarts) { append_part(out, restarts); }
void append(std::string& out, const Held& held) { append_part(out, held); }
void append(std::string& out, const EndedNode& node) { append_part(out, node); }
void append(std::string& out, const Elsewhere& there) { append_part(out, there); }
void append(std::string& out, const RoundTimes& round) { append_part(out, round); }
void append(std::string& out, const RunReport& report) { append_part(out, report); }

void read(const JsonValue& object, FailureReport& out) {
  if (!std::holds_alternative<JsonObject>(object.content)) throw Error("malformed message: a failure is no object");
  read(object, "ending", out.ending.kind);
  read_fields(object, out);
  check(out);
}

void append(std::string& out, const FailureReport& failure) {
  out += '{';
  write(out, "ending", static_cast<int>(failure.ending.kind));
  write_fields(out, failure);
  out += '}';
}

// --- the names of messages, by the type of each: no order to keep ---

template <class Message>
constexpr const char* kNameOf = nullptr;
template <>
constexpr const char* kNameOf<Hello> = "hello";
template <>
constexpr const char* kNameOf<StoreOpened> = "store_opened";
template <>
constexpr const char* kNameOf<RoundStarted> = "round_started";
template <>
constexpr const char* kNameOf<FirstStep> = "first_step";
template <>
constexpr const char* kNameOf<RoundFailed> = "round_failed";
template <>
constexpr const char* kNameOf<RoundEnded> = "round_ended";
template <>
constexpr const char* kNameOf<StopAsked> = "stop_asked";
template <>
constexpr const char* kNameOf<StopReady> = "stop_ready";
template <>
constexpr const char* kNameOf<Leaving> = "leaving";
template <>
constexpr const char* kNameOf<TimeAsked> = "time_asked";
template <>
constexpr const char* kNameOf<LinksWork> = "links_work";
template <>
constexpr const char* kNameOf<CheckLinks> = "check_links";
template <>
constexpr const char* kNameOf<Welcome> = "welcome";
template <>
constexpr const char* kNameOf<Elsewhere> = "elsewhere";
template <>
constexpr const char* kNameOf<Refused> = "refused";
template <>
constexpr const char* kNameOf<OpenStore> = "open_store";
template <>
constexpr const char* kNameOf<StartRound> = "start_round";
template <>
constexpr const char* kNameOf<RoundEstablished> = "round_established";
template <>
constexpr const char* kNameOf<PrepareStop> = "prepare_stop";
template <>
constexpr const char* kNameOf<StopAt> = "stop_at";
template <>
constexpr const char* kNameOf<StopRound> = "stop_round";
template <>
constexpr const char* kNameOf<FinishJob> = "finish_job";
template <>
constexpr const char* kNameOf<HostLeaves> = "host_leaves";
template <>
constexpr const char* kNameOf<TimeTold> = "time_told";

template <class Variant>
constexpr bool are_names_distinct() {
  return []<std::size_t... Is>(std::index_sequence<Is...>) {
    const std::string_view names[] = {kNameOf<std::variant_alternative_t<Is, Variant>>...};
    for (std::size_t i = 0; i < std::size(names); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (names[i] == names[j]) return false;
    return true;
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
}
static_assert(are_names_distinct<ToMembership>() && are_names_distinct<ToAgent>(), "two messages with one name");

constexpr std::size_t kTextBytesUsual = 512;

template <class Variant>
std::string text_of(const Variant& message) {
  std::string out;
  out.reserve(kTextBytesUsual);
  std::visit(
      [&]<class Message>(const Message& content) {
        static_assert(kNameOf<Message> != nullptr, "a message without a name");
        out.append("{\"type\":\"").append(kNameOf<Message>).append("\"");
        write_fields(out, content);
      },
      message);
  return out + '}';
}

template <class Variant>
std::optional<Variant> message_of(std::string_view json) {
  if (base::is_nested_deeper(json, kDepthMax)) throw Error("malformed message: it is nested too deep");
  const auto whole = parse_json(json);
  if (!whole || !std::holds_alternative<JsonObject>(whole->content)) throw Error("malformed message: no JSON object");
  const auto& object = *whole;
  std::string type;
  read(object, "type", type);
  Variant out;
  bool found = false;
  [&]<std::size_t... Is>(std::index_sequence<Is...>) {
    ((type == kNameOf<std::variant_alternative_t<Is, Variant>> ? (found = true, out.template emplace<Is>(), void())
                                                               : void()),
     ...);
  }
  (std::make_index_sequence<std::variant_size_v<Variant>>());
  if (!found) return {};
  std::visit([&](auto& content) { read_fields(object, content); }, out);
  std::visit([](const auto& content) { check(content); }, out);
  return out;
}

}  // namespace

std::string to_json(const ToMembership& message) { return text_of(message); }
std::string to_json(const ToAgent& message) { return text_of(message); }
std::optional<ToMembership> to_membership_of(std::string_view json) { return message_of<ToMembership>(json); }
std::optional<ToAgent> to_agent_of(std::string_view json, int workers) {
  auto message = message_of<ToAgent>(json);
  if (const auto* start = message ? std::get_if<StartRound>(&*message) : nullptr) check_share(*start, workers);
  return message;
}

}  // namespace ddp::rendezvous
