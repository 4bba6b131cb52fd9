// membership_simulation: plays histories of faulty jobs until one breaks a rule, and says which seed replays it.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>

#include "tests/simulation/history.hpp"

namespace {

using namespace ddp::simulation;

constexpr const char* kUsage =
    "usage: membership_simulation --seeds=FROM-TO | --seconds=N [--from=SEED] | --seed=N [--trace]\n"
    "       --json       messages go through their texts\n"
    "       --ports      the endpoint is at one of several ports\n"
    "       --seats      workers live on when their round is over\n"
    "       --look-ups   nodes look up where the endpoint is, and whether it is theirs\n"
    "       --faults=NAME,NAME  more faults; `all` for all of them\n"
    "       --waits      no node that reaches the greater part of its job is left waiting\n"
    "       --keep-going after a violation, and counts them\n";

struct Options {
  std::uint64_t first = 1, last = 1000;
  double seconds = 0;
  bool trace = false, json = false, ports = false, seats = false, look_ups = false, waits = false, keep_going = false;
  std::set<Fault> faults;
};

bool take(const std::string& argument, Options& options) {
  const auto value_of = [&](const std::string& name) {
    return argument.rfind(name, 0) == 0 ? argument.substr(name.size()) : std::string();
  };
  if (argument == "--trace") return options.trace = true;
  if (argument == "--json") return options.json = true;
  if (argument == "--ports") return options.ports = true;
  if (argument == "--seats") return options.seats = true;
  if (argument == "--look-ups") return options.look_ups = true;
  if (argument == "--waits") return options.waits = true;
  if (argument == "--keep-going") return options.keep_going = true;
  if (const auto names = value_of("--faults="); !names.empty()) {
    options.faults = faults_of(names);
    return true;
  }
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

// What else a replay needs.
std::string flags_of(const Options& options) {
  std::string out;
  if (options.json) out += " --json";
  if (options.ports) out += " --ports";
  if (options.seats) out += " --seats";
  if (options.look_ups) out += " --look-ups";
  if (options.waits) out += " --waits";
  std::string names;
  for (const auto fault : options.faults) names += (names.empty() ? "" : ",") + name_of(fault);
  if (!names.empty()) out += " --faults=" + names;
  return out;
}

int run(const Options& options) {
  HistoryOptions history;
  history.as_json = options.json;
  history.has_ports = options.ports;
  history.has_seats = options.seats;
  history.has_look_ups = options.look_ups;
  history.checks_waits = options.waits;
  history.faults = options.faults;
  if (options.trace) history.trace = [](const std::string& line) { std::cout << line << '\n'; };
  const auto began = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  std::uint64_t histories = 0, events = 0, rounds = 0, completed = 0, going_on = 0, violations = 0, blamed_right = 0;
  std::uint64_t late_answers = 0, seats_given = 0, killed_alone = 0;
  std::uint64_t sockets_let_go = 0, refused_new = 0, refused_with_round = 0;
  FaultCounts drawn{};
  CallCounts failed_calls{};
  for (auto seed = options.first; seed <= options.last; ++seed) {
    if (options.seconds > 0 && elapsed() >= options.seconds) break;
    const auto result = play(seed, history);
    ++histories;
    events += result.events;
    rounds += result.rounds;
    completed += result.completed;
    going_on += result.goes_on;
    blamed_right += result.blamed_right;
    late_answers += result.late_answers;
    seats_given += result.seats_given;
    killed_alone += result.killed_alone;
    sockets_let_go += result.sockets_let_go;
    refused_new += result.refused_new;
    refused_with_round += result.refused_with_round;
    for (std::size_t i = 0; i < kFaults; ++i) drawn[i] += result.drawn[i];
    for (std::size_t i = 0; i < kCalls; ++i) failed_calls[i] += result.failed_calls[i];
    if (result.violation.empty()) continue;
    ++violations;
    std::cout << "seed " << seed << ": " << result.violation << "\n  replay: membership_simulation --seed=" << seed
              << flags_of(options) << " --trace\n";
    if (!options.keep_going) break;
  }
  std::cout << histories << " histories in " << elapsed() << " s (" << static_cast<double>(histories) / elapsed()
            << " a second), " << events << " events, " << rounds << " rounds, " << completed << " of them complete, "
            << going_on << " jobs that go on, " << sockets_let_go << " sockets let go, " << violations
            << " violations\n";
  if (options.seats)
    std::cout << seats_given << " seats given to workers that lived on, " << killed_alone
              << " workers killed while others of their node lived on\n";
  if (!options.faults.empty()) {
    std::cout << "drawn:";
    for (const auto fault : options.faults) std::cout << ' ' << name_of(fault) << ' ' << drawn[index_of(fault)];
    std::cout << "; " << blamed_right << " late deaths named as the cause, " << late_answers
              << " late answers of files\n";
    if (options.faults.count(Fault::full_daemon) != 0)
      std::cout << "a full daemon refused " << refused_new << " nodes without a round, and " << refused_with_round
                << " times nodes with one\n";
    if (options.faults.count(Fault::failed_calls) != 0) {
      std::cout << "failed:";
      for (std::size_t i = 0; i < kCalls; ++i)
        std::cout << ' ' << name_of(static_cast<Call>(i)) << ' ' << failed_calls[i];
      std::cout << '\n';
    }
  }
  return violations == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    for (int i = 1; i < argc; ++i)
      if (!take(argv[i], options)) {
        std::cerr << kUsage;
        return 2;
      }
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return run(options);
}
