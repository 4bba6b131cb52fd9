// The example program over two hosts under ddprun: a worker killed in mid-training costs a restart and changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/multihost/multihost.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ddp::test::contents_of;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr long kStepsPerEpoch = 14;  // 455 samples, 4 workers, batch 8

// Four workers on two hosts, and their checkpoints.
class Training {
 public:
  // Of so many epochs; 0: without end at first, and for 20 epochs from where that was once they have started again.
  Training(Hosts& hosts, long epochs)
      : one_(hosts.run(1, node(1, epochs), environment())), zero_(hosts.run(0, node(0, epochs), environment())) {}

  void expect_success() {
    EXPECT_EQ(zero_.wait(), 0) << zero_.err();
    EXPECT_EQ(one_.wait(), 0) << one_.err();
  }
  std::string out() const { return zero_.out(); }
  std::string err() const { return zero_.err() + one_.err(); }

  struct Checkpoint {
    long step = 0;
    fs::path path;
  };
  Checkpoint newest() const {
    Checkpoint newest;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(checkpoints_, ignored)) {
      const std::string name = entry.path().filename();
      const auto at = name.rfind("_step_");
      if (at == std::string::npos || entry.path().extension() != ".safetensors") continue;
      const long step = std::strtol(name.c_str() + at + 6, nullptr, 10);
      if (step > newest.step) newest = {step, entry.path()};
    }
    return newest;
  }

  // The pid, as this process sees it, of the worker of this rank; -1 where there is none.
  pid_t worker(int rank) const {
    const std::string end(1, '\0');
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
      const long pid = std::strtol(entry.path().filename().c_str(), nullptr, 10);
      if (pid <= 0 || fs::read_symlink(entry.path() / "exe", ignored) != fs::canonical(built("train_breast_cancer"))) {
        continue;
      }
      const std::string variables = end + contents_of(entry.path() / "environ");
      const bool is_ours = variables.find(end + "TRAINING=" + scratch_.path().string() + end) != std::string::npos;
      if (is_ours && variables.find(end + "RANK=" + std::to_string(rank) + end) != std::string::npos) {
        return static_cast<pid_t>(pid);
      }
    }
    return -1;
  }

 private:
  std::vector<std::string> node(int rank, long epochs) const {
    const std::string script =
        "epochs=$2; if [ $epochs = 0 ]; then epochs=1000000; if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then"
        "  step=$(ls \"$1\" | sed 's/.*_step_//; s/[.].*//' | sort -n | tail -n 1); epochs=$((step / 14 + 20)); fi; fi;"
        "exec \"$0\" --checkpoint-dir \"$1\" --resume --epochs=$epochs --checkpoint-every=50";
    return {built("ddprun"),
            "--nnodes=2",
            "--node-rank=" + std::to_string(rank),
            "--master-addr=" + Hosts::ipv4(0),
            "--master-port=29400",
            "--nproc-per-node=2",
            "--max-restarts=1",
            "sh",
            "-c",
            script,
            built("train_breast_cancer"),
            checkpoints_.string(),
            std::to_string(epochs)};
  }
  // Without LeakSanitizer, where there is one: it hangs where ddprun's SIGTERM comes just as it stops threads.
  std::vector<std::string> environment() const {
    return {"TRAINING=" + scratch_.path().string(), "ASAN_OPTIONS=detect_leaks=0"};
  }

  ScratchDirectory scratch_;
  fs::path checkpoints_ = scratch_.path() / "checkpoints";
  HostProcess one_, zero_;
};

class DdprunTraining : public Multihost {};

TEST_F(DdprunTraining, AWorkerKilledInMidTrainingChangesNoBitOfTheResult) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  for (const int victim : {0, 3}) {
    SCOPED_TRACE("kill -9 of rank " + std::to_string(victim));
    Training training(*hosts, 0);
    ASSERT_TRUE(becomes_true([&] { return training.newest().step > 0; })) << training.err();
    const pid_t pid = training.worker(victim);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    training.expect_success();
    EXPECT_THAT(training.out(), HasSubstr("resumed after step "));
    EXPECT_THAT(training.err(), HasSubstr("rank " + std::to_string(victim) + " was killed by SIGKILL"));
    const auto result = training.newest();
    ASSERT_EQ(result.step % kStepsPerEpoch, 0);

    Training undisturbed(*hosts, result.step / kStepsPerEpoch);
    undisturbed.expect_success();
    EXPECT_EQ(undisturbed.newest().step, result.step);
    EXPECT_TRUE(contents_of(undisturbed.newest().path) == contents_of(result.path)) << "after step " << result.step;
  }
}

}  // namespace
}  // namespace ddp::test
