#include "ddp/checkpointer.hpp"

#include "ddp/checkpoint.hpp"
#include "ddp/distributed_sampler.hpp"
#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "ddp/gradient_scaling.hpp"
#include "tests/unit/worker_runtime/parameters_of.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace ddp {
namespace {

using test::results_of_ranks;
using test::ScratchDirectory;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A small training run with everything that a checkpoint has to bring back.
class TrainingRun {
 public:
  TrainingRun(ProcessGroup world, CheckpointerOptions options, Sharding sharding = Sharding::gradients)
      : world_(world),
        optimizer_(world, parameters(), AdamWOptions{.learning_rate = 0.01}, sharding),
        model_(world, parameters(), small_buckets()),
        cursor_(DistributedSampler({100, world.size(), world.rank()}), 3, LastBatch::keep),
        random_(static_cast<unsigned>(world.rank())),
        checkpoints_(world, std::move(options)) {
    checkpoints_.add(parameters());
    checkpoints_.add("step", step_);
    checkpoints_.add("sampler", cursor_);
    checkpoints_.add(optimizer_);
    checkpoints_.add_own("random", random_);
    checkpoints_.add_own([this] { return std::vector<Parameter>{{"seen", {1}, MemoryRange(&seen_, 1)}}; });
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto batch = cursor_.next_batch();
      optimizer_.wait();
      auto open = model_.begin_step();
      for (std::size_t p = parameters().size(); p-- > 0;) {
        auto* const gradient = model_.gradient<float>(p).data();
        for (std::size_t e = 0; e < model_.gradient(p).count; ++e) {
          gradient[e] += static_cast<float>(random_() % 1000) / 1000.0f + static_cast<float>(batch[e % batch.size()]);
        }
        open.ready(p);
      }
      open.finish();
      optimizer_.step();
      seen_ += batch.front();
      ++step_;
    }
  }

  void save() { checkpoints_.save(static_cast<std::uint64_t>(step_)); }
  Checkpointer& checkpoints() { return checkpoints_; }
  std::int64_t step() const { return step_; }

  // Of all ranks: parameters, step and the position of the sampler.
  std::string shared_text() {
    optimizer_.wait();
    std::ostringstream text;
    text << std::hexfloat;
    for (const auto& values : values_) {
      for (const float each : values) text << each << " ";
    }
    text << step_ << " " << to_string(cursor_.state());
    return text.str();
  }

  // Of this rank: its part of the moments, its generator and what it has seen.
  std::string own_text() {
    std::ostringstream text;
    text << std::hexfloat << seen_ << " " << random_;
    for (const auto& shard : optimizer_.shards()) {
      text << " " << shard.name << shard.first;
      for (std::size_t i = 0; i < shard.values.count; ++i) text << " " << static_cast<float*>(shard.values.data)[i];
    }
    return text.str();
  }

  std::string text() { return shared_text() + own_text(); }

 private:
  std::vector<Parameter> parameters() { return test::parameters_of(values_); }

  DistributedDataParallelOptions small_buckets() {
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 512;
    optimizer_.prepare(options);
    return options;
  }

  ProcessGroup world_;
  std::vector<std::vector<float>> values_{std::vector<float>(200, 0.5f), std::vector<float>(7, 0.25f),
                                          std::vector<float>(33, 1.0f), std::vector<float>(1, 2.0f)};
  std::int64_t step_ = 0, seen_ = 0;
  ShardedOptimizer optimizer_;
  DistributedDataParallel model_;
  SamplerCursor<DistributedSampler> cursor_;
  std::mt19937 random_;
  Checkpointer checkpoints_;
};

CheckpointerOptions into(const std::filesystem::path& directory, CheckpointForm form = CheckpointForm::parts) {
  CheckpointerOptions options;
  options.directory = directory;
  options.form = form;
  return options;
}

std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path newest_in(const std::filesystem::path& directory) {
  return directory / names_in(directory).back();
}

