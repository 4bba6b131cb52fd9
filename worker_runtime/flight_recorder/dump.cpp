#include "worker_runtime/flight_recorder/dump.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "worker_runtime/flight_recorder/json_writer.hpp"
#include "worker_runtime/flight_recorder/pickle_writer.hpp"

namespace ddp::flight_recorder {

namespace {

constexpr const char* kVersion = "2.10";  // of PyTorch's form; the analyser looks at it

// A group as the dump speaks of it.
struct DumpedGroup {
  const GroupStatus* status = nullptr;
  std::int64_t number = 0;  // in the dump
  std::string name;         // no other group of the dump has it
};

using Groups = std::map<GroupId, DumpedGroup>;

Groups groups_of(const Snapshot& snapshot) {
  Groups groups;
  for (const GroupStatus& status : snapshot.groups) {
    const auto number = static_cast<std::int64_t>(groups.size());
    groups[status.id] = {&status, number, status.facts.backend + ":" + status.facts.name};
  }
  return groups;
}

std::uint64_t first_record_of(const Snapshot& snapshot) {
  return snapshot.groups.empty() ? 0 : snapshot.groups.front().first_record_of_round;
}

std::string python_list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return "[" + text + "]";
}

std::string_view torch_name(const Operation& operation) {
  const std::string_view name = operation.name;
  if (name == "receive") return "recv";
  if (name == "all_gather_v") return "all_gather";  // PyTorch has one name, whatever the counts
  if (name == "reduce_scatter_v") return "reduce_scatter";
  if (name == "all_to_all_v") return "all_to_all";
  if (name == "allocate") return "new_window";  // also memory that all ranks make together
  return name;
}

// The analyser takes no other library than those it knows; "c10d" stands for one that could not be told.
std::string profiling_name(const Operation& operation, const GroupFacts& facts) {
  std::string text = facts.backend == "nccl" ? "nccl:" : "c10d:";
  const std::string_view name = operation.name;
  // As PyTorch's own NCCL backend records it: "barrier" is unknown to the analyser before PyTorch 2.15.
  text += facts.backend == "nccl" && name == "barrier" ? "all_reduce_barrier" : torch_name(operation);
  if (name == "send") text += " " + std::to_string(facts.rank) + "->" + std::to_string(operation.peer);
  if (name == "receive") text += " " + std::to_string(facts.rank) + "<-" + std::to_string(operation.peer);
  return text;
}

std::string_view torch_type(const Operation& operation) {
  const std::string_view type = name_of(operation.type);
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"float32", "Float"},
                                                                      {"float64", "Double"},
                                                                      {"float16", "Half"},
                                                                      {"bfloat16", "BFloat16"},
                                                                      {"int64", "Long"},
                                                                      {"int32", "Int"},
                                                                      {"uint8", "Byte"},
                                                                      {"int8", "Char"},
                                                                      {"bool", "Bool"},
                                                                      {"float8_e4m3fn", "Float8_e4m3fn"},
                                                                      {"float8_e5m2", "Float8_e5m2"}};
  if (std::string_view(operation.name) == "allocate") return "Byte";
  for (const auto& [ours, torchs] : kNames) {
    if (type == ours) return torchs;
  }
  return type;
}

// PyTorch has one tensor in both places of a call in place, of a send, and of a reduce on whatever rank; the analyser
// compares them between the ranks.
std::pair<std::uint64_t, std::uint64_t> torch_counts(const Operation& operation) {
  const std::string_view name = operation.name;
  if (name == "receive") return {operation.output_count, operation.output_count};
  if (name == "send" || name == "reduce") return {operation.input_count, operation.input_count};
  return {operation.input_count, operation.output_count};
}

const char* torch_state(const Entry& entry) {
  if (entry.state == State::completed) return "completed";
  return entry.started == TimePoint{} ? "scheduled" : "started";
}

const char* name_of(State state) {
  switch (state) {
    case State::scheduled: return "scheduled";
    case State::started: return "started";
    case State::completed: return "completed";
    case State::failed: return "failed";
    case State::refused: return "refused";
  }
  return "unknown";
}

// The same calls make either file.
template <class Writer>
class Document {
 public:
  Document(const Snapshot& snapshot, const DumpFacts& facts)
      : snapshot_(snapshot), facts_(facts), groups_(groups_of(snapshot)), first_record_(first_record_of(snapshot)) {}

  std::string write() {
    out_.begin_dict();
    text("version", kVersion);
    integer("rank", facts_.rank);
    text("comm_lib_version", library());
    libddp();
    pg_config();
    pg_status();
    entries("entries", false);
    entries("refused", true);
    out_.end_dict();
    return out_.finish();
  }

 private:
  void text(const char* key, std::string_view value) {
    out_.key(key);
    out_.text(value);
  }
  template <class Integer>
  void integer(const char* key, Integer value) {
    out_.key(key);
    out_.integer(static_cast<std::int64_t>(value));
  }
  void boolean(const char* key, bool value) {
    out_.key(key);
    out_.boolean(value);
  }
  void integer_or_none(const char* key, std::int64_t value, bool is_there) {
    out_.key(key);
    is_there ? out_.integer(value) : out_.none();
  }
  void time_or_none(const char* key, TimePoint time, bool is_there = true) {
    integer_or_none(key, time.time_since_epoch().count(), is_there && time != TimePoint{});
  }

