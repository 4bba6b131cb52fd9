// Trains under random faults and checks that nothing was lost: `elastic_soak --seconds=1200`.
//
// One ddp-rendezvous, and agents with --nnodes=2:3 on this host, whose workers train with run_elastic (soak_worker).
// Every few seconds a random worker is killed; every sixth time it is an agent, which is started again at once. Checked
// at the end, from the workers' logs of committed steps:
//   - every step has been committed, in rounds that never go back;
//   - no step was lost but the one in flight: a round begins with the newest commit of those that lived on;
//   - the final parameters are those that the committed steps add up to, the same on all ranks.
// With --heartbeat-ms=N nothing is disturbed: two agents and the daemon count a silence of N ms as death, `--busy=N`
// processes take the cores from them, and there must be one round, for any other would follow a false alarm:
// `elastic_soak --seconds=600 --heartbeat-ms=250 --busy=2`.
// With --compare the same training runs undisturbed before, for a quarter of the time, and at least 95 % of its steps
// per second are asked for. Exit code 0 where all of it holds.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/soak/soak_model.hpp"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
using ddp::test::Job;

struct Options {
  int seconds = 60;
  int fault_every_ms = 5'000;
  int step_ms = 7;
  int agents = 3, workers = 2;
  unsigned seed = 1;
  int heartbeat_ms = 0;  // 0: the default, and faults
  int busy = 0;
  bool compare = false;
};

Options options_of(int argc, char** argv) {
  Options out;
  const std::map<std::string, int*> numbers{{"--seconds", &out.seconds},
                                            {"--fault-every-ms", &out.fault_every_ms},
                                            {"--step-ms", &out.step_ms},
                                            {"--heartbeat-ms", &out.heartbeat_ms},
                                            {"--busy", &out.busy}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto name = word.substr(0, word.find('='));
    const auto value = name.size() < word.size() ? std::atoi(word.c_str() + name.size() + 1) : 0;
    if (word == "--compare")
      out.compare = true;
    else if (name == "--seed")
      out.seed = static_cast<unsigned>(value);
    else if (numbers.count(name) == 1 && value > 0)
      *numbers.at(name) = value;
    else
      throw std::invalid_argument(
          word +
          "; try: elastic_soak [--seconds=N] [--fault-every-ms=N] [--step-ms=N] [--seed=N] [--compare] "
          "[--heartbeat-ms=N] [--busy=N]");
  }
  if (out.heartbeat_ms > 0) out.agents = 2;
  return out;
}

std::string seconds_of(int ms) { return std::to_string(static_cast<double>(ms) / 1000); }

// Processes that take all the time that they get; they end with this one.
class BusyLoops {
 public:
  explicit BusyLoops(int count) {
    const pid_t parent = ::getpid();
    for (int i = 0; i < count; ++i) {
      const pid_t pid = ::fork();
      if (pid < 0) throw std::runtime_error("fork failed");
      if (pid == 0) spin(parent);
      pids_.push_back(pid);
    }
  }
  ~BusyLoops() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;

 private:
  [[noreturn]] static void spin(pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(0);
    for (volatile unsigned i = 0;;) i = i + 1;
  }

  std::vector<pid_t> pids_;
};

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "elastic_soak_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for the logs: " + name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// --- the run ---

class Run {
 public:
  Run(const Options& options, bool disturbed) : options_(options), disturbed_(disturbed), random_(options.seed) {}

  // Returns where the logs are, once every agent has ended.
  const fs::path& go() {
    std::ofstream(folder_.path() / "begin") << Clock::now().time_since_epoch() / 1ns << "\n";
    const auto ends = Clock::now() + std::chrono::seconds(options_.seconds);
    const auto port = daemon_.number_after("listens on port ");
    endpoint_ = "127.0.0.1:" + std::to_string(port);
    for (int i = 0; i < options_.agents; ++i) agents_.push_back(start_agent());
    // Faults stop a little before the end: a worker that is killed as the others leave would begin another round.
    for (int number = 1; disturbed_; ++number) {
      const auto next = Clock::now() + std::chrono::milliseconds(options_.fault_every_ms);
      if (next + 2s > ends) break;
      std::this_thread::sleep_until(next);  // the beat of the faults
      number % 6 == 0 ? kill_agent() : kill_worker();
    }
    for (auto& agent : agents_)
      if (const int code = agent->wait(); code != 0)
        throw std::runtime_error("ddprun ended with " + std::to_string(code) + ":\n" + agent->err());
    daemon_.kill(SIGTERM);
    daemon_.wait();
    return folder_.path();
  }

