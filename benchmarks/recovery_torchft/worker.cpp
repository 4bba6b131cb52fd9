// Our worker of recovery_torchft.py: a small model that trains until it is killed.
//
//   recovery_torchft_worker plain|elastic|elastic10 REPLICA
//
// plain: with init_process_group. elastic: with run_elastic and a commit in each step; elastic10: in each tenth step.
//
// After each step one line goes to the FIFO that STEPS names: time, replica, step, whether it was committed, how many
// took part, CPU time of this process, the number of the round; times in ns.
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
  explicit Steps(std::string replica)
      : fd_(::open(std::getenv("STEPS"), O_WRONLY | O_CLOEXEC)), replica_(std::move(replica)) {}

  void tell(long long step, bool is_committed, const ddp::ProcessGroup& group) const {
    char line[160];
    const int length =
        std::snprintf(line, sizeof line, "%lld %s %lld %d %d %lld %u\n", now(CLOCK_MONOTONIC), replica_.c_str(), step,
                      is_committed ? 1 : 0, group.size(), now(CLOCK_PROCESS_CPUTIME_ID), group.round().number);
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
    done(group);
  }
}

void be_plain(const Steps& steps) {
  Mlp model;
  long long step = 0;
  train(ddp::init_process_group(), model, [&](const ddp::ProcessGroup& group) { steps.tell(++step, true, group); });
}

void be_elastic(const Steps& steps, int steps_per_commit) {
  Mlp model;
  long long step = 0;
  ddp::ElasticState state;
  state.add(model.parameters);
  state.add(step);
  ddp::run_elastic(state, [&](ddp::ProcessGroup world) {
    train(std::move(world), model, [&](const ddp::ProcessGroup& group) {
      const bool is_due = ++step % steps_per_commit == 0;
      if (is_due) state.commit();
      steps.tell(step, is_due, group);
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
    const std::string layer = argv[1];
    if (layer == "plain")
      be_plain(steps);
    else
      be_elastic(steps, layer == "elastic10" ? 10 : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
