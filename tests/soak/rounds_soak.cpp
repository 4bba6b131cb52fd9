// Round after round, each ended by a worker that fails, on two nodes with a daemon: `rounds_soak --rounds=2000`. With
// --embedded the first node serves the endpoint itself, and all output goes to a log directory.
//
// Prints what each process holds on the way, and ends with 0 where none holds more and more from part to part:
// memory of its own (private pages), descriptors, threads. A few bytes for each round are let pass, as one page is
// 4 KiB; over many rounds they are seen.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/integration/job.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace {

namespace fs = std::filesystem;
using ddp::test::Job;

constexpr int kSamples = 20;
constexpr long kBytesOfRound = 64, kBytesOfNoise = 32 << 10;
constexpr long kDescriptorsOfRound = 8;  // that come and go within a round

struct Held {
  long bytes = 0, descriptors = 0, threads = 0;
};

long entries_of(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

Held held_by(pid_t pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  Held held{.descriptors = entries_of(process / "fd"), .threads = entries_of(process / "task")};
  std::ifstream pages(process / "smaps_rollup");
  for (std::string line; std::getline(pages, line);) {
    std::istringstream words(line);
    std::string name;
    long kib = 0;
    if (words >> name >> kib && name.rfind("Private_", 0) == 0) held.bytes += kib << 10;
  }
  return held;
}

// The guardian is ddprun's only child; -1 between two of them.
pid_t child_of(pid_t pid) {
  std::ifstream children("/proc/" + std::to_string(pid) + "/task/" + std::to_string(pid) + "/children");
  pid_t child = -1;
  return children >> child ? child : -1;
}

using Samples = std::map<std::string, std::vector<Held>>;  // by process

void sample(Samples& samples, const std::string& name, pid_t pid) {
  try {
    if (pid > 0) samples[name].push_back(held_by(pid));
  } catch (const fs::filesystem_error&) {  // it has just ended
  }
}

// What nobody reads would be held, too.
void say_nothing_at(std::initializer_list<int> descriptors) {
  const int nothing = ::open("/dev/null", O_WRONLY);
  for (const int descriptor : descriptors) ::dup2(nothing, descriptor);
  ::close(nothing);
}

Job::Options daemon_program() {
  Job::Options options;
  options.program = "ddp-rendezvous";
  options.before_exec = [] { say_nothing_at({2}); };
  return options;
}

Job::Options says_nothing() {
  Job::Options options;
  options.before_exec = [] { say_nothing_at({1, 2}); };
  return options;
}

// -1: there is none yet.
int number_in(const fs::path& file) {
  std::ifstream stream(file);
  int number = -1;
  return stream >> number ? number : -1;
}

struct Options {
  int rounds = 2000;
  bool is_embedded = false;
};

Samples run(const Options& options) {
  const int rounds = options.rounds;
  const std::string port = ddp::test::free_port(), count = std::to_string(rounds);
  std::optional<Job> daemon;
  if (!options.is_embedded) {
    daemon.emplace(std::vector<std::string>{"--host=127.0.0.1", "--port=" + port}, daemon_program());
    if (daemon->number_after("listens on port ") < 0) throw std::runtime_error("no daemon: " + daemon->err());
  }
  const ddp::test::ScratchDirectory scratch;
  const fs::path round = scratch.path() / "round";
  // A pause would follow a round that ends at once and keeps nothing.
  const std::string script = "[ $TORCHELASTIC_RESTART_COUNT -lt " + count + " ] || exit 0; [ $RANK = 1 ] || " +
                             ddp::test::kStay + "; echo $TORCHELASTIC_RESTART_COUNT >" + round.string() + "; " +
                             ddp::test::kCommitAndDie;
  const std::vector<std::string> words{
      "--nnodes=2",
      "--nproc-per-node=2",
      "--rdzv-backend=c10d",
      "--rdzv-endpoint=127.0.0.1:" + port,
      "--rdzv-id=rounds",
      "--max-restarts=" + count,
      "--log-dir=" + (options.is_embedded ? (scratch.path() / "logs").string() : "/dev/null"),
      "--redirects=" + std::string(options.is_embedded ? "3" : "0"),
      "--no-python",
      "bash",
      "-c",
      script};
  Job first(words, says_nothing()), second(words, says_nothing());
  Samples samples;
  for (int i = 1; i <= kSamples; ++i) {
    const int reached = std::min(rounds * i / kSamples, rounds - 1);
    if (!ddp::test::becomes_true([&] { return number_in(round) >= reached; }))
      throw std::runtime_error("round " + std::to_string(reached) + " does not come");
    if (daemon) sample(samples, "daemon", daemon->pid());
    sample(samples, "ddprun 1", first.pid());
    sample(samples, "ddprun 2", second.pid());
    sample(samples, "guardian 1", child_of(first.pid()));
    sample(samples, "guardian 2", child_of(second.pid()));
  }
  if (first.wait() != 0 || second.wait() != 0) throw std::runtime_error("the job failed");
  return samples;
}

// Whether all is as it should be.
bool judge(const std::string& name, const std::vector<Held>& samples, int rounds) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  const auto least = [](auto begin, auto end, long Held::*what) {
    return (*std::min_element(begin, end, [&](const Held& a, const Held& b) { return a.*what < b.*what; })).*what;
  };
  const auto most = [](auto begin, auto end, long Held::*what) {
    return (*std::max_element(begin, end, [&](const Held& a, const Held& b) { return a.*what < b.*what; })).*what;
  };
  // The first of them are still growing to what a round takes.
  const auto settled = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 5);
  const Held before{least(settled, middle, &Held::bytes), most(samples.begin(), middle, &Held::descriptors),
                    most(samples.begin(), middle, &Held::threads)};
  const Held after{least(middle, samples.end(), &Held::bytes), most(middle, samples.end(), &Held::descriptors),
                   most(middle, samples.end(), &Held::threads)};
  std::printf("| %s | %ld -> %ld KiB | %ld -> %ld | %ld -> %ld |\n", name.c_str(), before.bytes >> 10,
              after.bytes >> 10, before.descriptors, after.descriptors, before.threads, after.threads);
  // A leak grows in each part of the rounds. An allocator's arena is there from one round on: when threads first use it
  // at the same time, which a busy machine decides.
  const auto late = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() * 3 / 4);
  const long third = least(middle, late, &Held::bytes), fourth = least(late, samples.end(), &Held::bytes);
  const long growth = std::min(third - before.bytes, fourth - third);
  return growth <= kBytesOfNoise + kBytesOfRound * rounds / 4 &&
         after.descriptors - before.descriptors <= kDescriptorsOfRound && after.threads <= before.threads;
}

Options options_of(const std::vector<std::string>& words) {
  Options out;
  for (const auto& word : words) {
    if (word == "--embedded")
      out.is_embedded = true;
    else
      out.rounds = word.rfind("--rounds=", 0) == 0 ? std::atoi(word.c_str() + 9) : 0;
  }
  if (out.rounds < kSamples || out.rounds > 1'000'000)
    throw std::invalid_argument("try: rounds_soak [--rounds=N] [--embedded], N >= 20");
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto options = options_of({argv + 1, argv + argc});
    const int rounds = options.rounds;
    const Samples samples = run(options);
    std::printf(
        "| %d rounds, from the first half to the second | private memory, least | descriptors, most | threads, "
        "most |\n| --- | --- | --- | --- |\n",
        rounds);
    bool is_good = samples.size() == (options.is_embedded ? 4 : 5);
    for (const auto& [name, held] : samples) is_good = held.size() >= 10 && judge(name, held, rounds) && is_good;
    if (!is_good) std::fprintf(stderr, "error: a process holds more and more\n");
    return is_good ? 0 : 1;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
