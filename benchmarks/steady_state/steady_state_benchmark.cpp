// What fault tolerance costs while nothing fails: steps per second, and CPU time per step, of the same training
//   plain    two ranks that this program starts itself, with a store beside them; no run_elastic
//   elastic  two ranks under ddprun, with run_elastic and a commit after every step
//
// A step is some milliseconds of compute, a fixed amount of work measured once, and the all-reduce of 100 000 gradients
// on the cpu backend. The sides take turns, and which one begins; a row's ratio is that of one pair. The rate is that
// of the steps alone, without the start; the CPU time is that of all processes from start to end, launcher and store
// included.
//
//   steady_state_benchmark [pairs] [steps]      default 10 and 400
#include <ddp/ddp.hpp>
#include <ddp/elastic.hpp>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "benchmarks/common/measure.hpp"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;
using ddp::benchmarks::arguments_of;
using ddp::benchmarks::median;

constexpr int kRanks = 2;
constexpr std::size_t kParameters = 100'000;
constexpr double kComputeMs = 7;
constexpr std::int64_t kWarmUpSteps = 20;
constexpr int kCountMax = 1'000'000;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Work that depends on itself throughout, so that no compiler shortens it.
double compute(long amount) {
  double value = 1;
  for (long i = 0; i < amount; ++i) value = value * 1.000000001 + 1e-9;
  return value;
}

long amount_of(double ms) {
  constexpr long kTrial = 20'000'000;
  std::vector<double> trials;
  volatile double sink = 0;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    sink = compute(kTrial);
    trials.push_back(ms_since(begin));
  }
  static_cast<void>(sink);
  return static_cast<long>(kTrial * ms / median(trials));
}

// --- a rank ---

struct Training {
  std::vector<float> parameters = std::vector<float>(kParameters, 1.0F);
  std::int64_t step = 0;
};

void train(Training& its, ddp::ProcessGroup world, std::int64_t steps, long amount, ddp::ElasticState* state,
           const char* result) {
  ddp::DistributedDataParallel model(world, {{"parameters", {kParameters}, its.parameters}});
  auto* const gradients = model.gradient<float>(0).data();
  Clock::time_point begin;
  while (its.step < steps + kWarmUpSteps) {
    if (its.step == kWarmUpSteps) begin = Clock::now();
    auto step = model.begin_step();
    gradients[0] = static_cast<float>(compute(amount));
    step.ready(0);
    step.finish();
    for (std::size_t i = 0; i < kParameters; ++i) its.parameters[i] -= 1e-3F * gradients[i];
    ++its.step;
    if (state != nullptr) state->commit();
  }
  if (world.rank() == 0) std::ofstream(result) << 1000 * static_cast<double>(steps) / ms_since(begin) << "\n";
}

// steady_state_benchmark --worker plain|elastic STEPS AMOUNT FILE-FOR-THE-RATE
int be_worker(char** arguments) try {
  const bool is_elastic = std::string(arguments[0]) == "elastic";
  const auto steps = std::atoll(arguments[1]);
  const auto amount = std::atol(arguments[2]);
  Training its;
  if (!is_elastic) {
    train(its, ddp::init_process_group(), steps, amount, nullptr, arguments[3]);
    return 0;
  }
  ddp::ElasticState state;
  state.add(its.parameters);
  state.add(its.step);
  ddp::run_elastic(state, [&](ddp::ProcessGroup world) { train(its, world, steps, amount, &state, arguments[3]); });
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}

// --- one run ---

struct Cost {
  double steps_a_second = 0;
  double cpu_ms_a_step = 0;
};

pid_t spawn(const Words& words, int out = STDERR_FILENO) {
  auto arguments = arguments_of(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  return pid;
}

// Of the process and of all that it waited for.
double cpu_ms_until_end(pid_t pid, bool must_succeed = true) {
  int status = 0;
  rusage used{};
  ::wait4(pid, &status, 0, &used);
  if (must_succeed && status != 0) throw std::runtime_error("a run failed; what it said is above");
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(used.ru_utime) + ms(used.ru_stime);
}

class Store {
 public:
  explicit Store(const fs::path& programs) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
    pid_ = spawn({programs / "ddp-rendezvous", "store", "--port=0", "--host=127.0.0.1"}, pipe[1]);
    ::close(pipe[1]);
    std::string line;
    for (char c = 0; ::read(pipe[0], &c, 1) == 1 && c != '\n';) line += c;
    ::close(pipe[0]);
    const std::string before = "listens on port ";
    const auto at = line.find(before);
    if (at == std::string::npos) throw std::runtime_error("no store: " + line);
    port_ = std::to_string(std::atoi(line.c_str() + at + before.size()));
  }
  ~Store() { end(); }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& port() const { return port_; }
  double end() {
    if (pid_ <= 0) return 0;
    ::kill(pid_, SIGTERM);
    return cpu_ms_until_end(std::exchange(pid_, -1), false);
  }

 private:
  pid_t pid_ = -1;
  std::string port_;
};

