// libddp from Python: the example of its C interface, and PyTorch's backend `ddp` of the package in python/.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/free_port.hpp"
#include "tests/interop/python.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const std::string kLibrary = "DDP_LIBRARY=" DDP_TEST_BIN_DIR "/../lib/libddp.so";

class NumpyExample : public PythonTest {
 protected:
  void SetUp() override { need_module("numpy"); }
};

// "loss L, bias B" of each rank.
std::vector<std::string> results_of_numpy_example(int ranks) {
  auto options = python_job();
  options.environment.push_back(kLibrary);
  const std::string folder = std::string(DDP_TEST_SOURCE_DIR) + "/examples/";
  Job job({"--standalone", "--no-prefix", "--nproc-per-node=" + std::to_string(ranks),
           folder + "train_numpy/train_numpy.py", folder + "data/breast_cancer.csv"},
          options);
  EXPECT_EQ(job.wait(), 0) << job.err();
  std::vector<std::string> results;
  std::istringstream lines(job.out());
  for (std::string line; std::getline(lines, line);) results.push_back(line.substr(line.find("loss")));
  return results;
}

TEST_F(NumpyExample, TwoRanksComeToTheResultOfOne) {
  const auto alone = results_of_numpy_example(1), both = results_of_numpy_example(2);
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_THAT(alone[0], HasSubstr("loss 0."));
  EXPECT_EQ(both, std::vector<std::string>(2, alone[0]));
}

// The package as if it were installed: with its entry points, so that scripts need not import it.
class DdpBackend : public PythonTest {
 protected:
  void SetUp() override {
    PythonTest::SetUp();
    const auto metadata = scratch_.path() / "ddprun-0.dist-info";
    std::filesystem::create_directory(metadata);
    std::ofstream(metadata / "METADATA") << "Metadata-Version: 2.1\nName: ddprun\nVersion: 0\n";
    std::ofstream(metadata / "entry_points.txt") << "[torch.distributed.backends]\nddp = ddprun.c10d:register\n";
  }

  Job::Options options() const {
    auto options = python_job();
    options.environment.push_back(kLibrary);
    options.environment.push_back("PYTHONPATH=" DDP_TEST_SOURCE_DIR "/python:" + scratch_.path().string());
    return options;
  }

  std::unique_ptr<Job> start(const std::string& backend, const std::string& part, int ranks = 2,
                             const std::string& debug = "OFF", const std::string& name = "ddp_backend.py") const {
    auto with_debug = options();
    with_debug.environment.push_back("TORCH_DISTRIBUTED_DEBUG=" + debug);
    return std::make_unique<Job>(
        std::vector<std::string>{"--standalone", "--no-prefix", "--nproc-per-node=" + std::to_string(ranks),
                                 script(name), backend, part},
        with_debug);
  }

  // What the cases of backend_cases.py came to, by "rank R | case".
  std::map<std::string, std::string> results(const std::string& backend, const std::string& part, int ranks) const {
    const auto job = start(backend, part, ranks, "OFF", "backend_cases.py");
    EXPECT_EQ(job->wait(), 0) << job->err();
    std::map<std::string, std::string> results;
    std::istringstream lines(job->out());
    for (std::string line; std::getline(lines, line);) {
      const std::size_t end = line.rfind(" | ");
      if (end == std::string::npos) continue;
      const std::string result = line.substr(end + 3);
      const bool is_error = result.size() > 5 && result.substr(result.size() - 5) == "Error";
      results[line.substr(0, end)] = is_error ? "refused" : result;
    }
    return results;
  }

  // Each case comes to the same with both backends, but for those that gloo refuses and ddp has.
  void expect_as_gloo(const std::string& part, int ranks, const std::set<std::string>& of_ddp_alone) const {
    const auto gloo = results("gloo", part, ranks), ours = results("ddp", part, ranks);
    std::set<std::string> refused_by_gloo_alone;
    EXPECT_FALSE(gloo.empty());
    for (const auto& [name, result] : gloo) {
      const auto found = ours.find(name);
      const std::string own = found == ours.end() ? "nothing" : found->second;
      const std::string what = name.substr(name.find(" | ") + 3);
      const bool is_more = result == "refused" && own != result && found != ours.end();
      if (is_more) refused_by_gloo_alone.insert(what.substr(0, what.find(" async")));
      if (name.rfind("rank 0", 0) == 0) {
        std::cout << what << ": "
                  << (is_more            ? "ddp alone"
                      : own != result    ? "DIFFERS"
                      : own == "refused" ? own
                                         : "same")
                  << "\n";
      }
      if (is_more) continue;
      EXPECT_EQ(own, result) << name;
    }
    EXPECT_EQ(gloo.size(), ours.size());
    EXPECT_EQ(refused_by_gloo_alone, of_ddp_alone);
  }

  const ScratchDirectory scratch_;
};