std::string thrown_text(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

class CheckpointerForms : public ::testing::TestWithParam<CheckpointForm> {};

TEST_P(CheckpointerForms, AResumedRunEndsInTheSameBits) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
    TrainingRun uninterrupted(world, into(scratch.path() / "a", GetParam()));
    uninterrupted.train(9);
    TrainingRun first(world, into(scratch.path() / "b", GetParam()));
    if (first.checkpoints().load()) return "found something in an empty folder";
    first.train(4);
    first.save();
    first.train(1);  // changes the memory while that is written
    first.checkpoints().wait();
    TrainingRun resumed(world, into(scratch.path() / "b", GetParam()));
    const auto loaded = resumed.checkpoints().load();
    if (!loaded || loaded->step != 4 || loaded->rank_count != 3 || !loaded->has_own_state) return "loaded another";
    resumed.train(5);
    return uninterrupted.text() == resumed.text() ? "same" : "different";
  });
  EXPECT_THAT(results, Each("same"));
}

TEST_P(CheckpointerForms, AnotherNumberOfRanksGoesOn) {
  const ScratchDirectory scratch;
  const auto saved = results_of_ranks(3, [&](ProcessGroup world) {
    TrainingRun run(world, into(scratch.path(), GetParam()));
    run.train(4);
    run.save();
    run.checkpoints().wait();
    return run.shared_text();
  });
  for (const int size : {1, 2, 4}) {
    const auto loaded = results_of_ranks(size, [&](ProcessGroup world) -> std::string {
      TrainingRun run(world, into(scratch.path(), GetParam()));
      const auto found = run.checkpoints().load();
      if (!found || found->rank_count != 3 || found->has_own_state) return "loaded another";
      const std::string text = run.shared_text();
      run.train(2);
      return text;
    });
    EXPECT_THAT(loaded, Each(saved[0])) << size;
  }
}

TEST_P(CheckpointerForms, TheNewestFewStay) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    CheckpointerOptions options = into(scratch.path(), GetParam());
    options.keep = 2;
    TrainingRun run(world, options);
    for (int i = 0; i < 4; ++i) run.train(1), run.save();
    run.checkpoints().wait();
    world.barrier();
    return std::to_string(names_in(scratch.path()).size());
  });
  EXPECT_THAT(results, Each("2"));
  EXPECT_THAT(newest_in(scratch.path()).string(), HasSubstr("_step_4"));
}

INSTANTIATE_TEST_SUITE_P(Both, CheckpointerForms, ::testing::Values(CheckpointForm::parts, CheckpointForm::single));

// Saves two checkpoints, breaks the newer one, and loads: what step was found, and the warnings of rank 0.
std::vector<std::string> loaded_after(CheckpointForm form,
                                      const std::function<void(const std::filesystem::path&)>& harm) {
  const ScratchDirectory scratch;
  return results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    {
      TrainingRun run(world, into(scratch.path(), form));
      run.train(1), run.save(), run.train(1), run.save();
      run.checkpoints().wait();
    }
    world.barrier();
    if (world.rank() == 0) harm(newest_in(scratch.path()));
    world.barrier();
    std::string warnings;
    CheckpointerOptions options = into(scratch.path(), form);
    options.warn = [&](const std::string& message) { warnings += message; };
    TrainingRun run(world, options);
    const auto loaded = run.checkpoints().load();
    return (loaded ? "step " + std::to_string(loaded->step) : "nothing") + "; " + std::to_string(run.step()) + "; " +
           warnings;
  });
}

