// Collectives beside the floor and beside what else there is, in turn within one run:
//
//   Z                  the zero-copy kernel (benchmarks/common/sides/zero_copy.hpp): the floor that ratios are to
//   ours               registered memory, and plain memory
//   bare sockets       by TCP alone: two processes, one connection, nothing checked
//   Open MPI, MPICH    by default, and "tuned": with malloc told to keep their temporaries, which is the fair one
//   Gloo               its C++ library with a vectorised sum and SCHED_BATCH, its two algorithms
//   torch Gloo         torch.distributed; DDP_TEST_PYTHON names a Python that has it, else build/interop/venv
// What is not installed is left out, and a line says so.
//
// A figure is the time of the slowest rank, its median over the calls of a round, and of the rounds the median again.
// In a round all sides take turns; the ratios are taken within a round. Beside each target stands the ratio of the
// fastest calls too, which a busy machine disturbs least. Results are checked once for each row. Ranks are kept to two
// cores. Nothing here fails because of a time: what misses its target is printed as "missed".
//
//   collectives_benchmark [--rows=KEY,..] [--sides=SIDE,..] [--rounds=N] [--json=FILE] [--quick]
//   rows:  all_reduce small barrier4 tcp moves growth           default: all
//   sides: the first letters of sides' names; the floors are always there  default: all
//   quick: 2 rounds, without the sides that take long and without the largest buffers
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/collectives/catalogue.hpp"
#include "benchmarks/collectives/measured.hpp"
#include "benchmarks/collectives/our_side.hpp"
#include "benchmarks/collectives/socket_side.hpp"
#include "benchmarks/collectives/tables.hpp"
#include "benchmarks/common/measure.hpp"
#include "benchmarks/common/sides/zero_copy.hpp"

namespace {

using namespace ddp::benchmarks;

constexpr int kExitWrongUse = 2;
// Long beside the clock's own cost, short beside a time slice: on a busy machine some batches still run undisturbed.
constexpr double kBatchNs = 200e3;
constexpr std::chrono::milliseconds kTurnLimit{500};

struct Options {
  std::vector<std::string> rows{};
  std::vector<std::string> sides{};
  int rounds = 5;
  std::string json{};
  bool is_quick = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) out.push_back(part);
  return out;
}

Options options_of(int argc, char** argv) {
  Options out;
  bool has_rounds = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&](const char* name) { return word.substr(std::string(name).size()); };
    if (word == "--quick") {
      out.is_quick = true;
    } else if (word.starts_with("--rows=")) {
      out.rows = split(value("--rows="));
    } else if (word.starts_with("--sides=")) {
      out.sides = split(value("--sides="));
    } else if (word.starts_with("--json=")) {
      out.json = value("--json=");
    } else if (word.starts_with("--rounds=") && std::atoi(value("--rounds=").c_str()) > 0) {
      out.rounds = std::atoi(value("--rounds=").c_str());
      has_rounds = true;
    } else {
      std::fprintf(stderr,
                   "error: '%s' is no option\nwhere: argument %d\ntry:   collectives_benchmark --rows=all_reduce,small "
                   "--sides=ours,Open --rounds=3 --json=FILE --quick\n",
                   word.c_str(), i);
      std::exit(kExitWrongUse);
    }
  }
  if (out.is_quick && !has_rounds) out.rounds = 2;
  return out;
}

// So that figures of one machine and another are of the same thing. Children inherit it.
void keep_to_two_cores() {
  cpu_set_t all{}, two{};
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  for (std::size_t cpu = 0, taken = 0; cpu < CPU_SETSIZE && taken < 2; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &two), ++taken;
  }
  ::sched_setaffinity(0, sizeof two, &two);
}

// The batches of the request, in parts; fewer where they take far longer than they should, as on a busy machine.
std::vector<double> measure_in_parts(SideProcesses& side, Request request, std::chrono::milliseconds limit) {
  const auto begin = std::chrono::steady_clock::now();
  const auto wanted = static_cast<std::size_t>(request.batches);
  request.batches = std::max(request.batches / 20, std::min(request.batches, 3));
  std::vector<double> out;
  do {
    const auto part = side.measure(request);
    out.insert(out.end(), part.begin(), part.end());
  } while (out.size() < wanted && std::chrono::steady_clock::now() - begin < limit);
  return out;
}