  int faults() const { return faults_; }

 private:
  std::vector<std::string> daemon_words() const {
    std::vector<std::string> words{"--port=0", "--host=127.0.0.1"};
    if (options_.heartbeat_ms > 0) words.push_back("--heartbeat-timeout=" + seconds_of(options_.heartbeat_ms));
    return words;
  }

  std::string conf() const {
    return "--rdzv-conf=last_call_timeout=1" +
           (options_.heartbeat_ms > 0 ? ",heartbeat_timeout=" + seconds_of(options_.heartbeat_ms) : "");
  }

  std::unique_ptr<Job> start_agent() {
    Job::Options options;
    options.patience = std::chrono::seconds(options_.seconds) + 60s;
    return std::make_unique<Job>(
        std::vector<std::string>{options_.heartbeat_ms > 0 ? "--nnodes=2" : "--nnodes=2:3",
                                 "--nproc-per-node=" + std::to_string(options_.workers), "--rdzv-id=soak",
                                 "--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint_, conf(),
                                 "--max-restarts=1000000", std::string(DDP_TEST_BIN_DIR) + "/soak_worker",
                                 folder_.path().string(), std::to_string(options_.step_ms),
                                 std::to_string(options_.seconds)},
        options);
  }

  std::size_t any(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }

  // A worker is found by the log that it has opened.
  void kill_worker() {
    std::vector<pid_t> alive;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      const auto name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const auto pid = static_cast<pid_t>(std::stol(name));
      if (killed_.count(pid) == 0 && ::kill(pid, 0) == 0) alive.push_back(pid);
    }
    if (alive.empty()) return;
    const auto pid = alive[any(alive.size())];
    killed_.insert(pid);
    if (::kill(pid, SIGKILL) == 0) ++faults_;
  }

  void kill_agent() {
    const auto which = any(agents_.size());
    agents_[which]->kill(SIGKILL);
    agents_[which]->wait();
    agents_[which] = start_agent();
    ++faults_;
  }

  const Options options_;
  const bool disturbed_;
  std::mt19937 random_;
  Folder folder_;
  Job daemon_{daemon_words(), {.environment = {}, .program = "ddp-rendezvous"}};
  std::string endpoint_;
  std::vector<std::unique_ptr<Job>> agents_;
  std::set<pid_t> killed_;
  int faults_ = 0;
};

// --- what the logs say ---

using Round = std::tuple<unsigned long long, unsigned long long, unsigned>;

struct Part {  // of one worker in one round
  std::int64_t first = 0, last = 0;
};

struct Logs {
  std::map<Round, int> world_sizes;
  std::map<Round, std::vector<Part>> parts;
  std::map<Round, std::pair<std::int64_t, std::int64_t>> times;  // of the first and the last commit, ns
};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("does not hold: " + what);
}

Logs read_logs(const fs::path& folder) {
  Logs out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path());
    std::map<Round, Part> parts;
    Round last_round{};
    unsigned long long term = 0, random = 0;
    unsigned number = 0;
    std::int64_t step = 0, time = 0;
    for (int size = 0; file >> term >> random >> number >> step >> size >> time;) {
      const Round round{term, random, number};
      auto& [earliest, latest] = out.times.try_emplace(round, time, time).first->second;
      earliest = std::min(earliest, time);
      latest = std::max(latest, time);
      require(round >= last_round, "a worker never goes back to an older round");
      last_round = round;
      const auto [known, is_new] = out.world_sizes.emplace(round, size);
      require(known->second == size, "all ranks of a round know one world size");
      auto [part, is_first] = parts.emplace(round, Part{step, step});
      require(is_first || step == part->second.last + 1, "a worker commits one step after the other");
      part->second.last = step;
    }
    for (const auto& [round, part] : parts) out.parts[round].push_back(part);
  }
  return out;
}