TEST_F(DdpBackend, DoesWhatGlooDoes) {
  expect_as_gloo("collectives", 3,
                 {"all_reduce AVG int32", "all_to_all of unequal sizes", "broadcast int16", "reduce AVG"});
}

TEST_F(DdpBackend, TrainsModelsToTheBitsOfGloo) { expect_as_gloo("models", 2, {}); }

TEST_F(DdpBackend, HasWhatDistributedDataParallelNeeds) {
  const auto job = start("ddp", "ops", 3);
  EXPECT_EQ(job->wait(), 0) << job->err();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job->out(), HasSubstr("rank " + std::to_string(rank) + " of 3: all as expected"));
  }
}

TEST_F(DdpBackend, TrainsUnderPytorchsOwnChecks) {
  const auto job = start("ddp", "train", 2, "DETAIL");
  EXPECT_EQ(job->wait(), 0) << job->err();
  const std::string out = job->out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 12) << out;
}

TEST_F(DdpBackend, RunsUnderTorchrun) {
  auto with_torchrun = options();
  with_torchrun.program = python();
  Job job({"-m", "torch.distributed.run", "--local-addr=127.0.0.1", "--standalone", "--nproc-per-node=2",
           script("ddp_backend.py"), "ddp", "ops"},
          with_torchrun);
  EXPECT_EQ(job.wait(), 0) << job.err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.out(), HasSubstr("rank " + std::to_string(rank) + " of 2: all as expected"));
  }
}

TEST_F(DdpBackend, RefusesAPortRangeThatIsNone) {
  auto by_hand = options();
  by_hand.program = python();
  for (const char* variable : {"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "DDPRUN_PORT_RANGE=300-200"}) {
    by_hand.environment.push_back(variable);
  }
  by_hand.environment.push_back("MASTER_PORT=" + free_port());
  Job job({script("ddp_backend.py"), "ddp", "ops"}, by_hand);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), HasSubstr("ValueError: DDPRUN_PORT_RANGE is '300-200'"));
}

TEST_F(DdpBackend, TellsWhichRankEnded) {
  const auto job = start("ddp", "die");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("rank 0 got: rank 1 "));
}

TEST_F(DdpBackend, BackwardRaisesWhenARankEnds) {
  const auto job = start("ddp", "die_in_backward");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), ContainsRegex("rank 0 got: .*rank 1 "));
  EXPECT_THAT(job->out(), HasSubstr("rank 0 got then: "));
}

TEST_F(DdpBackend, FailureInASubGroupAccusesNoRankByItsNumberThere) {
  const auto job = start("ddp", "die_in_group", 3);
  EXPECT_EQ(job->wait(), 3) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("rank 1 got: rank 1 "));  // rank 1 of the group, which is rank 2 of the job
  EXPECT_THAT(job->err(), HasSubstr("error: rank 1 ended with exit code 3"));
  EXPECT_THAT(job->err(), Not(HasSubstr("look at rank"))) << "that rank 1 failed because of rank 1";
}

class ElasticPytorch : public DdpBackend {
 protected:
  std::unique_ptr<Job> start_elastic(const std::vector<std::string>& arguments, int ranks = 2) const {
    std::vector<std::string> words{"--standalone", "--no-prefix", "--nproc-per-node=" + std::to_string(ranks),
                                   "--max-restarts=1", script("train_elastic.py")};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return std::make_unique<Job>(words, options());
  }

  static std::string survivor(Job& job, int rank = 0) {
    const std::string begin = "rank " + std::to_string(rank) + " pid ";
    return begin + std::to_string(job.number_after(begin)) + " ";
  }

  // By "rank R step S". Each step of each rank is printed once.
  static std::map<std::string, std::string> losses(const std::string& out) {
    std::map<std::string, std::string> losses;
    std::istringstream lines(out);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string rank_word, rank, pid_word, pid, step_word, step, loss_word, loss;
      words >> rank_word >> rank >> pid_word >> pid >> step_word >> step >> loss_word >> loss;
      if (loss_word != "loss") continue;
      EXPECT_TRUE(losses.emplace("rank " + rank + " step " + step, loss).second) << line;
    }
    return losses;
  }
};

