// membership_simulation: plays histories of faulty jobs until one breaks a rule, and says which seed replays it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

#include "tests/simulation/history.hpp"

namespace {

using namespace ddp::simulation;

constexpr const char* kUsage =
    "usage: membership_simulation --seeds=FROM-TO | --seconds=N [--from=SEED] | --seed=N [--trace]\n"
    "       --json       messages go through their texts\n"
    "       --ports      the endpoint is at one of several ports\n"
    "       --keep-going after a violation, and counts them\n";

struct Options {
  std::uint64_t first = 1, last = 1000;
  double seconds = 0;
  bool trace = false, json = false, ports = false, keep_going = false;
};

bool take(const std::string& argument, Options& options) {
  const auto value_of = [&](const std::string& name) {
    return argument.rfind(name, 0) == 0 ? argument.substr(name.size()) : std::string();
  };
  if (argument == "--trace") return options.trace = true;
  if (argument == "--json") return options.json = true;
  if (argument == "--ports") return options.ports = true;
  if (argument == "--keep-going") return options.keep_going = true;
  if (const auto seed = value_of("--seed="); !seed.empty()) {
    options.first = options.last = std::strtoull(seed.c_str(), nullptr, 10);
    return true;
  }
  if (const auto seed = value_of("--from="); !seed.empty()) {
    options.first = std::strtoull(seed.c_str(), nullptr, 10);
    return true;
  }
  if (const auto seconds = value_of("--seconds="); !seconds.empty()) {
    options.seconds = std::strtod(seconds.c_str(), nullptr);
    options.last = UINT64_MAX;
    return true;
  }
  const auto range = value_of("--seeds=");
  const auto dash = range.find('-');
  if (dash == std::string::npos) return false;
  options.first = std::strtoull(range.c_str(), nullptr, 10);
  options.last = std::strtoull(range.c_str() + dash + 1, nullptr, 10);
  return true;
}

int run(const Options& options) {
  HistoryOptions history;
  history.as_json = options.json;
  history.has_ports = options.ports;
  if (options.trace) history.trace = [](const std::string& line) { std::cout << line << '\n'; };
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  std::uint64_t histories = 0, events = 0, rounds = 0, completed = 0, going_on = 0, violations = 0;
  for (auto seed = options.first; seed <= options.last; ++seed) {
    if (options.seconds > 0 && elapsed() >= options.seconds) break;
    const auto result = play(seed, history);
    ++histories;
    events += result.events;
    rounds += result.rounds;
    completed += result.completed;
    going_on += result.goes_on;
    if (result.violation.empty()) continue;
    ++violations;
    std::cout << "seed " << seed << ": " << result.violation << "\n  replay: membership_simulation --seed=" << seed
              << " --trace\n";
    if (!options.keep_going) break;
  }
  std::cout << histories << " histories in " << elapsed() << " s (" << static_cast<double>(histories) / elapsed()
            << " a second), " << events << " events, " << rounds << " rounds, " << completed << " of them complete, "
            << going_on << " jobs that go on, " << violations << " violations\n";
  return violations == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i)
    if (!take(argv[i], options)) {
      std::cerr << kUsage;
      return 2;
    }
  return run(options);
}
