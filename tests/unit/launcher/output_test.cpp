// What becomes of what workers print. The tests are the workers: they write to the descriptors that a worker would get.
#include "launcher/output/output.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>

#include "launcher/command_line/option_table.hpp"
#include "launcher/output/console.hpp"
#include "launcher/output/line_tail.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
using ddp::test::contents_of;
using ddp::test::occurrences;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::seconds kPatience{60};

// This process's stdout and stderr are others meanwhile: two files, or a terminal.
class StandardStreams {
 public:
  explicit StandardStreams(int out, int err) : before_{::dup(1), ::dup(2)} {
    ::dup2(out, 1);
    ::dup2(err, 2);
  }
  ~StandardStreams() {
    for (int i : {0, 1}) {
      ::dup2(before_[i], i + 1);
      ::close(before_[i]);
    }
  }
  StandardStreams(const StandardStreams&) = delete;

 private:
  int before_[2];
};

class OutputTest : public ::testing::Test {
 protected:
  OutputTest() { options_.log_directory = logs_.string(); }
  ~OutputTest() override {
    output_.reset();
    streams_.reset();
    if (terminal_ >= 0) ::close(terminal_);
  }

  // Called once: ddprun's stdout and stderr, and the first round.
  Output& begin(int workers, bool terminal = false) {
    if (terminal) {
      int slave = -1;
      EXPECT_EQ(::openpty(&terminal_, &slave, nullptr, nullptr, nullptr), 0);
      streams_.emplace(slave, slave);
      ::close(slave);
    } else {
      const int out = ::open((scratch_.path() / "out").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      const int err = ::open((scratch_.path() / "err").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      streams_.emplace(out, err);
      ::close(out);
      ::close(err);
    }
    output_ = std::make_unique<Output>(io_, options_, (scratch_.path() / "scratch").string(), [] {});
    round_.workers = round_.world_size = workers;
    begin_round();
    return *output_;
  }

  // Until its streams are open. Throws what went wrong.
  void begin_round(const std::vector<int>& kept = {}) {
    auto result = std::make_shared<std::optional<std::exception_ptr>>();
    output_->begin_round(round_, kept, [result](std::exception_ptr error) { *result = error; });
    run_until([result] { return result->has_value(); });
    if (result->value_or(nullptr)) std::rethrow_exception(**result);
  }

  // Until the files have everything.
  void end_round(const std::vector<int>& kept = {}) {
    const auto is_written = std::make_shared<bool>(false);
    output_->end_round(kept, [is_written] { *is_written = true; });
    run_until([is_written] { return *is_written; });
  }

  void run_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    io_.restart();
    while (!condition() && io_.run_one_until(deadline) > 0) continue;
    EXPECT_TRUE(condition());
  }

  void print(int rank, int stream, const std::string& text) {
    ASSERT_EQ(::write(output_->worker_side(rank)[static_cast<std::size_t>(stream)], text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }

  // What is in them once the console is written.
  std::string out() { return drain(), contents_of(scratch_.path() / "out"); }
  std::string err() { return drain(), contents_of(scratch_.path() / "err"); }

  void drain() {
    const auto drained = std::make_shared<bool>(false);
    output_->when_drained([drained] { *drained = true; });
    run_until([drained] { return *drained; });
  }

  fs::path round(int number = 0) const { return logs_ / "run" / ("round_" + std::to_string(number)); }
  std::string log(int rank, const std::string& name = "stdout.log") const {
    return contents_of(round() / ("rank_" + std::to_string(rank)) / name);
  }

  // Runs the loop until `done` has been called as often as there are workers.
  void run_until_all_are_done(int count, const std::function<void(int rank)>& work) {
    const auto guard = asio::make_work_guard(io_);
    std::atomic<int> left = count;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < count; ++rank)
      threads.emplace_back([&, rank] {
        work(rank);
        if (--left == 0) asio::post(io_, [this] { io_.stop(); });
      });
    io_.run_for(kPatience);
    EXPECT_TRUE(io_.stopped());
    for (auto& thread : threads) thread.join();
  }

  test::ScratchDirectory scratch_;
  fs::path logs_ = scratch_.path() / "logs";
  OutputOptions options_;
  Output::RoundFacts round_{.job = "run", .role = "default"};
  asio::io_context io_{1};
  std::optional<StandardStreams> streams_;
  std::unique_ptr<Output> output_;
  int terminal_ = -1;
};

TEST_F(OutputTest, WithNoMaskAllGoesToTheConsoleAndErrorFilesToTheTree) {
  auto& output = begin(2);
  print(0, 1, "hello\n");
  print(1, 2, "oh\n");
  EXPECT_EQ(output.error_file(1), round() / "rank_1/error.json");
  EXPECT_EQ(output.round_directory(), round());
  EXPECT_TRUE(fs::is_directory(round() / "rank_1"));
  EXPECT_EQ(output.stderr_file(1), "");
  end_round();
  EXPECT_EQ(out(), "[0] hello\n");
  EXPECT_EQ(err(), "[1] oh\n");
  EXPECT_EQ(output.stderr_tail(1), std::vector<std::string>{"oh"});
  EXPECT_TRUE(fs::is_empty(round() / "rank_1"));
}

TEST_F(OutputTest, WithoutALogDirectoryErrorFilesAreInTheScratchDirectory) {
  options_.log_directory.clear();
  EXPECT_EQ(begin(1).error_file(0), scratch_.path() / "scratch/round_0_rank_0_error.json");
  EXPECT_EQ(output_->round_directory(), "");
  EXPECT_EQ(output_->highest_round("run"), -1);
}

TEST_F(OutputTest, DevNullMeansNoFilesAtAll) {
  options_.log_directory = "/dev/null";
  options_.redirects.all = 1;
  options_.tee.all = 2;
  auto& output = begin(1);
  EXPECT_EQ(output.error_file(0), "");
  EXPECT_EQ(output.round_directory(), "/dev/null");
  EXPECT_EQ(output.stderr_file(0), "");
  print(0, 1, "lost\n");
  print(0, 2, "seen\n");
  end_round();
  EXPECT_EQ(out(), "");
  EXPECT_EQ(err(), "[default0]:seen\n");
}

TEST_F(OutputTest, ARedirectedStreamIsTheFileItself) {
  options_.redirects.all = 3;
  auto& output = begin(2);
  const int side = output.worker_side(1)[2];
  struct stat of_side {
  }, of_file{};
  ASSERT_EQ(::fstat(side, &of_side), 0);
  ASSERT_EQ(::stat(output.stderr_file(1).c_str(), &of_file), 0);
  EXPECT_EQ(of_side.st_ino, of_file.st_ino);
  EXPECT_NE(::fcntl(side, F_GETFL) & O_APPEND, 0);
  print(1, 2, "Traceback\nValueError\n");
  EXPECT_EQ(log(1, "stderr.log"), "Traceback\nValueError\n");
  end_round();
  EXPECT_EQ(tail_of_file(output.stderr_file(1)), (std::vector<std::string>{"Traceback", "ValueError"}));
  EXPECT_EQ(out() + err(), "");
}

TEST_F(OutputTest, ATeedStreamGoesToBothWithTorchrunsPrefixOnTheConsoleOnly) {
  options_.tee.all = 3;
  options_.redirects.all = 3;  // tee goes before it
  auto& output = begin(2);
  print(0, 1, "hello\nwor");
  print(0, 1, "ld\n");
  print(1, 2, "\r10%\r20%\r\nend");
  end_round();
  EXPECT_EQ(log(0), "hello\nworld\n");
  EXPECT_EQ(log(1, "stderr.log"), "\r10%\r20%\r\nend");
  EXPECT_EQ(out(), "[default0]:hello\n[default0]:world\n");
  EXPECT_EQ(err(), "\r[default1]:10%\r[default1]:20%\r\n[default1]:end");
  EXPECT_EQ(tail_of_file(output.stderr_file(1)), (std::vector<std::string>{"20%", "end"}));
}

TEST_F(OutputTest, ATemplateReplacesEveryPrefix) {
  options_.tee.by_local_rank = {{0, 1}};
  options_.prefix_template = "<${role_name} ${local_rank} ${rank}> ";
  round_.rank_first = 8;
  begin(2);
  print(0, 1, "a\n");
  print(1, 1, "b\n");
  end_round();
  EXPECT_THAT(out(), HasSubstr("<default 0 8> a\n"));
  EXPECT_THAT(out(), HasSubstr("<default 1 9> b\n"));
  EXPECT_EQ(contents_of(round() / "rank_8/stdout.log"), "a\n");
  EXPECT_FALSE(fs::exists(round() / "rank_9/stdout.log"));
}

TEST_F(OutputTest, LinesOfSeveralWorkersInAFileSayWhoseTheyAre) {
  begin(2);
  const auto prints = [this](int rank, const std::string& text, const std::string& shown) {
    print(rank, 1, text);
    run_until([&] { return contents_of(scratch_.path() / "out") == shown; });
  };
  prints(0, "the first\n", "[0] the first\n");
  prints(1, "two\n", "[0] the first\n[1] two\n");
  prints(0, "one\n", "[0] the first\n[1] two\n[0] one\n");
}

TEST_F(OutputTest, LinesOfTheOnlyWorkerInAFileHaveNoPrefix) {
  begin(1);
  print(0, 1, "alone\n");
  end_round();
  EXPECT_EQ(out(), "alone\n");
}

TEST_F(OutputTest, LinesOfTheOnlyWorkerThatIsShownInAFileHaveNoPrefix) {
  options_.ranks_shown = {{1, 2}};
  options_.redirects.by_local_rank = {{2, 3}};
  begin(3);
  print(1, 1, "alone\n");
  end_round();
  EXPECT_EQ(out(), "alone\n");
}

TEST_F(OutputTest, NoPrefixMeansNone) {
  options_.tee.all = 3;
  options_.prefix_lines = false;
  begin(2);
  print(0, 1, "a\n");
  end_round();
  EXPECT_EQ(out(), "a\n");
}

TEST_F(OutputTest, WhatIsFilteredOutIsInTheFileOrNowhere) {
  options_.tee.by_local_rank = {{1, 3}};
  options_.ranks_shown = {{0, 0}, {9, 100}};
  options_.local_ranks_shown = {{0, 1}, {3, 3}};
  round_.rank_first = 0;
  auto& output = begin(4);
  struct stat nothing {
  }, side{};
  ::stat("/dev/null", &nothing);
  for (const int rank : {2, 3}) {
    ASSERT_EQ(::fstat(output.worker_side(rank)[1], &side), 0);
    EXPECT_EQ(side.st_rdev, nothing.st_rdev) << rank;
  }
  for (int rank = 0; rank < 4; ++rank) print(rank, 1, "from " + std::to_string(rank) + "\n");
  end_round();
  EXPECT_EQ(out(), "from 0\n");
  EXPECT_EQ(log(1), "from 1\n");
}

TEST_F(OutputTest, DuplicatesHoldMatchingLinesOfAllTeedRanks) {
  options_.tee.by_local_rank = {{0, 3}, {1, 3}};
  options_.stdout_duplicates = {"loss", "acc"};
  options_.local_ranks_shown = {{0, 0}};  // rank 1 is not shown, and found there all the same
  begin(3);
  print(0, 1, "loss 1\nnothing\nac");
  print(0, 1, "c 2\n");
  print(1, 1, "nothing\nloss 3");
  print(2, 1, "loss 4\n");
  print(0, 2, "loss 5\n");
  end_round();
  const auto lines = contents_of(round() / "filtered_stdout.log");
  EXPECT_EQ(occurrences(lines, "\n"), 3) << lines;
  EXPECT_THAT(lines, HasSubstr("[default0]:loss 1\n[default0]:acc 2\n"));
  EXPECT_THAT(lines, HasSubstr("[default1]:loss 3\n"));
  EXPECT_EQ(out(), "[default0]:loss 1\n[default0]:nothing\n[default0]:acc 2\n");
  EXPECT_FALSE(fs::exists(round() / "filtered_stderr.log"));
}

TEST_F(OutputTest, EqualLinesOfManyWorkersAreOneOnTheConsole) {
  options_.tee.by_local_rank = {{0, 1}};
  options_.merge_equal_lines = true;
  begin(3);
  for (const int rank : {1, 2}) print(rank, 1, "same\nown " + std::to_string(rank) + "\n");
  print(0, 2, "oh\n");
  end_round();
  EXPECT_EQ(out(), "[1,2] same\n[1] own 1\n[2] own 2\n");
  EXPECT_EQ(err(), "[0] oh\n");
}

TEST_F(OutputTest, AHeldLineIsShownWithoutTheOthers) {
  options_.merge_equal_lines = true;
  begin(2);
  print(0, 1, "alone\n");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (out().empty() && std::chrono::steady_clock::now() < deadline) io_.run_one_until(deadline);
  EXPECT_EQ(out(), "[0] alone\n");
  end_round();
}

TEST_F(OutputTest, ARestartTouchesNoFileOfEarlierRounds) {
  options_.tee.all = 1;
  auto& output = begin(1);
  print(0, 1, "first\n");
  end_round();
  round_.number = 1;
  begin_round();
  print(0, 1, "second\n");
  end_round();
  begin_round();  // the same again
  print(0, 1, "third\n");
  end_round();
  EXPECT_EQ(log(0), "first\n");
  EXPECT_EQ(contents_of(round(1) / "rank_0/stdout.log"), "second\nthird\n");
  EXPECT_EQ(output.highest_round("run"), 1);
}

TEST_F(OutputTest, FlightRecorderFilesOfTheNewestRoundsAreKept) {
  options_.log_directory = logs_.string();
  begin(1);
  const auto has_any = [&](int number) { return fs::exists(round(number) / "flight_recorder.0.json"); };
  for (int number = 0; number < 10; ++number) {
    std::ofstream(round(number) / "flight_recorder.0.json") << "{}";
    end_round();
    // Numbers may leave out some, as with another membership. Of the workers of a round, all may live on.
    round_.number = static_cast<std::uint32_t>(number) + 1;
    begin_round();
  }
  for (int number = 0; number < 10; ++number) EXPECT_EQ(has_any(number), number > 6) << number;
  end_round();
  round_.number = 13;
  begin_round();
  for (int number = 0; number < 10; ++number) EXPECT_FALSE(has_any(number)) << number;
  EXPECT_TRUE(fs::exists(round(0) / "rank_0")) << "its logs stay";
  end_round();
}

TEST_F(OutputTest, AWorkerThatLivesOnKeepsItsStreamsAndItsFiles) {
  for (const bool has_files : {true, false}) {
    SCOPED_TRACE(has_files ? "tee" : "console only");
    options_.tee.all = has_files ? 1 : 0;
    auto& output = begin(2);
    print(0, 1, "stays\n");
    print(1, 1, "goes\n");
    const auto before = output.worker_side(0);
    const int kept = ::fcntl(before[1], F_DUPFD_CLOEXEC, 3);  // as the worker holds it
    output.worker_is_spawned(0);
    end_round({0});
    round_.number = 1;
    round_.rank_first = 4;
    begin_round({0});
    ASSERT_EQ(::write(kept, "still\n", 6), 6);
    print(1, 1, "new\n");
    EXPECT_EQ(output.error_file(0), round(0) / "rank_0/error.json");
    EXPECT_EQ(output.error_file(1), round(1) / "rank_5/error.json");
    EXPECT_EQ(output.round_directory(), round(1));
    end_round();
    ::close(kept);
    EXPECT_THAT(out(), AllOf(HasSubstr("stays\n"), HasSubstr("goes\n"), HasSubstr("still\n"), HasSubstr("new\n")));
    if (has_files) {
      EXPECT_EQ(log(0), "stays\nstill\n");
      EXPECT_EQ(log(1), "goes\n");
      EXPECT_EQ(contents_of(round(1) / "rank_5/stdout.log"), "new\n");
      EXPECT_FALSE(fs::exists(round(1) / "rank_4"));
    }
    output_.reset();
    streams_.reset();
    fs::remove_all(logs_);
    fs::remove(scratch_.path() / "out");
    round_ = {.job = "run", .role = "default"};
  }
}

TEST_F(OutputTest, AFullDiskIsToldOnceAndHoldsNobodyUp) {
  options_.tee.all = 3;
  for (int rank : {0, 1}) {
    const auto folder = round() / ("rank_" + std::to_string(rank));
    fs::create_directories(folder);
    for (const auto* name : {"stdout.log", "stderr.log"}) fs::create_symlink("/dev/full", folder / name);
  }
  begin(2);
  const std::string line = std::string(99, '.') + "\n";
  run_until_all_are_done(2, [&](int rank) {
    for (int i = 0; i < 5000; ++i) print(rank, 1, line);
  });
  print(1, 2, "oh\n");
  end_round();
  EXPECT_EQ(occurrences(out(), line), 10'000);
  EXPECT_EQ(occurrences(err(), "can't be written: No space left on device"), 1) << err();
  EXPECT_THAT(err(), HasSubstr("[default1]:oh\n"));
}

// A FIFO that nobody reads stands for the disk.
TEST_F(OutputTest, ADiskThatHangsHoldsUpNoRoundAndLosesNothing) {
  const std::string text(100 * 1024, 'x');
  options_.tee.all = 1;
  fs::create_directories(round() / "rank_0");
  const auto path = round() / "rank_0/stdout.log";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int disk = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  begin(1);
  print(0, 1, text);
  bool is_written = false;
  output_->end_round({}, [&] { is_written = true; });
  round_.number = 1;
  begin_round();  // the job goes on
  std::string written(text.size(), '\0');
  for (std::size_t at = 0; at < written.size();) {
    pollfd wait{disk, POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 60'000), 1);
    const auto length = ::read(disk, written.data() + at, written.size() - at);
    ASSERT_GT(length, 0);
    at += static_cast<std::size_t>(length);
  }
  EXPECT_EQ(written, text);
  print(0, 1, "next\n");
  end_round();
  EXPECT_FALSE(is_written) << "nobody waits for it any more";
  EXPECT_EQ(contents_of(round(1) / "rank_0/stdout.log"), "next\n");
  ::close(disk);
}

// A FIFO that nobody reads stands for the disk: opening it waits.
TEST_F(OutputTest, ARoundThatEndsBeforeItsFilesAreOpenIsForgotten) {
  options_.redirects.all = 1;
  begin(1);
  end_round();
  round_.number = 1;
  fs::create_directories(round(1) / "rank_0");
  const auto path = round(1) / "rank_0/stdout.log";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  bool is_open = false;
  output_->begin_round(round_, {}, [&](std::exception_ptr) { is_open = true; });
  EXPECT_EQ(output_->error_file(0), round(1) / "rank_0/error.json");
  end_round();
  round_.number = 2;
  const int disk = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  begin_round();  // behind the other
  EXPECT_FALSE(is_open);
  print(0, 1, "new\n");
  EXPECT_EQ(contents_of(round(2) / "rank_0/stdout.log"), "new\n");
  ::close(disk);
}

TEST_F(OutputTest, ARoundIsRefusedIfTheFilesOfManyWaitForADiskThatHangs) {
  options_.redirects.all = 1;
  begin(1);
  end_round();
  fs::create_directories(round(1) / "rank_0");
  const auto path = round(1) / "rank_0/stdout.log";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  int refused = 0;
  for (round_.number = 1; round_.number <= 300; ++round_.number)
    output_->begin_round(round_, {}, [&](std::exception_ptr error) {
      EXPECT_TRUE(error);
      ++refused;
    });
  run_until([&] { return refused > 0; });
  EXPECT_EQ(refused, 1) << "the last round; the others are forgotten";
  const int disk = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  const auto begins = [this] {
    try {
      begin_round();
      return true;
    } catch (const UsageError&) {  // others still wait
      return false;
    }
  };
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  bool has_begun = false;
  while (!has_begun && std::chrono::steady_clock::now() < deadline) has_begun = begins();
  EXPECT_TRUE(has_begun) << "the disk answers again";
  ::close(disk);
}

TEST_F(OutputTest, ManyWorkersAtFullSpeedLoseAndTearNothing) {
  constexpr int kWorkers = 64, kLines = 2000;
  options_.tee.all = 3;
  begin(kWorkers);
  const auto line = [](int rank, int i) {
    return std::to_string(rank) + ":" + std::to_string(i) + std::string(static_cast<std::size_t>(i % 50), '.') + "\n";
  };
  run_until_all_are_done(kWorkers, [&](int rank) {
    for (int i = 0; i < kLines; ++i) print(rank, 1 + i % 2, line(rank, i));
  });
  end_round();
  for (int rank = 0; rank < kWorkers; ++rank) {
    std::string want[2];
    for (int i = 0; i < kLines; ++i) want[i % 2] += line(rank, i);
    EXPECT_EQ(log(rank), want[0]);
    EXPECT_EQ(log(rank, "stderr.log"), want[1]);
  }
  std::string got[2][kWorkers];
  for (int stream : {0, 1}) {
    std::istringstream console(stream == 0 ? out() : err());
    for (std::string text; std::getline(console, text);) {
      int rank = -1, again = -2;
      ASSERT_EQ(std::sscanf(text.c_str(), "[default%d]:%d:", &rank, &again), 2) << text;
      ASSERT_EQ(rank, again) << text;
      got[stream][rank] += text.substr(text.find(':') + 1) + "\n";
    }
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(got[0][rank], log(rank));
    EXPECT_EQ(got[1][rank], log(rank, "stderr.log"));
  }
}

TEST_F(OutputTest, ATeedStreamIsATerminalWhereTheConsoleIsOne) {
  options_.tee.all = 1;
  auto& output = begin(1, true);
  EXPECT_TRUE(::isatty(output.worker_side(0)[1]));
  print(0, 1, "\r50%\nred\n");
  end_round();
  EXPECT_EQ(log(0), "\r50%\nred\n");
  std::string seen;
  for (pollfd wait{terminal_, POLLIN, 0}; seen.find("red\r\n") == std::string::npos && ::poll(&wait, 1, 60'000) == 1;) {
    char buffer[256];
    const auto length = ::read(terminal_, buffer, sizeof buffer);
    if (length <= 0) break;
    seen.append(buffer, static_cast<std::size_t>(length));
  }
  EXPECT_EQ(seen, "\r[default0]:50%\r\n[default0]:red\r\n");
}

// As after su: the terminal is another user's, so it cannot be opened anew and its description stays blocking.
TEST_F(OutputTest, ATerminalOfAnotherUserThatNobodyReadsHoldsUpNobody) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  int slave = -1;
  ASSERT_EQ(::openpty(&terminal_, &slave, nullptr, nullptr, nullptr), 0);
  streams_.emplace(slave, slave);
  ::close(slave);
  ::setfsuid(kNobody);
  Console console(io_, {});
  ::setfsuid(0);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += std::string(99, '.') + "\n";
  console.feed({0, 1}, text);
  bool is_drained = false;
  console.when_drained([&] { is_drained = true; });
  io_.poll();
  EXPECT_FALSE(is_drained) << "more than a terminal holds";
  ::fcntl(terminal_, F_SETFL, O_NONBLOCK);
  std::size_t lines = 0;
  run_until([&] {
    char bytes[65536];
    ssize_t count = 0;
    while ((count = ::read(terminal_, bytes, sizeof bytes)) > 0)
      lines += static_cast<std::size_t>(std::count(bytes, bytes + count, '\n'));
    return is_drained || (asio::post(io_, [] {}), false);
  });
  char bytes[65536];
  for (ssize_t count = 0; (count = ::read(terminal_, bytes, sizeof bytes)) > 0;)
    lines += static_cast<std::size_t>(std::count(bytes, bytes + count, '\n'));
  EXPECT_EQ(lines, 2000U);
}

TEST_F(OutputTest, ALogDirectoryThatCannotBeIsRefused) {
  std::ofstream(logs_) << "a file";
  try {
    begin(1);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("Not a directory"));
    EXPECT_EQ(error.where(), logs_.string());
    EXPECT_THAT(error.try_this(), HasSubstr("--log-dir"));
  }
}

}  // namespace
}  // namespace ddp::launcher