TEST_F(ElasticPytorch, SurvivorKeepsItsProcessAndLossesGoOnAfterAKill) {
  const auto undisturbed = start_elastic({"8"});
  ASSERT_EQ(undisturbed->wait(), 0) << undisturbed->err();
  const auto killed = start_elastic({"8", "4"});
  ASSERT_EQ(killed->wait(), 0) << killed->out() << killed->err();
  const auto expected = losses(undisturbed->out());
  EXPECT_THAT(expected, SizeIs(16));
  EXPECT_EQ(losses(killed->out()), expected) << killed->out();

  const std::string out = killed->out();
  const std::string survivor = "rank 0 pid " + std::to_string(killed->number_after("rank 0 pid ")) + " ";
  EXPECT_THAT(out, HasSubstr(survivor + "begins at step 0 with []"));
  EXPECT_THAT(out, HasSubstr(survivor + "begins at step 4 with [1, 2, 3, 4]"));
  const auto died = killed->number_after("dies at ");
  const auto raised = killed->number_after(survivor + "raised DistBackendError at ");
  const auto committed = killed->number_after(survivor + "has committed step 4 at ");
  ASSERT_GT(died, 0);
  ASSERT_GT(raised, 0);
  ASSERT_GT(committed, 0);
  std::cout << "the survivor raised after " << raised - died << " ms, and committed its next step after "
            << committed - died << " ms, " << committed - killed->number_after("replacement is ready at ")
            << " ms after the replacement had imported PyTorch\n";
  EXPECT_LT(raised - died, 2000) << "far below the timeout of 10 minutes, on a loaded machine too";
}

TEST_F(ElasticPytorch, SurvivorThatMakesAGroupMeanwhileKeepsItsProcess) {
  const auto killed = start_elastic({"4", "2", "new_group"});
  ASSERT_EQ(killed->wait(), 0) << killed->out() << killed->err();
  const std::string survivor = "rank 0 pid " + std::to_string(killed->number_after("rank 0 pid ")) + " ";
  EXPECT_THAT(killed->out(), HasSubstr(survivor + "begins at step 2 with [1, 2]"));
  EXPECT_THAT(killed->out(), HasSubstr(survivor + "ends"));
  const auto waited = killed->number_after(survivor + "raised DistBackendError at ") - killed->number_after("dies at ");
  EXPECT_LT(waited, 2000) << "far below the timeout of 10 minutes, on a loaded machine too";
}

TEST_F(ElasticPytorch, SurvivorsInAGroupWithoutTheDeadRankKeepTheirProcesses) {
  const auto killed = start_elastic({"4", "2", "sub_group"}, 3);
  ASSERT_EQ(killed->wait(), 0) << killed->out() << killed->err();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(killed->out(), HasSubstr(survivor(*killed, rank) + "begins at step 2 with [1, 2]"));
    const auto raised = killed->number_after(survivor(*killed, rank) + "raised DistBackendError at ");
    ASSERT_GT(raised, 0) << killed->out();
    EXPECT_LT(raised - killed->number_after("dies at "), 2000) << "far below ddprun's limit of 30 s";
  }
}

TEST_F(ElasticPytorch, ARankThatStopsWhileOthersAreInBackwardIsFoundByThem) {
  const auto stopped = start_elastic({"4", "2", "stops"});
  ASSERT_EQ(stopped->wait(), 0) << stopped->out() << stopped->err();
  EXPECT_THAT(stopped->err(), HasSubstr("rank 1 was killed by ddprun"));
  EXPECT_THAT(stopped->out(), HasSubstr(survivor(*stopped) + "raised RuntimeError at "));
  EXPECT_THAT(stopped->out(), HasSubstr(survivor(*stopped) + "begins at step 2 with [1, 2]"));
}

TEST_F(ElasticPytorch, AnErrorOfTheStoreBeforeTheNewsOfTheEndOfTheRoundIsAnsweredByTheNextRound) {
  const auto killed = start_elastic({"4", "2", "store"});
  ASSERT_EQ(killed->wait(), 0) << killed->out() << killed->err();
  EXPECT_THAT(killed->out(), HasSubstr(survivor(*killed) + "begins at step 2 with [1, 2]"));
}

TEST_F(ElasticPytorch, AnErrorOfTheProgramAfterAFailureThatItHasHandledEndsIt) {
  const auto job = start_elastic({"8", "4", "handled"});
  EXPECT_NE(job->wait(), 0);
  EXPECT_THAT(job->err(), HasSubstr("ZeroDivisionError: of the program"));
}

TEST_F(ElasticPytorch, WithoutALauncherTheProgramHasItsStateAndItsOwnException) {
  auto by_hand = options();
  by_hand.program = python();
  by_hand.environment.push_back("RANK=0");
  by_hand.environment.push_back("WORLD_SIZE=1");
  Job job({script("train_elastic.py"), "0", "0", "alone"}, by_hand);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("one tensor [1.0, 1.0]\n"));
  EXPECT_THAT(job.out(), HasSubstr("raised OwnError, because of "));
  EXPECT_THAT(job.out(), HasSubstr("the program wants it so"));
}

TEST_F(ElasticPytorch, AnErrorOfTheProgramEndsIt) {
  const auto job = start_elastic({"8", "4", "by_error"});
  EXPECT_NE(job->wait(), 0);
  EXPECT_THAT(job->err(), HasSubstr("ZeroDivisionError: of the program"));
}

TEST_F(DdpBackend, AProcessMayEndWithACollectiveUnderWay) {
  const auto job = start("ddp", "leave");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->out(), "called\n");
}

}  // namespace
}  // namespace ddp::test
