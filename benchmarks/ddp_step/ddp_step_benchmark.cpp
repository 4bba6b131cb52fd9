// What gradient sync adds to a step: two ranks of one thread each train a network of 24.9 million parameters, batch 32,
// on a CPU, by DistributedDataParallel; beside it PyTorch's with Gloo, in turn within one run.
//
// A step is a forward and a backward pass (mlp.hpp, on OpenBLAS; PyTorch's own for its side). Exposed communication is
// what a step takes with sync less what it takes without. Z is the zero-copy all-reduce of 100 MiB, about as many bytes
// as the gradients. A figure is the median over the rounds; differences and ratios are taken within a round. Nothing
// here fails because of a time: what misses its target is printed as "missed".
//
//   ddp_step_benchmark [--rounds=N] [--json=FILE]        default 15
// PyTorch's side needs a Python that has torch: DDP_TEST_PYTHON, else build/interop/venv.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/common/sides/side_processes.hpp"
#include "benchmarks/common/sides/zero_copy.hpp"
#include "benchmarks/ddp_step/our_training.hpp"

namespace {

using namespace ddp::benchmarks;

constexpr int kExitWrongUse = 2;
constexpr int kRanks = 2;
constexpr int kStepsOfATurn = 5;
constexpr std::size_t kFloorBytes = std::size_t{100} << 20;
constexpr double kExposedAtMost = 1.5;  // of Z

// Milliseconds, an element for each round.
struct Times {
  std::vector<double> without_sync, with_sync, exposed, all_reduce, exposed_of_floor;
};

double turn(SideProcesses& side, const char* what, std::size_t bytes, bool check = false) {
  Request request{what, "plain", bytes, kStepsOfATurn};
  request.fresh = true;
  request.check = check;
  return median(side.measure(request)) / 1e6;
}

void add_round(Times& times, SideProcesses& side, double floor_ms) {
  times.without_sync.push_back(turn(side, "no_sync", 0));
  times.with_sync.push_back(turn(side, "sync", 0));
  times.exposed.push_back(times.with_sync.back() - times.without_sync.back());
  times.all_reduce.push_back(turn(side, "all_reduce", 0));
  times.exposed_of_floor.push_back(times.exposed.back() / floor_ms);
}

void warm_up(SideProcesses& side) {
  for (const char* what : {"no_sync", "sync", "all_reduce"}) turn(side, what, 0, true);
}

std::unique_ptr<SideProcesses> torch_side(MeetingFolder& folder) {
  const char* const given = std::getenv("DDP_TEST_PYTHON");
  const std::string python = given != nullptr ? given : DDP_BENCHMARK_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) {
    std::printf("PyTorch is left out: no Python with torch was found (DDP_TEST_PYTHON names one)\n\n");
    return nullptr;
  }
  try {
    auto side = std::make_unique<SideProcesses>(SideCommand{
        "torch",
        {python, DDP_BENCHMARK_TORCH_SIDE, "{socket}", "{rank}", std::to_string(kRanks), folder.new_path("torch")},
        kRanks,
        true});
    warm_up(*side);
    return side;
  } catch (const SideFailure& failure) {
    std::printf("PyTorch is left out: %s\n\n", failure.what());
    return nullptr;
  }
}

nlohmann::json json_of(const Times& times) {
  return {{"without_sync_ms", times.without_sync},
          {"with_sync_ms", times.with_sync},
          {"exposed_ms", times.exposed},
          {"all_reduce_ms", times.all_reduce},
          {"exposed_of_z", times.exposed_of_floor}};
}

void print(const std::vector<double>& floor, const Times& ours, const Times* torch) {
  std::printf("| | ours |%s\n| --- | --- |%s\n", torch ? " PyTorch, Gloo |" : "", torch ? " --- |" : "");
  const struct {
    const char* name;
    std::vector<double> Times::*figures;
    const char* unit;
  } rows[] = {{"step without sync", &Times::without_sync, " ms"},
              {"step with sync", &Times::with_sync, " ms"},
              {"exposed communication", &Times::exposed, " ms"},
              {"one all-reduce of all gradients alone", &Times::all_reduce, " ms"},
              {"exposed communication, times Z", &Times::exposed_of_floor, ""}};
  for (const auto& row : rows) {
    std::printf("| %s | %.2f%s |", row.name, median(ours.*row.figures), row.unit);
    if (torch != nullptr) std::printf(" %.2f%s |", median(torch->*row.figures), row.unit);
    std::printf("\n");
  }
  const double measured = median(ours.exposed_of_floor);
  std::printf("\nZ of 100 MiB: %.2f ms. Exposed communication: at most %.1f Z, measured %.2f: %s\n", median(floor),
              kExposedAtMost, measured, measured <= kExposedAtMost ? "met" : "missed");
}

int run(int rounds, const std::string& json) {
  MeetingFolder folder;
  SideProcesses z(SideCommand{"Z", {own_program(), "--side=zero-copy", "{socket}", "{rank}", "2", "2"}, kRanks, true});
  SideProcesses ours(
      SideCommand{"ours",
                  {sibling_program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(kRanks),
                   "--log-dir=/dev/null", own_program(), "--side=ours", "{socket}"},
                  kRanks});
  const auto torch = torch_side(folder);
  warm_up(ours);
  turn(z, "all_reduce", kFloorBytes, true);
  std::vector<double> floor;
  Times our_times, torch_times;
  for (int round = 0; round < rounds; ++round) {
    floor.push_back(turn(z, "all_reduce", kFloorBytes));
    add_round(our_times, ours, floor.back());
    if (torch != nullptr) add_round(torch_times, *torch, floor.back());
  }
  print(floor, our_times, torch != nullptr ? &torch_times : nullptr);
  if (json.empty()) return 0;
  std::ofstream file(json);
  nlohmann::json all = {{"benchmark", "ddp_step"}, {"rounds", rounds}, {"z_ms", floor}, {"ours", json_of(our_times)}};
  if (torch != nullptr) all["torch"] = json_of(torch_times);
  file << all.dump() << "\n";
  if (!file.flush()) throw std::runtime_error("can't write " + json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--side=zero-copy" && argc == 6) return be_zero_copy_rank(argv + 2);
  if (first == "--side=ours" && argc == 3) return be_training_rank(argv[2]);
  int rounds = 15;
  std::string json;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--json=")) {
      json = word.substr(7);
    } else if (word.starts_with("--rounds=") && std::atoi(word.c_str() + 9) > 0) {
      rounds = std::atoi(word.c_str() + 9);
    } else {
      std::fprintf(stderr,
                   "error: '%s' is no option\nwhere: argument %d\ntry:   ddp_step_benchmark --rounds=15 --json=FILE\n",
                   word.c_str(), i);
      return kExitWrongUse;
    }
  }
  return run(rounds, json);
} catch (const std::exception& error) {
  std::fprintf(
      stderr,
      "error: %s\nwhere: ddp_step_benchmark\ntry:   it again, with DDP_TEST_PYTHON=/nowhere to leave PyTorch out\n",
      error.what());
  return 1;
}
