// The training that faults_soak disturbs: a step is an all_reduce and a commit.
//
// Usage: faults_worker FOLDER STEP_MS TIMEOUT_MS. TIMEOUT_MS is the limit of a collective. It trains until a signal
// ends it, and writes lines into FOLDER/<host>_<pid>. A <round> is "<term> <random> <number>", a <time> is of the
// steady clock in ns, which all hosts of the test share:
//   begin <round> <rank> <size> <time> <round> <step>   a round, and the commit with which it begins (by whom, and
//   which) commit <round> <step> <time>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include "ddp/ddp.hpp"
#include "ddp/elastic.hpp"

namespace {

using RoundNumbers = std::array<std::uint64_t, 3>;  // in the state: 0 before the first commit

RoundNumbers numbers_of(const ddp::RoundId& round) { return {round.term, round.term_random, round.number}; }

std::string text_of(const RoundNumbers& round) {
  return std::to_string(round[0]) + " " + std::to_string(round[1]) + " " + std::to_string(round[2]);
}

std::string now() { return std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()); }

// One write for each line: a kill leaves whole lines only.
class CommitLog {
 public:
  explicit CommitLog(const std::string& folder) {
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    const std::string path = folder + "/" + host.data() + "_" + std::to_string(::getpid());
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) throw std::runtime_error("the log of commits can't be made: " + path);
  }

  void write(const std::string& line) const {
    if (::write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("the log of commits is full");
  }

 private:
  int fd_;  // until the process ends
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("faults_worker FOLDER STEP_MS TIMEOUT_MS");
  const std::chrono::milliseconds step_time(std::atoi(argv[2]));
  const CommitLog log(argv[1]);
  ddp::ElasticOptions options;
  options.group.timeout = std::chrono::milliseconds(std::atoi(argv[3]));

  RoundNumbers committed_by{};
  std::int64_t step = 0;
  ddp::ElasticState state;
  state.add(committed_by);
  state.add(step);
  const auto train = [&](ddp::ProcessGroup world) {
    const std::string round = text_of(numbers_of(world.round()));
    log.write("begin " + round + " " + std::to_string(world.rank()) + " " + std::to_string(world.size()) + " " + now() +
              " " + text_of(committed_by) + " " + std::to_string(step) + "\n");
    for (;;) {
      std::this_thread::sleep_for(step_time);  // the compute of a step
      std::array<std::int64_t, 2> sums{step, 1};
      world.all_reduce(sums);
      if (sums[0] != step * world.size() || sums[1] != world.size())
        throw std::runtime_error("a collective mixed steps: " + std::to_string(sums[0]) + " from " +
                                 std::to_string(sums[1]) + " ranks at step " + std::to_string(step));
      committed_by = numbers_of(world.round());
      ++step;
      state.commit();
      log.write("commit " + round + " " + std::to_string(step) + " " + now() + "\n");
    }
  };
  ddp::run_elastic(state, train, options);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "faults_worker: " << error.what() << "\n";
  return 1;
}