void flip_last_byte(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST(Checkpointer, ABrokenCheckpointIsPassedOverWithAWarningThatNamesIt) {
  const struct {
    const char* what;
    CheckpointForm form;
    std::function<void(const std::filesystem::path&)> harm;
    const char* warning;
  } cases[] = {
      {"part missing", CheckpointForm::parts,
       [](const auto& path) { std::filesystem::remove(path / "rank_1_of_2.safetensors"); }, "rank_1_of_2.safetensors"},
      {"part torn", CheckpointForm::parts,
       [](const auto& path) { std::filesystem::resize_file(path / "rank_1_of_2.safetensors", 100); }, "has 100 bytes"},
      {"part changed", CheckpointForm::parts,
       [](const auto& path) { flip_last_byte(path / "rank_0_of_2.safetensors"); }, "checksum"},
      {"no manifest", CheckpointForm::parts, [](const auto& path) { std::filesystem::remove(path / "manifest.json"); },
       "did not come to the end"},
      {"manifest torn", CheckpointForm::parts,
       [](const auto& path) { std::filesystem::resize_file(path / "manifest.json", 50); }, "manifest"},
      {"file torn", CheckpointForm::single, [](const auto& path) { std::filesystem::resize_file(path, 1000); },
       "of 1000"},
      {"file changed", CheckpointForm::single, [](const auto& path) { flip_last_byte(path); }, "checksum"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.what);
    const auto results = loaded_after(each.form, each.harm);
    EXPECT_THAT(results[0], AllOf(HasSubstr("step 1; 1; "), HasSubstr("_step_2"), HasSubstr(each.warning)));
    EXPECT_EQ(results[1], "step 1; 1; ") << "rank 0 speaks for all";
  }
}

TEST(Checkpointer, IfAllAreBrokenLoadThrowsAndAnUnfinishedFirstOneIsNone) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    TrainingRun run(world, into(scratch.path()));
    run.train(1), run.save();
    run.checkpoints().wait();
    world.barrier();
    const auto path = newest_in(scratch.path());
    if (world.rank() == 0) flip_last_byte(path / "rank_1_of_2.safetensors");
    world.barrier();
    const std::string broken = thrown_text([&] { static_cast<void>(run.checkpoints().load()); });
    if (world.rank() == 0) std::filesystem::remove(path / "manifest.json");
    world.barrier();
    return (run.checkpoints().load() ? "something; " : "nothing; ") + broken;
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("nothing; "), HasSubstr("can be loaded, though there are some"))));
}

TEST(Checkpointer, WhatOneRankCannotWriteIsAnErrorOnAllRanksAndEarlierOnesStay) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    const auto good = scratch.path() / "good";
    {
      TrainingRun run(world, into(good));
      run.train(1), run.save();
      run.checkpoints().wait();
    }
    const auto bad = scratch.path() / "file";
    if (world.rank() == 1) std::ofstream(bad) << "no folder";
    TrainingRun run(world, into(world.rank() == 1 ? bad : good));
    run.train(2), run.save();
    const std::string thrown = thrown_text([&] { run.save(); });
    const std::string again = thrown_text([&] { run.checkpoints().wait(); });  // that save() began nothing
    TrainingRun later(world, into(good));
    return std::to_string(later.checkpoints().load()->step) + " " + thrown + " " + again;
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("1 the checkpoint of step 2 is not complete: rank 1: "), HasSubstr("/file"),
                                  ::testing::EndsWith(" nothing"))));
}

TEST(Checkpointer, WhatOneRankCannotCopyIsAnErrorOnAllRanks) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::int64_t number = 1;
    Checkpointer checkpoints(world, into(scratch.path()));
    checkpoints.add("number", number);
    bool fails = true;
    checkpoints.add_own_text("text", {[&]() -> std::string {
                                        if (fails && world.rank() == 1) throw InvalidArgument("no text today");
                                        return "text";
                                      },
                                      [](const std::string&) {}});
    checkpoints.save(1);
    const std::string thrown = thrown_text([&] { checkpoints.wait(); });
    fails = false;
    checkpoints.save(2);
    checkpoints.wait();
    const auto loaded = checkpoints.load();
    checkpoints.add("number", number);
    checkpoints.save(3);
    return thrown + "; " + std::to_string(loaded->step) + "; " + thrown_text([&] { checkpoints.wait(); });
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("no checkpoint was saved: rank 1: no text today; 2; "),
                                  HasSubstr("tensor number is saved twice"))));
}

TEST(Checkpointer, LoadThrowsAndChangesNothingIfTensorsDiffer) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::vector<float> saved{1, 2, 3};
    {
      Checkpointer checkpoints(world, into(scratch.path()));
      checkpoints.add({"w", {3}, saved});
      checkpoints.save(1);
      checkpoints.wait();
    }
    const auto load = [&](const Parameter& tensor) {
      Checkpointer checkpoints(world, into(scratch.path()));
      checkpoints.add(tensor);
      return thrown_text([&] { static_cast<void>(checkpoints.load()); }) + "\n";
    };
    std::vector<float> w{7, 7, 7}, longer{7, 7, 7, 7};
    std::vector<std::int32_t> whole{7, 7, 7};
    return load({"v", {3}, w}) + load({"w", {4}, longer}) + load({"w", {3}, whole}) + std::to_string(w[0]) +
           std::to_string(longer[0]) + std::to_string(whole[0]);
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("it has no tensor v"), HasSubstr("float32 [3], wanted is float32 [4]"),
                                  HasSubstr("wanted is int32 [3]"), ::testing::EndsWith("7.0000007.0000007"))));
}