// The world size in which each step was made: the last round that committed it is the one whose result lived on.
std::vector<int> history_of(const Logs& logs) {
  std::vector<int> sizes;
  for (const auto& [round, parts] : logs.parts) {
    const auto first =
        std::min_element(parts.begin(), parts.end(), [](auto& a, auto& b) { return a.first < b.first; })->first;
    std::int64_t last = 0;
    for (const auto& part : parts) last = std::max(last, part.last);
    const auto before = static_cast<std::int64_t>(sizes.size());
    require(first <= before + 1, "no step is missing before step " + std::to_string(first));
    require(first >= before, "no step is lost but the one in flight (step " + std::to_string(before) +
                                 " was committed, and a "
                                 "round began again with " +
                                 std::to_string(first) + ")");
    sizes.resize(static_cast<std::size_t>(std::max(first - 1, std::int64_t{0})));
    sizes.resize(static_cast<std::size_t>(last), logs.world_sizes.at(round));
  }
  return sizes;
}

void check_parameters(const fs::path& folder, const std::vector<int>& history) {
  std::vector<double> expected(ddp::soak::kParameters, 0.0);
  for (std::size_t step = 0; step < history.size(); ++step)
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] += ddp::soak::sum_of_gradients(static_cast<std::int64_t>(step), history[step], i);
  int ranks = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind("final_", 0) != 0) continue;
    std::ifstream file(entry.path());
    std::size_t steps = 0;
    file >> steps;
    require(steps == history.size(),
            "every rank ends with the same step, " + std::to_string(history.size()) + ", not " + std::to_string(steps));
    std::string text;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      file >> text;
      require(std::strtod(text.c_str(), nullptr) == expected[i],
              "parameter " + std::to_string(i) + " is the sum of the steps");
    }
    ++ranks;
  }
  require(ranks == history.back(), "every rank of the last round has ended well: " + std::to_string(ranks) + " of " +
                                       std::to_string(history.back()));
}

// From the last commit of a round to the first one of the next.
std::string pauses_of(const Logs& logs) {
  std::vector<double> pauses;
  std::optional<std::int64_t> before;
  for (const auto& [round, times] : logs.times) {
    if (before) pauses.push_back(static_cast<double>(times.first - *before) / 1e6);
    before = times.second;
  }
  if (pauses.empty()) return {};
  std::sort(pauses.begin(), pauses.end());
  char text[96];
  std::snprintf(text, sizeof text, "; between two rounds %.0f ms, at most %.0f ms", pauses[pauses.size() / 2],
                pauses.back());
  return text;
}

std::size_t steps_of(const Options& options, bool disturbed) {
  const BusyLoops busy(options.busy);
  Run run(options, disturbed);
  const auto& folder = run.go();
  const auto logs = read_logs(folder);
  require(!logs.parts.empty(), "a step was committed");
  const auto history = history_of(logs);
  check_parameters(folder, history);
  std::printf("%s: %zu steps in %d s, %zu rounds, %d faults%s\n", disturbed ? "with faults" : "undisturbed",
              history.size(), options.seconds, logs.parts.size(), run.faults(), pauses_of(logs).c_str());
  std::fflush(stdout);
  require(!disturbed || run.faults() > 0, "there was a fault");
  require(options.heartbeat_ms == 0 || logs.parts.size() == 1, "a job in which nothing fails has one round");
  return history.size();
}

}  // namespace

int main(int argc, char** argv) try {
  const auto options = options_of(argc, argv);
  if (options.heartbeat_ms > 0) return steps_of(options, false), 0;
  const auto steps_per_second = [](const Options& of_run, bool disturbed) {
    return static_cast<double>(steps_of(of_run, disturbed)) / of_run.seconds;
  };
  auto shorter = options;
  shorter.seconds = std::max(1, options.seconds / 4);
  const double undisturbed = options.compare ? steps_per_second(shorter, false) : 0;
  const double with_faults = steps_per_second(options, true);
  if (!options.compare) return 0;
  const double share = with_faults / undisturbed;
  std::printf("committed with faults: %.1f %% of the undisturbed steps per second\n", 100 * share);
  return share >= 0.95 ? 0 : 1;
} catch (const std::invalid_argument& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 2;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