  std::string library() const {
    for (const auto& [id, group] : groups_) {
      if (!group.status->facts.library.empty()) return group.status->facts.library;
    }
    return "";
  }

  void libddp() {
    out_.key("libddp");
    out_.begin_dict();
    text("round", to_string(facts_.round));
    text("host", facts_.host);
    integer("pid", facts_.pid);
    text("reason", facts_.reason);
    integer("time_ns", facts_.at.time_since_epoch().count());
    out_.end_dict();
  }

  void pg_config() {
    out_.key("pg_config");
    out_.begin_dict();
    for (const auto& [id, group] : groups_) {
      out_.key(group.name);
      out_.begin_dict();
      text("name", group.name);
      text("desc", group.status->facts.description);
      text("ranks", python_list(group.status->facts.ranks));
      out_.end_dict();
    }
    out_.end_dict();
  }

  void pg_status() {
    out_.key("pg_status");
    out_.begin_dict();
    for (const auto& [id, group] : groups_) {
      out_.key(std::to_string(group.number));
      out_.begin_dict();
      integer("last_enqueued_collective", group.status->last_scheduled);
      integer("last_started_collective", group.status->last_started);
      integer("last_completed_collective", group.status->last_completed);
      out_.end_dict();
    }
    out_.end_dict();
  }

  void entries(const char* key, bool are_refused) {
    out_.key(key);
    out_.begin_list();
    for (const Entry& entry : snapshot_.entries) {
      if ((entry.state == State::refused) == are_refused) write_entry(entry);
    }
    out_.end_list();
  }

  void write_entry(const Entry& entry) {
    const DumpedGroup& group = groups_.at(entry.group);
    const Operation& operation = entry.operation;
    const bool is_complete = entry.state == State::completed;
    out_.begin_dict();
    integer("record_id", entry.record - first_record_);
    integer("pg_id", group.number);
    out_.key("process_group");
    out_.begin_list();
    out_.text(group.name);
    out_.text(group.status->facts.description);
    out_.end_list();
    integer("collective_seq_id", entry.collective_sequence);
    integer("p2p_seq_id", entry.point_to_point_sequence);
    integer("op_id", entry.operation_number);
    text("profiling_name", profiling_name(operation, group.status->facts));
    integer("time_created_ns", entry.created.time_since_epoch().count());
    if (is_complete) {
      out_.key("duration_ms");
      out_.number(std::chrono::duration<double, std::milli>(entry.ended - entry.started).count());
    }
    const auto [input_count, output_count] = torch_counts(operation);
    ranges("input_sizes", "input_dtypes", operation, input_count);
    ranges("output_sizes", "output_dtypes", operation, output_count);
    text("state", torch_state(entry));
    time_or_none("time_discovered_started_ns", entry.started);
    time_or_none("time_discovered_completed_ns", entry.ended, is_complete);
    boolean("retired", entry.ended != TimePoint{});
    integer("timeout_ms", operation.timeout.count());
    boolean("is_p2p", entry.is_point_to_point);
    out_.key("frames");
    out_.begin_list();
    out_.end_list();
    own(entry);
    out_.end_dict();
  }

  // What PyTorch's form has no place for.
  void own(const Entry& entry) {
    const Operation& operation = entry.operation;
    text("operation", operation.name);
    text("outcome", name_of(entry.state));
    time_or_none("time_ended_ns", entry.ended);
    integer("bytes_in", operation.input_count * operation.element_bytes);
    integer("bytes_out", operation.output_count * operation.element_bytes);
    integer_or_none("root", operation.root, operation.root >= 0);
    integer_or_none("peer", operation.peer, operation.peer >= 0);
    out_.key("reduce_op");
    operation.reduce_op == nullptr ? out_.none() : out_.text(operation.reduce_op);
  }

  void ranges(const char* sizes, const char* types, const Operation& operation, std::uint64_t count) {
    const bool has_elements = operation.element_bytes > 0;
    out_.key(sizes);
    out_.begin_list();
    if (has_elements) {
      out_.begin_list();
      out_.integer(static_cast<std::int64_t>(count));
      out_.end_list();
    }
    out_.end_list();
    out_.key(types);
    out_.begin_list();
    if (has_elements) out_.text(torch_type(operation));
    out_.end_list();
  }

  Writer out_;
  const Snapshot& snapshot_;
  const DumpFacts& facts_;
  Groups groups_;
  std::uint64_t first_record_;
};

}  // namespace

Snapshot of_round(Snapshot snapshot, std::uint64_t round_count) {
  const auto is_of_another = [&](const GroupStatus& group) { return group.round_count != round_count; };
  if (std::erase_if(snapshot.groups, is_of_another) == 0) return snapshot;
  std::erase_if(snapshot.entries, [&](const Entry& entry) {
    return std::none_of(snapshot.groups.begin(), snapshot.groups.end(),
                        [&](const GroupStatus& group) { return group.id == entry.group; });
  });
  return snapshot;
}

std::string to_json(const Snapshot& snapshot, const DumpFacts& facts) {
  return Document<JsonWriter>(snapshot, facts).write();
}

std::string to_pickle(const Snapshot& snapshot, const DumpFacts& facts) {
  return Document<PickleWriter>(snapshot, facts).write();
}

}  // namespace ddp::flight_recorder