TEST(Checkpointer, AFileOfCheckpointDirectoryIsLoaded) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::vector<float> w{1, 2, 3};
    if (world.rank() == 0) CheckpointDirectory(scratch.path()).save(world.round(), 5, {{"w", {3}, w}});
    world.barrier();
    w = {0, 0, 0};
    Checkpointer checkpoints(world, into(scratch.path()));
    checkpoints.add({"w", {3}, w});
    const auto loaded = checkpoints.load();
    return std::to_string(loaded->step) + std::to_string(w[2]);
  });
  EXPECT_THAT(results, Each("53.000000"));
}

// As another job does that keeps one checkpoint: it saves a newer one, and removes the one that is about to be loaded.
TEST(Checkpointer, LoadLooksAgainIfNewerCheckpointsReplaceTheListedOnes) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::vector<float> w{1, 2, 3};
    CheckpointDirectory other_job(scratch.path(), 1);
    if (world.rank() == 0) std::filesystem::resize_file(other_job.save(world.round(), 5, {{"w", {3}, w}}), 100);
    world.barrier();
    CheckpointerOptions options = into(scratch.path());
    int warnings = 0;
    options.warn = [&](const std::string&) {
      if (++warnings > 1) return;
      std::vector<float> newer{4, 5, 6};
      other_job.save(world.round(), 6, {{"w", {3}, newer}});
    };
    Checkpointer checkpoints(world, options);
    checkpoints.add({"w", {3}, w});
    const auto loaded = checkpoints.load();
    return std::to_string(loaded ? loaded->step : 0) + " " + std::to_string(w[2]);
  });
  EXPECT_THAT(results, Each("6 6.000000"));
}

TEST(Checkpointer, DisksOfTheirOwnOnEachHostDoNotDisagree) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
    const auto own = scratch.path() / std::to_string(world.rank());
    std::string text;
    {
      TrainingRun run(world, into(own));
      run.train(2), run.save(), run.train(1), run.save();
      run.checkpoints().wait();
      text = run.text();
    }
    world.barrier();
    if (world.rank() == 1) std::filesystem::remove_all(newest_in(own));  // the newest is not whole any more
    world.barrier();
    std::string warnings;
    CheckpointerOptions options = into(own);
    options.warn = [&](const std::string& message) { warnings += message; };
    TrainingRun run(world, options);
    const auto loaded = run.checkpoints().load();
    run.train(1);
    return (loaded ? std::to_string(loaded->step) : "nothing") + (run.text() == text ? " same " : " different ") +
           warnings;
  });
  EXPECT_THAT(results, Each(HasSubstr("2 same")));
  EXPECT_THAT(results[0], HasSubstr("_step_3 is passed over: no rank has the part of rank 1 of 3"));
}

TEST(Checkpointer, ARankThatIsReplacedRecoversFromTheMemoryOfTheOthers) {
  const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
    auto memory = std::make_unique<CheckpointMemory>();
    CheckpointerOptions options;
    options.memory = memory.get();
    std::string text;
    {
      TrainingRun run(world, options);
      for (int i = 0; i < 5; ++i) run.train(1), run.save();
      run.checkpoints().wait();
      text = run.text();
      run.train(1);  // is lost
    }
    if (world.rank() == 1) memory = std::make_unique<CheckpointMemory>();  // a new process has nothing
    options.memory = memory.get();
    TrainingRun run(world, options);
    const auto loaded = run.checkpoints().load();
    if (!loaded || !loaded->is_from_memory || loaded->step != 5 || run.text() != text) return "different";
    run.train(1), run.save();
    run.checkpoints().wait();
    // Now two neighbours are gone: rank 2 has the copy of rank 1's part.
    if (world.rank() >= 1) memory = std::make_unique<CheckpointMemory>();
    options.memory = memory.get();
    options.warn = [](const std::string&) {};
    TrainingRun lost(world, options);
    return lost.checkpoints().load() ? "found something" : "same";
  });
  EXPECT_THAT(results, Each("same"));
}

