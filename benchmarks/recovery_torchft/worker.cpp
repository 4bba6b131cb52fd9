// Our worker of recovery_torchft.py: a small model that trains until it is killed.
//
//   recovery_torchft_worker plain|elastic REPLICA     with init_process_group, or with run_elastic and a commit in each step
//
// After each step one line goes to the FIFO that STEPS names: time, replica, step, whether it was committed, how many took
// part, CPU time of this process; times in ns.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include "benchmarks/recovery_torchft/mlp.hpp"
#include "ddp/ddp.hpp"

namespace {

class Steps {
 public:
  explicit Steps(std::string replica) : fd_(::open(std::getenv("STEPS"), O_WRONLY | O_CLOEXEC)), replica_(std::move(replica)) {}

  void tell(long long step, int participants) const {
    char line[160];
    const int length = std::snprintf(line, sizeof line, "%lld %s %lld 1 %d %lld\n", now(CLOCK_MONOTONIC), replica_.c_str(),
                                     step, participants, now(CLOCK_PROCESS_CPUTIME_ID));
    if (::write(fd_, line, static_cast<std::size_t>(length)) != length) std::_Exit(0);  // the benchmark is gone
  }

 private:
  static long long now(clockid_t clock) {
    timespec time{};
    ::clock_gettime(clock, &time);
    return time.tv_sec * 1'000'000'000LL + time.tv_nsec;
  }

  int fd_;
  std::string replica_;
};

// Trains on, `done` after each step.
template <class Done>
void train(ddp::ProcessGroup group, Mlp& model, const Done& done) {
  const auto memory = group.allocate(Mlp::kParameters * sizeof(float));
  auto* gradients = static_cast<float*>(memory.data());
  while (true) {
    model.compute_gradients(gradients);
    group.all_reduce({gradients, Mlp::kParameters}, ddp::ReduceOp::average);
    model.step(gradients);
    done(group.size());
  }
}

void be_plain(const Steps& steps) {
  Mlp model;
  long long step = 0;
  train(ddp::init_process_group(), model, [&](int size) { steps.tell(++step, size); });
}

void be_elastic(const Steps& steps) {
  Mlp model;
  long long step = 0;
  ddp::ElasticState state;
  state.add(model.parameters);
  state.add(step);
  ddp::run_elastic(state, [&](ddp::ProcessGroup world) {
    train(std::move(world), model, [&](int size) {
      ++step;
      state.commit();
      steps.tell(step, size);
    });
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::getenv("STEPS") == nullptr) {
    std::fputs("error: this is a worker of recovery_torchft.py, which starts it\n", stderr);
    return 2;
  }
  try {
    const Steps steps(argv[2]);
    std::string(argv[1]) == "elastic" ? be_elastic(steps) : be_plain(steps);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