// How many batches of how many calls fill a turn.
Request request_for(const Row& row, const Column& column, double ns_of_a_call, bool is_quick) {
  const double turn_ns = is_quick ? 60e6 : 150e6;
  Request out{row.what, column.memory, row.bytes};
  if (row.pace == Pace::each_call) {
    out.meet = false;
    out.batches = static_cast<int>(std::clamp(turn_ns / ns_of_a_call, 100.0, 20000.0));
    return out;
  }
  out.fresh = row.pace == Pace::fresh;
  if (row.pace == Pace::in_a_row) out.calls = static_cast<int>(std::clamp(kBatchNs / ns_of_a_call, 1.0, 5000.0));
  out.batches = static_cast<int>(std::clamp(turn_ns / (ns_of_a_call * out.calls), 3.0, 500.0));
  return out;
}

// A few calls, the first of which is checked: how long a call takes.
double warm_up(SideProcesses& side, const Row& row, const Column& column) {
  Request request{row.what, column.memory, row.bytes, 4};
  request.fresh = request.check = row.what != "barrier";
  auto few = side.measure(request);
  if (row.pace != Pace::fresh) {
    request.fresh = request.check = false;
    request.batches = 20;
    request.calls = 50;
    few = measure_in_parts(side, request, kTurnLimit);
  }
  return *std::min_element(few.begin(), few.end());
}

// The sides of one table, while it is measured.
class Sides {
 public:
  Sides(Catalogue& catalogue, const Table& table, std::set<std::string>& told) : told_(told) {
    for (const Column& column : table.columns) {
      if (side(column) != nullptr || gone_.count(column.side) != 0) continue;
      std::string why;
      const auto command = catalogue.command(column.side, table.ranks, why);
      if (!command) {
        leave_out(column.side, why);
        continue;
      }
      try {
        running_[column.side] = std::make_unique<SideProcesses>(*command);
      } catch (const SideFailure& failure) {
        leave_out(column.side, failure.what());
      }
    }
  }

  SideProcesses* side(const Column& column) {
    const auto found = running_.find(column.side);
    return found == running_.end() ? nullptr : found->second.get();
  }

  void leave_out(const std::string& name, const std::string& why) {
    running_.erase(name);
    gone_.insert(name);
    notes_.push_back(name + " is left out: " + why);
  }

  // Who was left out since the last time, where it was not said before.
  void print_notes() {
    for (const std::string& note : notes_) {
      if (told_.insert(note).second) std::printf("%s\n\n", note.c_str());
    }
    notes_.clear();
  }

  void release() {
    std::vector<std::pair<std::string, std::string>> failed;
    for (auto& [name, side] : running_) {
      try {
        side->release();
      } catch (const SideFailure& failure) {
        failed.emplace_back(name, failure.what());
      }
    }
    for (const auto& [name, why] : failed) leave_out(name, why);
  }

 private:
  std::map<std::string, std::unique_ptr<SideProcesses>> running_;
  std::set<std::string> gone_;
  std::vector<std::string> notes_;
  std::set<std::string>& told_;  // in all tables
};

void add_round(Figures& figures, std::vector<double> times, double factor) {
  for (double& ns : times) ns *= factor;
  std::sort(times.begin(), times.end());
  figures.least = figures.medians.empty() ? times.front() : std::min(figures.least, times.front());
  figures.medians.push_back(median(times));
  figures.p99s.push_back(times[times.size() * 99 / 100]);
}

MeasuredRow measure_row(Sides& sides, const Table& table, const Row& row, const Options& options) {
  MeasuredRow out{row, {}};
  std::map<std::string, Request> requests;
  const auto guarded = [&](const Column& column, const auto& action) {
    SideProcesses* const side = sides.side(column);
    if (side == nullptr) return;
    try {
      action(*side);
    } catch (const SideFailure& failure) {
      sides.leave_out(column.side, row.name + ": " + failure.what());
      out.of_column.erase(column.label);
      requests.erase(column.label);
    }
  };
  for (const Column& column : table.columns) {
    guarded(column, [&](SideProcesses& side) {
      requests[column.label] = request_for(row, column, warm_up(side, row, column), options.is_quick);
    });
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t turn = 0; turn < table.columns.size(); ++turn) {
      const auto who = (turn + static_cast<std::size_t>(round)) % table.columns.size();  // who comes first takes turns
      const Column& column = table.columns[who];
      if (requests.count(column.label) == 0) continue;
      guarded(column, [&](SideProcesses& side) {
        const bool is_floor = column.side == "zero-copy";
        add_round(out.of_column[column.label], measure_in_parts(side, requests.at(column.label), kTurnLimit),
                  is_floor ? row.floor_factor : 1);
      });
    }
  }
  sides.release();
  return out;
}