TEST(Checkpointer, AfterLoadingTheNextRankMayBeReplacedAtOnce) {
  const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
    auto memory = std::make_unique<CheckpointMemory>();
    CheckpointerOptions options;
    options.memory = memory.get();
    std::string text;
    {
      TrainingRun run(world, options);
      run.train(2), run.save();
      run.checkpoints().wait();
      text = run.text();
    }
    for (int replaced = 0; replaced < world.size(); ++replaced) {
      if (world.rank() == replaced) memory = std::make_unique<CheckpointMemory>();
      options.memory = memory.get();
      TrainingRun run(world, options);
      const auto loaded = run.checkpoints().load();
      if (!loaded || !loaded->is_from_memory || run.text() != text) return "lost with " + std::to_string(replaced);
    }
    return "same";
  });
  EXPECT_THAT(results, Each("same"));
}

TEST(Checkpointer, TakesTheNewestThatIsWholeOfMemoryAndDisk) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(3, [&](ProcessGroup world) -> std::string {
    auto memory = std::make_unique<CheckpointMemory>();
    std::string warnings;
    CheckpointerOptions in_memory, on_disk = into(scratch.path());
    in_memory.memory = memory.get();
    {
      TrainingRun disk(world, on_disk), kept(world, in_memory);
      disk.train(1), disk.save();
      disk.checkpoints().wait();
      kept.train(2), kept.save();
      kept.checkpoints().wait();
    }
    if (world.rank() > 0) memory = std::make_unique<CheckpointMemory>();  // rank 2 had the copy of rank 1's part
    CheckpointerOptions both = on_disk;
    both.memory = memory.get();
    both.warn = [&](const std::string& message) { warnings += message; };
    TrainingRun older(world, both);
    const auto from_disk = older.checkpoints().load();
    older.train(2), older.save();  // of step 3, and complete in both
    older.checkpoints().wait();
    {
      TrainingRun disk(world, on_disk);
      disk.train(4), disk.save();
      disk.checkpoints().wait();
    }
    TrainingRun newer(world, both), again(world, both);
    const auto newest = newer.checkpoints().load(), held = again.checkpoints().load();
    const auto text = [](const LoadedCheckpoint& of) {
      return std::to_string(of.step) + (of.is_from_memory ? " memory; " : " disk; ");
    };
    return text(*from_disk) + text(*newest) + text(*held) + warnings;
  });
  EXPECT_EQ(results[0],
            "1 disk; 4 disk; 4 memory; "
            "checkpoint of step 2 in memory is passed over: no rank has the part of rank 1 of 3");
  EXPECT_EQ(results[1], "1 disk; 4 disk; 4 memory; ");
}

// The checkpoint of rank 0 waits for rank 1, which never saves it.
void expect_prompt_end(const std::function<void(ProcessGroup& world)>& fail) {
  const ScratchDirectory scratch;
  const testing::Shared<std::atomic<bool>> is_over;
  testing::run_ranks(2, [&](int) {
    ProcessGroup world = init_process_group({.timeout = testing::kPatience});
    CheckpointMemory memory;
    CheckpointerOptions options = into(scratch.path());  // write_timeout is longer than the test may take
    options.memory = &memory;
    std::int64_t number = 1;
    bool has_thrown = false;
    ::testing::internal::CaptureStderr();
    try {
      Checkpointer checkpoints(world, options);
      checkpoints.add("number", number);
      if (world.rank() == 1) {
        testing::wait_until([&] { return is_over->load(); });
      } else {
        checkpoints.save(1);
        fail(world);
      }
    } catch (const Error&) {
      has_thrown = true;
    }
    is_over->store(true);
    EXPECT_EQ(has_thrown, world.rank() == 0);
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  });
}

TEST(Checkpointer, IfTheGroupHasFailedItsEndWaitsForNothingAndSaysNothing) {
  expect_prompt_end([](ProcessGroup& world) { world.barrier({.timeout = std::chrono::milliseconds(50)}); });
  expect_prompt_end([](ProcessGroup& world) {
    world.abort("enough");
    world.barrier();
  });
}