class Runs {
 public:
  Runs(fs::path program, fs::path result, int steps)
      : program_(std::move(program)), result_(std::move(result)), steps_(steps), amount_(amount_of(kComputeMs)) {}

  Cost plain() {
    Store store(program_.parent_path());
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::pair<const char*, std::string> variables[] = {{"RANK", std::to_string(rank)},
                                                               {"WORLD_SIZE", std::to_string(kRanks)},
                                                               {"LOCAL_RANK", std::to_string(rank)},
                                                               {"LOCAL_WORLD_SIZE", std::to_string(kRanks)},
                                                               {"MASTER_ADDR", "127.0.0.1"},
                                                               {"MASTER_PORT", store.port()},
                                                               {"OMP_NUM_THREADS", "1"},
                                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
      for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
      ranks.push_back(spawn(worker("plain")));
      for (const auto& [name, value] : variables) ::unsetenv(name);
    }
    double cpu_ms = 0;
    for (const pid_t rank : ranks) cpu_ms += cpu_ms_until_end(rank);
    return cost(cpu_ms + store.end());
  }

  Cost elastic() {
    Words words{program_.parent_path() / "ddprun", "--standalone", "--nproc-per-node=" + std::to_string(kRanks),
                "--max-restarts=3", "--no-python"};
    for (const auto& word : worker("elastic")) words.push_back(word);
    return cost(cpu_ms_until_end(spawn(words)));
  }

 private:
  Words worker(const std::string& side) const {
    return {program_, "--worker", side, std::to_string(steps_), std::to_string(amount_), result_};
  }
  Cost cost(double cpu_ms) const {
    Cost out;
    std::ifstream(result_) >> out.steps_a_second;
    fs::remove(result_);
    out.cpu_ms_a_step = cpu_ms / static_cast<double>(steps_ + kWarmUpSteps);
    return out;
  }

  fs::path program_, result_;
  int steps_;
  long amount_;
};

// --- pairs ---

void print_row(const char* what, const std::vector<double>& plain, const std::vector<double>& elastic) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < plain.size(); ++i) ratios.push_back(elastic[i] / plain[i]);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%-20s %10.3f %10.3f %10.4f %10.4f %10.4f\n", what, median(plain), median(elastic), median(ratios),
              *least, *most);
}

void compare(Runs& runs, int pairs) {
  std::vector<double> plain_rate, elastic_rate, plain_cpu, elastic_cpu;
  for (int pair = -1; pair < pairs; ++pair) {  // the first one warms up
    Cost plain, elastic;
    const bool plain_first = pair % 2 == 0;
    if (plain_first) plain = runs.plain();
    elastic = runs.elastic();
    if (!plain_first) plain = runs.plain();
    if (pair < 0) continue;
    plain_rate.push_back(plain.steps_a_second), elastic_rate.push_back(elastic.steps_a_second);
    plain_cpu.push_back(plain.cpu_ms_a_step), elastic_cpu.push_back(elastic.cpu_ms_a_step);
  }
  std::printf("%-20s %10s %10s %10s %10s %10s   median of %d pairs\n", "two ranks", "plain", "elastic", "ratio",
              "least", "most", pairs);
  print_row("steps a second", plain_rate, elastic_rate);
  print_row("CPU ms a step", plain_cpu, elastic_cpu);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--worker") return be_worker(argv + 2);
  int numbers[] = {10, 400};
  for (int i = 1; i < argc; ++i) {
    const int number = std::atoi(argv[i]);
    if (i > 2 || number < 1 || number > kCountMax) {
      std::fprintf(stderr, "error: '%s' is no number of %s\nwhere: argument %d\ntry:   steady_state_benchmark 10 400\n",
                   argv[i], i == 1 ? "pairs" : "steps", i);
      return 2;
    }
    numbers[i - 1] = number;
  }
  const auto result = fs::temp_directory_path() / ("steady_state_" + std::to_string(::getpid()));
  try {
    Runs runs(fs::read_symlink("/proc/self/exe"), result, numbers[1]);
    compare(runs, numbers[0]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "error: %s\nwhere: in this benchmark\ntry:   one side alone, by the command lines in its source\n",
                 error.what());
    return 1;
  }
}
