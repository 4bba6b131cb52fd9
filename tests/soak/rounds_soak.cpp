// Round after round, each ended by a worker that fails, on two nodes with a daemon: `rounds_soak --rounds=2000`.
//
// Prints what each process holds on the way, and ends with 0 where none holds more at the end than in the first half:
// memory of its own (private pages), descriptors, threads. A few bytes for each round are let pass, as one page is
// 4 KiB; over many rounds they are seen.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
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

Job::Options daemon_program() {
  Job::Options options;
  options.program = "ddp-rendezvous";
  return options;
}

// What nobody reads would be held, too.
Job::Options says_nothing() {
  Job::Options options;
  options.before_exec = [] {
    const int nothing = ::open("/dev/null", O_WRONLY);
    ::dup2(nothing, 1);
    ::dup2(nothing, 2);
    ::close(nothing);
  };
  return options;
}

// -1: there is none yet.
int number_in(const fs::path& file) {
  std::ifstream stream(file);
  int number = -1;
  return stream >> number ? number : -1;
}

Samples run(int rounds) {
  const std::string port = ddp::test::free_port(), count = std::to_string(rounds);
  Job daemon({"--host=127.0.0.1", "--port=" + port}, daemon_program());
  if (daemon.number_after("listens on port ") < 0) throw std::runtime_error("no daemon: " + daemon.err());
  const ddp::test::ScratchDirectory scratch;
  const fs::path round = scratch.path() / "round";
  const std::string script = "[ $TORCHELASTIC_RESTART_COUNT -lt " + count + " ] || exit 0; [ $RANK = 1 ] || " +
                             ddp::test::kStay + "; echo $TORCHELASTIC_RESTART_COUNT >" + round.string() + "; exit 3";
  const std::vector<std::string> words{"--nnodes=2",
                                       "--nproc-per-node=2",
                                       "--rdzv-backend=c10d",
                                       "--rdzv-endpoint=127.0.0.1:" + port,
                                       "--rdzv-id=rounds",
                                       "--max-restarts=" + count,
                                       "--log-dir=/dev/null",
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
    sample(samples, "daemon", daemon.pid());
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
  return after.bytes - before.bytes <= kBytesOfNoise + kBytesOfRound * rounds / 2 &&
         after.descriptors - before.descriptors <= kDescriptorsOfRound && after.threads <= before.threads;
}

int rounds_of(int argc, char** argv) {
  const std::string word = argc == 2 ? argv[1] : argc == 1 ? "--rounds=2000" : "";
  const int rounds = word.rfind("--rounds=", 0) == 0 ? std::atoi(word.c_str() + 9) : 0;
  if (rounds < kSamples || rounds > 1'000'000) throw std::invalid_argument("try: rounds_soak [--rounds=N], N >= 20");
  return rounds;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = rounds_of(argc, argv);
    const Samples samples = run(rounds);
    std::printf(
        "| %d rounds, from the first half to the second | private memory, least | descriptors, most | threads, "
        "most |\n| --- | --- | --- | --- |\n",
        rounds);
    bool is_good = samples.size() == 5;
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