TEST(Checkpointer, TheStateOfAHookIsEachRanksOwn) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    const auto train = [&](std::vector<float>& w, DistributedDataParallel& model, int from, int to) {
      for (int i = from; i < to; ++i) {
        auto step = model.begin_step();
        auto* const gradient = model.gradient<float>(0).data();
        for (std::size_t e = 0; e < w.size(); ++e) {
          gradient[e] = static_cast<float>((e * 7 + static_cast<std::size_t>(i + world.rank())) % 11);
        }
        step.ready(0);
        step.finish();
        for (std::size_t e = 0; e < w.size(); ++e) w[e] -= 0.01f * gradient[e];
      }
    };
    const auto make = [&](std::vector<float>& w, std::shared_ptr<CommunicationHook>& hook) {
      DistributedDataParallelOptions options;
      hook = options.communication_hook = power_sgd({.rank = 1, .start_step = 2});
      return DistributedDataParallel(world, {{"w", {16, 16}, w}}, options);
    };
    std::vector<float> w(256, 1.0f), resumed(256, 1.0f);
    std::shared_ptr<CommunicationHook> hook, resumed_hook;
    auto model = make(w, hook);
    train(w, model, 0, 5);
    Checkpointer checkpoints(world, into(scratch.path()));
    checkpoints.add({"w", {16, 16}, w});
    checkpoints.add_own([&] { return hook->state(); });
    checkpoints.save(5);
    checkpoints.wait();
    train(w, model, 5, 9);
    auto resumed_model = make(resumed, resumed_hook);
    Checkpointer later(world, into(scratch.path()));
    later.add({"w", {16, 16}, resumed});
    later.add_own([&] { return resumed_hook->state(); });
    if (!later.load()) return "nothing";
    train(resumed, resumed_model, 5, 9);
    return w == resumed ? "same" : "different";
  });
  EXPECT_THAT(results, Each("same"));
}

// Gradients become ready in another order than the parameters', so a rebuild makes other buckets.
class RebuiltRun {
 public:
  RebuiltRun(ProcessGroup world, const std::shared_ptr<CommunicationHook>& hook, const std::filesystem::path& folder)
      : world_(world), model_(world, parameters(), rebuilt_buckets(hook)), checkpoints_(world, into(folder)) {
    checkpoints_.add(parameters());
    checkpoints_.add("step", step_);
    checkpoints_.add(model_);
    if (hook) checkpoints_.add_own([hook] { return hook->state(); });
  }

  // Returns what training came to, and all norms on the way.
  std::string train(int to) {
    std::ostringstream text;
    text << std::hexfloat;
    while (step_ < to) {
      auto open = model_.begin_step();
      for (const std::size_t p : {2, 0, 3, 1}) {
        auto* const gradient = model_.gradient<float>(p).data();
        for (std::size_t e = 0; e < values_[p].size(); ++e) {
          const auto i = static_cast<float>(e + 1 + 31 * p + 7 * static_cast<std::size_t>(step_));
          gradient[e] = std::sin(i * static_cast<float>(world_.rank() + 1));
        }
        open.ready(p);
      }
      open.finish();
      text << static_cast<double>(clip_gradients_by_norm(model_, 0.5)) << " ";
      for (std::size_t p = 0; p < values_.size(); ++p) {
        for (std::size_t e = 0; e < values_[p].size(); ++e) values_[p][e] -= model_.gradient<float>(p).data()[e];
      }
      ++step_;
    }
    for (const auto& values : values_) {
      for (const float each : values) text << each << " ";
    }
    return text.str();
  }

  void save() {
    checkpoints_.save(static_cast<std::uint64_t>(step_));
    checkpoints_.wait();
  }
  bool load() { return checkpoints_.load().has_value(); }
  DistributedDataParallel& model() { return model_; }

 private:
  std::vector<Parameter> parameters() { return test::parameters_of(values_); }

  static DistributedDataParallelOptions rebuilt_buckets(const std::shared_ptr<CommunicationHook>& hook) {
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 12'800;  // one parameter, or two
    options.rebuild_buckets = RebuildBuckets::automatic;
    options.communication_hook = hook;
    return options;
  }

  ProcessGroup world_;
  std::vector<std::vector<float>> values_{std::vector<float>(3500), std::vector<float>(1650), std::vector<float>(2000),
                                          std::vector<float>(4500)};
  std::int64_t step_ = 0;
  DistributedDataParallel model_;
  Checkpointer checkpoints_;
};

