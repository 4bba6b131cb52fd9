#include "ddp/checkpoint.hpp"

#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "worker_runtime/checkpoint/atomic_file.hpp"

namespace {

using ddp::CheckpointDirectory;
using ddp::CheckpointError;
using ddp::RoundId;
using ddp::SafetensorsFile;
using ddp::test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
namespace fs = std::filesystem;

constexpr RoundId kFirstRound = {1000, 0xabc, 1};
constexpr RoundId kSecondRound = {1000, 0xabc, 2};
constexpr RoundId kLaterTerm = {1001, 0x001, 0};

class Directory : public testing::Test {
 protected:
  ScratchDirectory scratch_;
  fs::path path_ = scratch_.path() / "some" / "checkpoints";

  std::string name(const RoundId& round, int step) const {
    return "checkpoint_" + to_string(round) + "_step_" + std::to_string(step) + ".safetensors";
  }

  fs::path save(CheckpointDirectory& directory, const RoundId& round, std::int64_t step) const {
    const std::vector<std::int64_t> values = {step};
    return directory.save(round, static_cast<std::uint64_t>(step), {{"step", {1}, values}});
  }

  std::int64_t step_of(const std::optional<SafetensorsFile>& file) const {
    std::vector<std::int64_t> step(1, -1);
    if (file) file->read("step", {1}, step);
    return step[0];
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(path_)) all.push_back(entry.path().filename().string());
    return all;
  }
};

TEST_F(Directory, IsEmptyWhereThereIsNone) {
  EXPECT_FALSE(CheckpointDirectory(path_).newest());
  fs::create_directories(path_);
  EXPECT_FALSE(CheckpointDirectory(path_).newest());
}

TEST_F(Directory, GivesBackTheNewestAndKeepsTheNewestFew) {
  CheckpointDirectory directory(path_, 2);
  EXPECT_EQ(save(directory, kFirstRound, 8), path_ / name(kFirstRound, 8));
  save(directory, kFirstRound, 9);
  save(directory, kFirstRound, 10);  // newer than 9, though it sorts before it as text
  EXPECT_THAT(names(), UnorderedElementsAre(name(kFirstRound, 9), name(kFirstRound, 10)));
  EXPECT_EQ(step_of(directory.newest()), 10);
}

TEST_F(Directory, AHigherRoundIsNewerWhateverItsStep) {
  CheckpointDirectory directory(path_, 3);
  save(directory, kLaterTerm, 1);
  save(directory, kFirstRound, 300);
  save(directory, kSecondRound, 20);
  EXPECT_EQ(step_of(directory.newest()), 1);
  save(directory, kFirstRound, 301);  // an old round that still writes replaces nothing, it prunes itself
  EXPECT_EQ(step_of(directory.newest()), 1);
  EXPECT_THAT(names(), UnorderedElementsAre(name(kLaterTerm, 1), name(kSecondRound, 20), name(kFirstRound, 301)));
}

TEST_F(Directory, AnOldRoundIsToldThatNewerOnesReplaceItsCheckpoints) {
  CheckpointDirectory directory(path_, 2);
  save(directory, kSecondRound, 20);
  save(directory, kLaterTerm, 1);
  try {
    save(directory, kFirstRound, 300);
    FAIL() << "a path that does not exist was given back";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr((path_ / name(kFirstRound, 300)).string() + " was superseded"));
    EXPECT_THAT(error.what(), HasSubstr("the newest is " + name(kLaterTerm, 1)));
  }
  EXPECT_THAT(names(), UnorderedElementsAre(name(kLaterTerm, 1), name(kSecondRound, 20)));
}

TEST_F(Directory, NeverOverwrites) {
  CheckpointDirectory directory(path_);
  const fs::path path = save(directory, kFirstRound, 5);
  const std::vector<std::int64_t> other = {6};
  try {
    directory.save(kFirstRound, 5, {{"step", {1}, other}});
    FAIL() << "overwritten";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    EXPECT_THAT(error.what(), HasSubstr("File exists"));
  }
  EXPECT_EQ(step_of(directory.newest()), 5);
  EXPECT_THAT(names(), ElementsAre(name(kFirstRound, 5))) << "a temporary file stayed";
}

