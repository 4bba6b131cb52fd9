// What gradient sync adds to a step: two ranks of one thread each train a model on a CPU by DistributedDataParallel;
// beside it PyTorch's with Gloo, in turn within one run. Models: model.hpp. Ways to train each of them: variant.hpp.
//
// A step is a forward and a backward pass (OpenBLAS; PyTorch's own for its side). Exposed communication is what a step
// takes with sync less what it takes without. Z is the zero-copy all-reduce of as many bytes as the gradients have. A
// figure is the median over the rounds; differences and ratios are taken within a round. Bytes sent: traced_bytes.hpp.
// Nothing here fails because of a time: what misses its target is printed as "missed".
//
//   ddp_step_benchmark [--model=mlp,transformer,small] [--rounds=N] [--json=FILE]        default: all models, 15 rounds
//   ddp_step_benchmark --overhead        what the engine costs in a group of one rank: overhead.hpp
// PyTorch's side needs a Python that has torch: DDP_TEST_PYTHON, else build/interop/venv.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "benchmarks/common/measure.hpp"
#include "benchmarks/common/sides/side_processes.hpp"
#include "benchmarks/common/sides/zero_copy.hpp"
#include "benchmarks/ddp_step/our_training.hpp"
#include "benchmarks/ddp_step/overhead.hpp"
#include "benchmarks/ddp_step/traced_bytes.hpp"
#include "benchmarks/ddp_step/variant.hpp"

