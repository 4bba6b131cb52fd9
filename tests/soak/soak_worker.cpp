// The training that the soak disturbs: each step adds to the parameters what all ranks agree on, in whole numbers, so
// that they can be computed again from the list of steps alone.
//
// Usage: soak_worker FOLDER STEP_MS SECONDS. Every committed step is one line in FOLDER/<pid>: "<term> <random> <number
// of the round> <step> <world size> <steady clock, ns>"; a worker that has done its work writes its parameters into
// FOLDER/final_<rank>. It ends when rank 0 has seen SECONDS pass since the time in FOLDER/begin, at the same step on
// all ranks.
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"
#include "ddp/elastic.hpp"
#include "tests/soak/soak_model.hpp"

namespace {

using ddp::soak::kParameters;

// One write for each line: a kill leaves whole lines only.
class StepLog {
 public:
  explicit StepLog(const std::string& folder)
      : fd_(::open((folder + "/" + std::to_string(::getpid())).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
                   0644)) {
    if (fd_ < 0) throw std::runtime_error("the log of steps in " + folder + " can't be opened");
  }

  void committed(const ddp::RoundId& round, std::int64_t step, int size) const {
    char line[128];
    const int length =
        std::snprintf(line, sizeof line, "%llu %llu %u %lld %d %lld\n", static_cast<unsigned long long>(round.term),
                      static_cast<unsigned long long>(round.term_random), round.number, static_cast<long long>(step),
                      size, static_cast<long long>(std::chrono::steady_clock::now().time_since_epoch().count()));
    if (::write(fd_, line, static_cast<std::size_t>(length)) != length)
      throw std::runtime_error("the log of steps is full");
  }

 private:
  int fd_;  // until the process ends
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("soak_worker FOLDER STEP_MS SECONDS");
  const std::string folder = argv[1];
  const std::chrono::milliseconds step_time(std::atoi(argv[2]));
  const std::chrono::seconds duration(std::atoi(argv[3]));
  long long begin_ns = 0;
  std::ifstream(folder + "/begin") >> begin_ns;
  const std::chrono::steady_clock::time_point begin{std::chrono::nanoseconds(begin_ns)};
  const StepLog log(folder);

  std::vector<double> parameters(kParameters, 0.0);
  std::int64_t step = 0;  // finished
  bool is_over = false;
  ddp::ElasticState state;
  state.add(ddp::MemoryRange(parameters.data(), parameters.size(), ddp::DataType::float64));
  state.add(step);
  state.add(is_over);
  ddp::run_elastic(state, [&](ddp::ProcessGroup world) {
    auto memory = world.allocate((kParameters + 1) * sizeof(double));
    auto* const gradient = static_cast<double*>(memory.data());
    while (!is_over) {
      for (std::size_t i = 0; i < kParameters; ++i) gradient[i] = ddp::soak::gradient(step, world.rank(), i);
      const bool is_time = world.rank() == 0 && std::chrono::steady_clock::now() - begin >= duration;
      gradient[kParameters] = is_time ? 1 : 0;
      std::this_thread::sleep_for(step_time);  // the compute of a step
      world.all_reduce({gradient, kParameters + 1, ddp::DataType::float64});
      for (std::size_t i = 0; i < kParameters; ++i) parameters[i] += gradient[i];
      is_over = gradient[kParameters] != 0;
      ++step;
      state.commit();
      log.committed(world.round(), step, world.size());
    }
    std::ofstream out(folder + "/final_" + std::to_string(world.rank()), std::ios::trunc);
    out << step << "\n" << std::hexfloat;
    for (const double value : parameters) out << value << "\n";
  });
  return 0;
} catch (const std::exception& error) {
  std::cerr << "soak_worker: " << error.what() << "\n";
  return 1;
}