TEST(Checkpointer, AResumedRunHasTheRebuiltBucketsAndSoTheSameBits) {
  for (const bool has_hook : {false, true}) {
    for (const int saved_at : {1, 4}) {  // a rebuild is due; it was made
      SCOPED_TRACE((has_hook ? "top_k, step " : "norm, step ") + std::to_string(saved_at));
      const ScratchDirectory scratch;
      const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
        const auto hook = [&] { return has_hook ? top_k({.ratio = 0.1}) : nullptr; };
        RebuiltRun run(world, hook(), scratch.path()), resumed(world, hook(), scratch.path());
        const std::string first_buckets = run.model().describe_buckets();
        run.train(saved_at);
        run.save();
        const std::string all = run.train(9);
        if (run.model().describe_buckets() == first_buckets) return "the buckets are as they were";
        if (!resumed.load()) return "nothing was loaded";
        return resumed.train(9) == all ? "same" : "different";
      });
      EXPECT_THAT(results, Each("same"));
    }
  }
}

TEST(Checkpointer, RebuiltBucketsGoOnWithAnotherNumberOfRanks) {
  const ScratchDirectory scratch;
  const auto saved = results_of_ranks(3, [&](ProcessGroup world) {
    RebuiltRun run(world, nullptr, scratch.path());
    run.train(3);
    run.save();
    return run.model().describe_buckets();
  });
  const auto loaded = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    RebuiltRun run(world, nullptr, scratch.path());
    if (!run.load()) return "nothing was loaded";
    run.train(4);
    return run.model().describe_buckets();
  });
  EXPECT_THAT(loaded, Each(saved[0]));
}

TEST(Checkpointer, WithoutBucketsInACheckpointTheyAreRebuiltAsInANewRun) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::int64_t step = 0;
    std::vector<std::vector<float>> values(2, std::vector<float>(4));
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 16;
    options.rebuild_buckets = RebuildBuckets::automatic;
    DistributedDataParallel model(world, {{"a", {4}, values[0]}, {"b", {4}, values[1]}}, options);
    DistributedDataParallel one(world, {{"a", {4}, values[0]}}, options);
    const auto step_of = [](DistributedDataParallel& of) {
      auto open = of.begin_step();
      for (std::size_t p = 0; p < of.parameter_count(); ++p) open.ready(p);
      open.finish();
    };
    Checkpointer older(world, into(scratch.path() / "older")), without_rebuild(world, into(scratch.path() / "first"));
    Checkpointer later(world, into(scratch.path() / "older")), other_model(world, into(scratch.path() / "first"));
    for (Checkpointer* each : {&older, &without_rebuild, &later, &other_model}) each->add("step", step);
    without_rebuild.add(model);
    later.add(model);
    other_model.add(one);
    older.save(1), older.wait();
    without_rebuild.save(1), without_rebuild.wait();
    if (!later.load() || !other_model.load()) return "nothing was loaded";
    const std::string first = model.describe_buckets();
    step_of(model);
    if (model.describe_buckets() != first) return "the buckets of the first step are others";
    step_of(model);
    if (model.describe_buckets() == first) return "the buckets are as they were";
    without_rebuild.save(2), without_rebuild.wait();
    return thrown_text([&] { other_model.load(); });
  });
  EXPECT_THAT(results, Each(HasSubstr("the buckets of a model with 2 parameters, for a model with 1")));
}