void print_row(const Table& table, const MeasuredRow& measured) {
  std::printf("| %s |", measured.row.name.c_str());
  const auto reference = measured.of_column.find(table.columns.front().label);
  for (const Column& column : table.columns) {
    const auto found = measured.of_column.find(column.label);
    if (found == measured.of_column.end()) {
      std::printf(" - |");
      continue;
    }
    std::printf(" %s", time_text(median(found->second.medians)).c_str());
    if (measured.row.pace == Pace::each_call) std::printf(", p99 %s", time_text(median(found->second.p99s)).c_str());
    if (found != reference && reference != measured.of_column.end()) {
      std::printf(" (%.2f)", ratio(found->second, reference->second));
    }
    std::printf(" |");
  }
  std::printf("\n");
  std::fflush(stdout);
}

nlohmann::json json_of(const Table& table, const MeasuredRow& measured) {
  nlohmann::json columns = nlohmann::json::object();
  for (const auto& [label, figures] : measured.of_column) {
    columns[label] = {
        {"ns_of_rounds", figures.medians}, {"p99_ns_of_rounds", figures.p99s}, {"least_ns", figures.least}};
  }
  return {{"table", table.key},        {"ranks", table.ranks},        {"row", measured.row.name},
          {"what", measured.row.what}, {"bytes", measured.row.bytes}, {"columns", columns}};
}

void print_verdicts(const std::vector<Verdict>& verdicts) {
  if (verdicts.empty()) return;
  std::printf("| | at most | measured | fastest calls | |\n| --- | --- | --- | --- | --- |\n");
  for (const Verdict& verdict : verdicts) {
    std::printf("| %s | %.2f %s | %.2f | %.2f | %s |\n", verdict.figure.c_str(), verdict.at_most, verdict.of.c_str(),
                verdict.measured, verdict.least, verdict.is_met ? "met" : "missed");
  }
}

void run_table(const Table& table, const Options& options, Catalogue& catalogue, std::set<std::string>& told,
               nlohmann::json& rows, nlohmann::json& targets) {
  std::printf("\n### %s\n\n", table.title.c_str());
  std::fflush(stdout);
  Sides sides(catalogue, table, told);
  sides.print_notes();
  std::string head = "| |", rule = "| --- |";
  for (const Column& column : table.columns) head += " " + column.label + " |", rule += " --- |";
  std::printf("%s\n%s\n", head.c_str(), rule.c_str());
  std::vector<Verdict> verdicts;
  for (const Row& row : table.rows) {
    const auto measured = measure_row(sides, table, row, options);
    print_row(table, measured);
    rows.push_back(json_of(table, measured));
    for (const Target& target : row.targets) {
      const auto verdict = verdict_on(target, measured);
      if (!verdict) continue;
      verdicts.push_back(*verdict);
      targets.push_back({{"table", table.key},
                         {"figure", verdict->figure},
                         {"of", verdict->of},
                         {"at_most", verdict->at_most},
                         {"measured", verdict->measured},
                         {"fastest_calls", verdict->least},
                         {"met", verdict->is_met}});
    }
  }
  std::printf("\n");
  sides.print_notes();
  print_verdicts(verdicts);
}

int run(const Options& options) {
  keep_to_two_cores();
  Catalogue catalogue;
  std::set<std::string> told;
  nlohmann::json rows = nlohmann::json::array(), targets = nlohmann::json::array();
  for (Table table : options.is_quick ? quick_tables() : all_tables()) {
    const auto is_asked_for = [&](const std::vector<std::string>& words, const std::string& name) {
      return words.empty() ||
             std::any_of(words.begin(), words.end(), [&](const auto& word) { return name.starts_with(word); });
    };
    if (!is_asked_for(options.rows, table.key)) continue;
    std::erase_if(table.columns, [&](const Column& column) {
      const bool is_floor = column.side == "zero-copy" || column.side == "yield loop" || column.side == "bare sockets";
      return !is_floor && !is_asked_for(options.sides, column.side);
    });
    if (!table.columns.empty()) run_table(table, options, catalogue, told, rows, targets);
  }
  if (options.json.empty()) return 0;
  std::ofstream file(options.json);
  file << nlohmann::json{{"benchmark", "collectives"}, {"rounds", options.rounds}, {"rows", rows}, {"targets", targets}}
              .dump()
       << "\n";
  if (!file.flush()) throw std::runtime_error("can't write " + options.json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--side=zero-copy" && argc == 6) return be_zero_copy_rank(argv + 2);
  if (first == "--side=bare-sockets" && argc == 5) return be_socket_rank(argv + 2);
  if (first == "--side=ours" && argc == 3) return be_our_rank(argv[2], false);
  if (first == "--side=ours-on-two-hosts" && argc == 3) return be_our_rank(argv[2], true);
  return run(options_of(argc, argv));
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\nwhere: collectives_benchmark\ntry:   fewer sides, by --sides\n", error.what());
  return 1;
}