namespace {

using namespace ddp::benchmarks;

constexpr int kExitWrongUse = 2;
constexpr int kRanks = 2;
constexpr double kExposedOfFloorAtMost = 1.2;  // of mlp
constexpr double kExposedMsAtMost = 0.1;       // of small
constexpr double kZero2AtMost = 1.1;           // of adamw

const std::vector<std::string> kModels = {"mlp", "transformer", "small"};
const std::vector<std::string> kBasics = {"no_sync", "sync", "all_reduce"};
const std::vector<std::string> kVariants = {"bf16",      "fp16",   "power_sgd", "power_sgd_2", "top_k",
                                            "local_sgd", "diloco", "adamw",     "zero1",       "zero2"};

// Of one model.
struct Plan {
  std::string model;
  std::size_t bytes;  // of its parameters
  int rounds;
  int steps_of_turn;
};

// By what was measured; an element for each round. Milliseconds, or a ratio.
using Figures = std::map<std::string, std::vector<double>>;

// Milliseconds of a step.
double turn(SideProcesses& side, const Plan& plan, const std::string& what, bool check = false) {
  Request request{what, "plain", plan.bytes, std::max(1, plan.steps_of_turn / period_of(what))};
  request.fresh = true;
  request.check = check;
  return median(side.measure(request)) / 1e6 / period_of(what);
}

void warm_up(SideProcesses& side, const Plan& plan, const std::vector<std::string>& all) {
  for (const auto& what : all) turn(side, plan, what, true);
}

void add_basics(Figures& figures, SideProcesses& side, const Plan& plan, double floor_ms) {
  for (const auto& what : kBasics) figures[what].push_back(turn(side, plan, what));
  figures["exposed"].push_back(figures["sync"].back() - figures["no_sync"].back());
  figures["exposed_of_z"].push_back(figures["exposed"].back() / floor_ms);
}

void add_variants(Figures& figures, SideProcesses& side, const Plan& plan) {
  for (const auto& what : kVariants) {
    figures[what].push_back(turn(side, plan, what));
    figures[what + "_of_sync"].push_back(figures[what].back() / figures["sync"].back());
  }
  figures["zero2_of_adamw"].push_back(figures["zero2"].back() / figures["adamw"].back());
}

// Bytes that a rank sends in a step.
double bytes_of(SideProcesses& side, const Plan& plan, const std::string& what, const std::string& folder) {
  side.measure({what, "traced", plan.bytes});
  std::vector<std::string> traces;
  for (int rank = 0; rank < kRanks; ++rank) traces.push_back(trace_file(folder, what, rank));
  return sent_bytes(traces) / period_of(what);
}

std::unique_ptr<SideProcesses> torch_side(MeetingFolder& folder, const Plan& plan) {
  const char* const given = std::getenv("DDP_TEST_PYTHON");
  const std::string python = given != nullptr ? given : DDP_BENCHMARK_PYTHON;
  if (::access(python.c_str(), X_OK) != 0) {
    std::printf("PyTorch is left out: no Python with torch was found (DDP_TEST_PYTHON names one)\n\n");
    return nullptr;
  }
  try {
    auto side =
        std::make_unique<SideProcesses>(SideCommand{"torch",
                                                    {python, DDP_BENCHMARK_TORCH_SIDE, "{socket}", "{rank}",
                                                     std::to_string(kRanks), folder.new_path("torch"), plan.model},
                                                    kRanks,
                                                    true});
    warm_up(*side, plan, kBasics);
    return side;
  } catch (const SideFailure& failure) {
    std::printf("PyTorch is left out: %s\n\n", failure.what());
    return nullptr;
  }
}

void print_target(const char* what, double measured, double at_most, const char* unit) {
  std::printf("%s: at most %.1f%s, measured %.2f%s: %s\n", what, at_most, unit, measured, unit,
              measured <= at_most ? "met" : "missed");
}

void print_basics(const Figures& ours, const Figures& torch) {
  std::printf("| | ours |%s\n| --- | --- |%s\n", torch.empty() ? "" : " PyTorch, Gloo |",
              torch.empty() ? "" : " --- |");
  const struct {
    const char* name;
    const char* figure;
    const char* unit;
  } rows[] = {{"step without sync", "no_sync", " ms"},
              {"step with sync", "sync", " ms"},
              {"exposed communication", "exposed", " ms"},
              {"one all-reduce of all gradients alone", "all_reduce", " ms"},
              {"exposed communication, times Z", "exposed_of_z", ""}};
  for (const auto& row : rows) {
    std::printf("| %s | %.2f%s |", row.name, median(ours.at(row.figure)), row.unit);
    if (!torch.empty()) std::printf(" %.2f%s |", median(torch.at(row.figure)), row.unit);
    std::printf("\n");
  }
}

void print_variants(const Figures& ours, const std::map<std::string, double>& bytes) {
  std::printf("\n| | step | times the step with sync | a rank sends in a step |\n| --- | --- | --- | --- |\n");
  const std::map<std::string, const char*> names = {{"bf16", "16 bits (bfloat16)"},
                                                    {"fp16", "16 bits (float16)"},
                                                    {"power_sgd", "PowerSGD of rank 1"},
                                                    {"power_sgd_2", "PowerSGD of rank 2"},
                                                    {"top_k", "the largest 1 %"},
                                                    {"local_sgd", "post-local SGD, average in each 8th step"},
                                                    {"diloco", "DiLoCo, outer step in each 8th step"},
                                                    {"adamw", "AdamW on each rank"},
                                                    {"zero1", "AdamW, ZeRO-1"},
                                                    {"zero2", "AdamW, ZeRO-2"}};
  std::printf("| gradients as they are | %.2f ms | 1 | %.3f MB |\n", median(ours.at("sync")), bytes.at("sync") / 1e6);
  for (const auto& what : kVariants) {
    std::printf("| %s | %.2f ms | %.2f | %.3f MB |\n", names.at(what), median(ours.at(what)),
                median(ours.at(what + "_of_sync")), bytes.at(what) / 1e6);
  }
}

nlohmann::json measure_model(const Plan& plan, SideProcesses& z) {
  MeetingFolder folder;
  const std::string traces = folder.new_path("traces");
  std::filesystem::create_directory(traces);
  SideProcesses ours(
      SideCommand{"ours",
                  {sibling_program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(kRanks),
                   "--log-dir=/dev/null", own_program(), "--side=ours", "{socket}", plan.model, traces},
                  kRanks});
  std::printf("## %s: %zu parameters\n\n", plan.model.c_str(), plan.bytes / sizeof(float));
  const auto torch = torch_side(folder, plan);
  warm_up(ours, plan, kBasics);
  warm_up(ours, plan, kVariants);
  z.release();  // by all its processes, before one of them writes to buffers of another size
  turn(z, plan, "all_reduce", true);
  std::map<std::string, double> bytes{{"sync", bytes_of(ours, plan, "sync", traces)}};
  for (const auto& what : kVariants) bytes[what] = bytes_of(ours, plan, what, traces);
  std::vector<double> floor;
  Figures our_figures, torch_figures;
  for (int round = 0; round < plan.rounds; ++round) {
    floor.push_back(turn(z, plan, "all_reduce"));
    add_basics(our_figures, ours, plan, floor.back());
    if (torch != nullptr) add_basics(torch_figures, *torch, plan, floor.back());
    add_variants(our_figures, ours, plan);
  }
  print_basics(our_figures, torch_figures);
  print_variants(our_figures, bytes);
  std::printf("\nZ of %.1f MB: %.3f ms\n", static_cast<double>(plan.bytes) / 1e6, median(floor));
  if (plan.model == "mlp") {
    print_target("Exposed communication", median(our_figures["exposed_of_z"]), kExposedOfFloorAtMost, " Z");
  }
  if (plan.model == "small")
    print_target("Exposed communication", median(our_figures["exposed"]), kExposedMsAtMost, " ms");
  print_target("ZeRO-2, times AdamW on each rank", median(our_figures["zero2_of_adamw"]), kZero2AtMost, "");
  std::printf("\n");
  std::fflush(stdout);
  nlohmann::json all = {{"z_ms", floor}, {"ours", our_figures}, {"sent_bytes", bytes}};
  if (torch != nullptr) all["torch"] = torch_figures;
  return all;
}

int run(const std::vector<std::string>& models, int rounds, const std::string& json) {
  SideProcesses z(SideCommand{"Z", {own_program(), "--side=zero-copy", "{socket}", "{rank}", "2", "2"}, kRanks, true});
  nlohmann::json all = {{"benchmark", "ddp_step"}, {"rounds", rounds}};
  for (const auto& model : models) {
    const std::size_t bytes = parameter_count(*make_model(model, 0)) * sizeof(float);
    all[model] = measure_model({model, bytes, rounds, model == "small" ? 50 : 5}, z);
  }
  if (json.empty()) return 0;
  std::ofstream file(json);
  file << all.dump() << "\n";
  if (!file.flush()) throw std::runtime_error("can't write " + json);
  return 0;
}

// Empty if one of them is none.
std::vector<std::string> models_of(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (std::find(kModels.begin(), kModels.end(), word) == kModels.end()) return {};
    out.push_back(word);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == "--side=zero-copy" && argc == 6) return be_zero_copy_rank(argv + 2);
  if (first == "--side=ours" && argc == 5) return be_training_rank(argv[2], argv[3], argv[4]);
  if (first == "--steps" && argc == 5) return make_steps(argv[2], argv[3], argv[4]);
  if (first == "--overhead" && argc == 2) return print_overhead();
  int rounds = 15;
  std::string json;
  std::vector<std::string> models = kModels;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--json=")) {
      json = word.substr(7);
    } else if (word.starts_with("--rounds=") && std::atoi(word.c_str() + 9) > 0) {
      rounds = std::atoi(word.c_str() + 9);
    } else if (word.starts_with("--model=") && !models_of(word.substr(8)).empty()) {
      models = models_of(word.substr(8));
    } else {
      std::fprintf(stderr,
                   "error: '%s' is no option\nwhere: argument %d\n"
                   "try:   ddp_step_benchmark --model=mlp,transformer,small --rounds=15 --json=FILE\n",
                   word.c_str(), i);
      return kExitWrongUse;
    }
  }
  return run(models, rounds, json);
} catch (const std::exception& error) {
  std::fprintf(
      stderr,
      "error: %s\nwhere: ddp_step_benchmark\ntry:   it again, with DDP_TEST_PYTHON=/nowhere to leave PyTorch out\n",
      error.what());
  return 1;
}