TEST_F(Directory, PassesOverBrokenFilesAndTells) {
  CheckpointDirectory directory(path_, 3);
  for (const int step : {1, 2, 3}) save(directory, kFirstRound, step);
  fs::resize_file(path_ / name(kFirstRound, 3), fs::file_size(path_ / name(kFirstRound, 3)) - 1);
  fs::resize_file(path_ / name(kFirstRound, 2), 0);
  std::vector<std::string> refused;
  EXPECT_EQ(step_of(directory.newest([&](const std::string& message) { refused.push_back(message); })), 1);
  EXPECT_THAT(refused, ElementsAre(HasSubstr(name(kFirstRound, 3)), HasSubstr(name(kFirstRound, 2))));
  EXPECT_EQ(step_of(directory.newest()), 1);

  fs::resize_file(path_ / name(kFirstRound, 1), 7);
  EXPECT_THROW((void)directory.newest(), CheckpointError);
}

TEST_F(Directory, LooksAtNoOtherNames) {
  fs::create_directories(path_);
  const std::string round = to_string(kFirstRound);
  const std::vector<std::string> others = {"checkpoint_" + round + "_step_05.safetensors",
                                           "checkpoint_" + round + "_step_.safetensors",
                                           "checkpoint_" + round + "_step_-5.safetensors",
                                           "checkpoint_" + round + "_step_5.safetensors.old",
                                           "checkpoint_" + round + "_step_99999999999999999999.safetensors",
                                           "checkpoint_x_step_5.safetensors",
                                           "my_" + round + "_step_5.safetensors",
                                           "notes"};
  for (const std::string& other : others) {
    std::ofstream(path_ / other) << "not a checkpoint";
  }
  CheckpointDirectory directory(path_, 1);
  EXPECT_FALSE(directory.newest());
  save(directory, kFirstRound, 5);
  save(directory, kFirstRound, 6);
  EXPECT_EQ(step_of(directory.newest()), 6);
  EXPECT_EQ(names().size(), others.size() + 1) << "a file of somebody else was removed";
}

TEST_F(Directory, RemovesWhatADeadWriterLeftAndNothingOfALivingOne) {
  CheckpointDirectory directory(path_);
  fs::create_directories(path_);
  const pid_t child = ::fork();
  if (child == 0) {
    ddp::checkpoint::AtomicFile file(path_ / "of a dead writer");
    ::_exit(0);  // without the destructor
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ASSERT_THAT(names(), ElementsAre(HasSubstr(".partial")));
  ddp::checkpoint::AtomicFile living(path_ / "of a living writer");
  save(directory, kFirstRound, 1);
  EXPECT_THAT(names(), UnorderedElementsAre(name(kFirstRound, 1), HasSubstr(".partial")));
  living.commit(ddp::checkpoint::AtomicFile::Existing::refuse);
  EXPECT_TRUE(fs::exists(path_ / "of a living writer"));
}

TEST_F(Directory, AReaderAlwaysFindsAWholeCheckpointWhileAWriterPrunes) {
  CheckpointDirectory directory(path_, 1);
  save(directory, kFirstRound, 0);
  std::atomic<bool> done = false;
  std::jthread writer([&] {
    for (int step = 1; step <= 300; ++step) save(directory, kFirstRound, step);
    done = true;
  });
  std::int64_t last = 0;
  std::vector<std::string> refused;
  while (!done) {
    const auto step = step_of(directory.newest([&](const std::string& message) { refused.push_back(message); }));
    EXPECT_GE(step, last);
    last = step;
  }
  writer.join();
  EXPECT_THAT(refused, IsEmpty());
}

TEST_F(Directory, SaysWhatItCannotMake) {
  std::ofstream(scratch_.path() / "some") << "a file, not a folder";
  CheckpointDirectory directory(path_);
  EXPECT_THROW(save(directory, kFirstRound, 1), CheckpointError);
  EXPECT_THROW(CheckpointDirectory(path_, 0), ddp::InvalidArgument);
}

}  // namespace
