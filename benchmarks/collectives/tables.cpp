#include "benchmarks/collectives/tables.hpp"

#include <algorithm>

namespace ddp::benchmarks {

namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr double kLevel = 1.05;  // "level": what one run can tell from equal

const Column kZ{"Z", "zero-copy"};
const Column kRegistered{"ours, registered", "ours", "registered"};
const Column kPlain{"ours, plain", "ours", "plain"};
const Column kOpenMpi{"Open MPI", "Open MPI"};
const Column kOpenMpiTuned{"Open MPI tuned", "Open MPI tuned"};
const Column kMpich{"MPICH tuned", "MPICH tuned"};
const Column kGlooRing{"Gloo ring", "Gloo ring"};
const Column kGlooBcube{"Gloo bcube", "Gloo bcube"};
const Column kTorch{"torch Gloo", "torch"};

std::string size_name(std::size_t bytes) {
  if (bytes >= kMiB) return std::to_string(bytes / kMiB) + " MiB";
  if (bytes >= kKiB) return std::to_string(bytes / kKiB) + " KiB";
  return std::to_string(bytes) + " B";
}

Table all_reduce_table() {
  Table out{"all_reduce",
            "All-reduce in place, two ranks, rewritten before each call",
            2,
            {kZ, kRegistered, kPlain, kOpenMpi, kOpenMpiTuned, kMpich, kGlooRing, kGlooBcube, kTorch},
            {}};
  for (const std::size_t bytes : {64 * kKiB, kMiB, 4 * kMiB, 25 * kMiB, 100 * kMiB, 256 * kMiB}) {
    Row row{size_name(bytes), "all_reduce", bytes};
    row.targets.push_back({kRegistered.label, bytes < kMiB ? 2 : 1.3, {kZ.label}});
    if (bytes >= 4 * kMiB)
      row.targets.push_back({kPlain.label, bytes <= 100 * kMiB ? 0.8 : 0.85, {kOpenMpiTuned.label}});
    out.rows.push_back(row);
  }
  return out;
}

Table small_table() {
  Table out{"small",
            "Small messages, two ranks, back to back",
            2,
            {kZ, kRegistered, kPlain, kOpenMpi, kMpich, kGlooBcube, kTorch},
            {}};
  const std::vector<Target> level = {{kRegistered.label, kLevel, {kOpenMpi.label}},
                                     {kPlain.label, kLevel, {kOpenMpi.label}}};
  out.rows.push_back({"4 B", "all_reduce", 4, Pace::in_a_row, level});
  out.rows.push_back({"1 KiB", "all_reduce", kKiB, Pace::in_a_row, level});
  out.rows.push_back({"barrier", "barrier", 0, Pace::in_a_row, {level.back()}});
  return out;
}

Table crowded_barrier_table() {
  const std::vector<std::string> loop = {"yield loop"};
  return {"barrier4",
          "Barrier, four ranks on two cores",
          4,
          {{"yield loop", "yield loop"}, {"ours", "ours"}, kOpenMpi},
          {{"back to back", "barrier", 0, Pace::in_a_row, {{"ours", 1.2, loop}}},
           {"each call", "barrier", 0, Pace::each_call, {{"ours", 4, loop, true}}}}};
}

Table tcp_table() {
  const std::vector<std::string> gloo = {kGlooRing.label, kGlooBcube.label};
  const Column two_hosts{"ours, plain", "ours on two hosts", "plain"};
  const Column two_hosts_registered{"ours, registered", "ours on two hosts", "registered"};
  return {"tcp",
          "All-reduce by TCP on loopback, two ranks that take each other for different hosts",
          2,
          {{"bare sockets", "bare sockets"},
           two_hosts,
           two_hosts_registered,
           kGlooRing,
           kGlooBcube,
           {"Open MPI TCP", "Open MPI tuned TCP"},
           {"MPICH TCP", "MPICH tuned TCP"},
           kTorch},
          {{"4 B", "all_reduce", 4, Pace::in_a_row, {{two_hosts.label, 6}}},
           {"64 KiB", "all_reduce", 64 * kKiB, Pace::fresh, {{two_hosts.label, 30}}},
           {"25 MiB", "all_reduce", 25 * kMiB, Pace::fresh, {{two_hosts.label, kLevel, gloo}}},
           {"100 MiB", "all_reduce", 100 * kMiB, Pace::fresh, {{two_hosts.label, 0.9, gloo}}}}};
}

Table moves_table() {
  const Column copy{"copy", "zero-copy"};
  Table out{"moves",
            "Beside the bare copy of what must move, two ranks, rewritten before each call",
            2,
            {copy, kRegistered, kPlain, kOpenMpiTuned, kMpich, kGlooRing, kTorch},
            {}};
  for (const std::size_t bytes : {25 * kMiB, 100 * kMiB}) {
    const std::vector<Target> target = {{kRegistered.label, 1.3, {copy.label}}};
    out.rows.push_back({"all_gather " + size_name(bytes), "all_gather", bytes, Pace::fresh, target});
    out.rows.push_back({"broadcast " + size_name(bytes), "broadcast", bytes, Pace::fresh, target});
    // Two parts are read and one is written, where a copy reads one.
    out.rows.push_back({"reduce_scatter " + size_name(bytes), "reduce_scatter", bytes, Pace::fresh, target, 1.5});
  }
  return out;
}

Table growth_table(int ranks) {
  Table out{"growth",
            "All-reduce, " + std::to_string(ranks) + " ranks on two cores; Z is two processes that sum all buffers",
            ranks,
            {kZ, kRegistered, kPlain, kOpenMpiTuned},
            {}};
  for (const std::size_t bytes : {64 * kKiB, 4 * kMiB, 25 * kMiB}) {
    out.rows.push_back({size_name(bytes), "all_reduce", bytes});
  }
  return out;
}

}  // namespace

std::vector<Table> all_tables() {
  return {all_reduce_table(), small_table(),   crowded_barrier_table(), tcp_table(),     moves_table(),
          growth_table(2),    growth_table(4), growth_table(8),         growth_table(16)};
}

std::vector<Table> quick_tables() {
  auto out = all_tables();
  for (Table& table : out) {
    std::erase_if(table.columns, [&](const Column& column) {
      return column.side == "torch" || column.side == "MPICH tuned" ||
             (column.side == "Open MPI" && table.key == "all_reduce") ||
             (column.side.starts_with("Gloo") && table.key != "tcp");
    });
    std::erase_if(table.rows, [](const Row& row) { return row.bytes > 100 * kMiB; });
  }
  return out;
}

}  // namespace ddp::benchmarks