TEST(Checkpointer, ALoadThatFailsOnOneRankLeavesTheBucketsOfAllAsTheyWere) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::vector<std::vector<float>> values(2, std::vector<float>(4));
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 16;
    options.collective.timeout = std::chrono::seconds(20);
    const std::vector<Parameter> parameters{{"a", {4}, values[0]}, {"b", {4}, values[1]}};
    DistributedDataParallel model(world, parameters, options), fresh(world, parameters, options);
    const auto step_of = [](DistributedDataParallel& of) {
      auto open = of.begin_step();
      for (const std::size_t p : {0, 1}) open.ready(p);
      open.finish();
    };
    bool may_take = false;
    const auto take = [&](const std::string&) {
      if (!may_take && world.rank() == 1) throw Error("not on this rank");
    };
    Checkpointer checkpoints(world, into(scratch.path())), later(world, into(scratch.path()));
    for (Checkpointer* each : {&checkpoints, &later}) each->add_text("before", {[] { return "text"; }, take});
    checkpoints.add(model);
    later.add(fresh);
    step_of(model);
    model.rebuild_buckets();
    checkpoints.save(1), checkpoints.wait();
    const std::string first = fresh.describe_buckets();
    const std::string error = thrown_text([&] { later.load(); });
    if (error.find("not on this rank") == std::string::npos) return "an error " + error;
    step_of(fresh);
    if (fresh.describe_buckets() != first) return "the buckets of a load that failed";
    may_take = true;
    later.load();
    step_of(fresh);
    return fresh.describe_buckets() == model.describe_buckets() ? "the same" : "other buckets after the second load";
  });
  EXPECT_THAT(results, Each("the same"));
}

TEST(Checkpointer, AResumedRunKeepsTheChosenCapsAndTriesNoOthers) {
  const ScratchDirectory scratch;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    constexpr std::size_t kCount = 600'000;
    std::vector<std::vector<float>> values(3, std::vector<float>(kCount));
    std::vector<Parameter> parameters;
    for (std::size_t p = 0; p < 3; ++p) parameters.push_back({std::to_string(p), {kCount}, values[p]});
    DistributedDataParallelOptions options;
    options.bucket_cap_bytes = kAutomaticBucketCap;
    options.rebuild_buckets = RebuildBuckets::automatic;
    const auto step_of = [](DistributedDataParallel& of) {
      auto open = of.begin_step();
      for (const std::size_t p : {1, 0, 2}) open.ready(p);
      open.finish();
    };
    DistributedDataParallel model(world, parameters, options), resumed(world, parameters, options);
    Checkpointer checkpoints(world, into(scratch.path())), later(world, into(scratch.path()));
    checkpoints.add(model);
    later.add(resumed);
    for (int i = 0; i < 10; ++i) step_of(model);
    checkpoints.save(10), checkpoints.wait();
    if (!later.load()) return "nothing was loaded";
    const std::string first = resumed.describe_buckets();
    step_of(resumed);
    if (resumed.describe_buckets() != first) return "a cap that was being tried is kept";
    for (int i = 10; i < 26; ++i) step_of(model);
    checkpoints.save(26), checkpoints.wait();
    if (!later.load()) return "nothing was loaded";
    for (int i = 0; i < 26; ++i) {
      step_of(resumed);
      if (resumed.describe_buckets() != model.describe_buckets()) return "other buckets in step " + std::to_string(i);
    }
    return "same";
  });
  EXPECT_THAT(results, Each("same"));
}

TEST(Checkpointer, RefusesOptionsOutOfRange) {
  const struct {
    CheckpointerOptions options;
    const char* want;
  } cases[] = {{{}, "neither a directory nor a memory"},
               {{.directory = "d", .keep = 0}, "keep = 0"},
               {{.directory = "d", .write_timeout = std::chrono::milliseconds(0)}, "write_timeout of 0"},
               {{.directory = "d"}, "empty"}};
  ProcessGroup none;
  for (const auto& each : cases) {
    EXPECT_THAT(thrown_text([&] { Checkpointer(none, each.options); }), HasSubstr(each.want));
  }
}

// A run whose round is older than those in the folder, say because a clock was set back.
TEST(Checkpointer, AnOlderRoundThanThoseInTheFolderIsToldSoAndRemovesNothing) {
  for (const CheckpointForm form : {CheckpointForm::parts, CheckpointForm::single}) {
    const ScratchDirectory scratch;
    std::int64_t number = 7;
    for (const std::uint64_t step : {1, 2}) {
      CheckpointDirectory(scratch.path()).save({~std::uint64_t{0}, 1, 1}, step, {{"number", {}, {&number, 1}}});
    }
    const auto before = names_in(scratch.path());
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      TrainingRun run(world, into(scratch.path(), form));
      run.save();
      return thrown_text([&] { run.checkpoints().wait(); });
    });
    EXPECT_THAT(results, Each(HasSubstr("was superseded: the newest is checkpoint_18446744073709551615")));
    EXPECT_EQ(names_in(scratch.path()), before);
  }
}

}  // namespace
}  // namespace ddp
