#include "worker_runtime/flight_recorder/group_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

#include "base/host_name.hpp"
#include "base/with_limit.hpp"
#include "worker_runtime/files/process_log.hpp"
#include "worker_runtime/flight_recorder/dump.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"

namespace ddp::flight_recorder {

namespace {

using process_group::Collective;
using process_group::CollectiveKind;

// A local disk takes milliseconds. Other ranks and the user wait for the error that names the file.
constexpr std::chrono::seconds kWriteLimit{5};

std::string line(const std::string& text) { return "\nlook:  " + text; }

std::string write(Snapshot&& all, const GroupStatus& own, const std::string& reason) {
  const GroupFacts& facts = own.facts;
  const auto rank = static_cast<std::size_t>(facts.rank) < facts.ranks.size()
                        ? facts.ranks[static_cast<std::size_t>(facts.rank)]
                        : facts.rank;
  const Files files = files_of(present_place(), facts.round, rank, ::geteuid());
  if (files.pickle.empty()) return "";
  const DumpFacts dump{rank, facts.round, ::getpid(), base::host_name(), reason, now()};
  const auto result = base::run_with_limit(
      kWriteLimit,
      [files, dump, snapshot = of_round(std::move(all), own.round_count), log = process_log::kept()]() -> std::string {
        try {
          write_files(files, to_json(snapshot, dump), to_pickle(snapshot, dump), log);
        } catch (const std::exception& error) {
          return line(std::string("nothing: the flight recorder's file is missing (") + error.what() +
                      "); DDP_FLIGHT_RECORDER=PREFIX names another place");
        }
        return line(files.json);
      });
  return result.value_or(line("nothing yet: writing " + files.json + " takes longer than " +
                              std::to_string(kWriteLimit.count()) +
                              " s; DDP_FLIGHT_RECORDER=PREFIX names another place"));
}

}  // namespace

Operation operation_of(const Collective& collective) {
  Operation operation{.name = name_of(collective.kind),
                      .type = collective.output.count > 0 ? collective.output.type : collective.input.type,
                      .input_count = collective.input.count,
                      .output_count = collective.output.count,
                      .timeout = collective.timeout};
  if (collective.kind == CollectiveKind::barrier) return operation;
  operation.element_bytes = size_of(operation.type);
  switch (collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::reduce_scatter_v: operation.reduce_op = process_group::name_of(collective.op); break;
    case CollectiveKind::reduce: operation.reduce_op = process_group::name_of(collective.op); [[fallthrough]];
    case CollectiveKind::broadcast:
    case CollectiveKind::gather:
    case CollectiveKind::scatter: operation.root = collective.root; break;
    case CollectiveKind::send:
    case CollectiveKind::receive: operation.peer = collective.root; break;
    default: break;
  }
  return operation;
}

Operation allocation_of(std::size_t bytes, std::chrono::milliseconds timeout) {
  return {.name = name_of(CollectiveKind::allocate),
          .input_count = bytes,
          .output_count = bytes,
          .element_bytes = 1,
          .timeout = timeout};
}

std::string GroupLog::write_failure(const std::string& reason) const noexcept {
  try {
    Snapshot all = recorder_.snapshot();
    const auto own = std::find_if(all.groups.begin(), all.groups.end(),
                                  [this](const GroupStatus& group) { return group.id == id_; });
    if (own == all.groups.end()) return "";
    const GroupStatus status = *own;
    process_log::log({"group_failed",
                      base::LogFields()
                          .add("backend", status.facts.backend)
                          .add("group", status.facts.name)
                          .add("why", reason.substr(0, reason.find('\n'))),
                      base::LogLevel::error});
    return write(std::move(all), status, reason);
  } catch (...) {
    return "";  // no memory for so much: the error itself is what counts
  }
}

std::string write_process_failure(const std::string& reason) noexcept {
  try {
    Snapshot all = process_recorder().snapshot();
    if (all.groups.empty()) return "";
    const GroupStatus newest = all.groups.back();
    process_log::log(
        {"process_fails", base::LogFields().add("why", reason.substr(0, reason.find('\n'))), base::LogLevel::error});
    return write(std::move(all), newest, reason);
  } catch (...) {
    return "";
  }
}

}  // namespace ddp::flight_recorder
