#include "worker_runtime/files/process_log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include "base/unique_fd.hpp"
#include "tests/text.hpp"

namespace ddp {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr int kPatienceMs = 60'000;

int thread_count() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

void log_lines(int count) {
  for (int i = 0; i < count; ++i)
    process_log::log({"tested", base::LogFields().add("text", std::string(900, 'a')), base::LogLevel::info});
}

// A process whose stderr is a terminal that only the test reads. poll() reports room there that a line does not fit in.
class ProcessLog : public ::testing::Test {
 protected:
  ~ProcessLog() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  void start(const char* level, const std::function<void()>& work) {
    int master = -1, slave = -1;
    std::array<int, 2> words{}, go{};
    ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
    ASSERT_EQ(::pipe2(words.data(), O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(go.data(), O_CLOEXEC), 0);
    const base::UniqueFd mine(slave), word(words[1]), wait(go[0]);
    stderr_.reset(master);
    words_.reset(words[0]);
    go_.reset(go[1]);
    termios settings{};
    ::tcgetattr(slave, &settings);
    ::cfmakeraw(&settings);
    ::tcsetattr(slave, TCSANOW, &settings);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("DDP_LOG_LEVEL", level, 1);
    ::dup2(slave, STDERR_FILENO);
    word_ = words[1];
    wait_ = go[0];
    go_.reset();
    work();
    std::exit(0);  // NOLINT(concurrency-mt-unsafe)
  }

  void tell(char word) const { static_cast<void>(!::write(word_, &word, 1)); }

  // What the process told; 0 if it ended or told nothing in time.
  char told() const {
    pollfd wait{words_.get(), POLLIN, 0};
    char word = 0;
    if (::poll(&wait, 1, kPatienceMs) != 1 || ::read(words_.get(), &word, 1) != 1) return 0;
    return word;
  }

  // The process waits until the test calls wait_for_end().
  void wait_for_test() const {
    char byte = 0;
    static_cast<void>(!::read(wait_, &byte, 1));
  }

  // Until it has `text` so often, or the process has ended.
  std::string stderr_until(const std::string& text, int wanted = 1) {
    std::string out;
    std::array<char, 65536> bytes{};
    pollfd more{stderr_.get(), POLLIN, 0};
    while (test::occurrences(out, text) < wanted && ::poll(&more, 1, kPatienceMs) == 1) {
      const auto count = ::read(stderr_.get(), bytes.data(), bytes.size());
      if (count <= 0) break;
      out.append(bytes.data(), static_cast<std::size_t>(count));
    }
    return out;
  }

  int wait_for_end() {
    go_.reset();
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

  pid_t pid_ = -1;
  int word_ = -1, wait_ = -1;  // the process's side
  base::UniqueFd stderr_, words_, go_;
};

TEST_F(ProcessLog, NobodyWaitsForAStalledStderrAndDroppedLinesAreCounted) {
  start("info", [this] {
    log_lines(3000);  // more than the queue and the terminal hold
    tell('a');
    wait_for_test();
  });
  ASSERT_EQ(told(), 'a') << "while nobody reads";
  const auto text = stderr_until("because they came faster than they were read\n");
  EXPECT_EQ(wait_for_end(), 0);
  const auto at = text.find("libddp: dropped ");
  ASSERT_NE(at, std::string::npos);
  const int dropped = std::stoi(text.substr(at + std::string("libddp: dropped ").size()));
  EXPECT_EQ(test::occurrences(text, " info tested ") + dropped, 3000);
  EXPECT_GT(dropped, 0);
}

TEST_F(ProcessLog, TheLastLinesAreWrittenBeforeTheProcessExits) {
  start("info", [] { log_lines(50); });
  EXPECT_EQ(test::occurrences(stderr_until("end", 1), " info tested "), 50);
  EXPECT_EQ(wait_for_end(), 0);
}

TEST_F(ProcessLog, AStalledStderrHoldsUpNoExit) {
  start("info", [] { log_lines(3000); });
  EXPECT_EQ(wait_for_end(), 0) << "while nobody reads";
}

TEST_F(ProcessLog, NoThreadStartsIfNoLineIsWanted) {
  start("error", [this] {
    const int before = thread_count();
    log_lines(10);
    tell(thread_count() == before ? 'y' : 'n');
  });
  EXPECT_EQ(told(), 'y');
  EXPECT_EQ(wait_for_end(), 0);
}

TEST_F(ProcessLog, AForkedChildWritesItsOwnLinesThoughThoseOfItsParentAreStuck) {
  start("info", [this] {
    log_lines(200);  // more than the terminal holds
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(word_, STDERR_FILENO);
      process_log::log({"of_child", {}, base::LogLevel::info});
      std::exit(0);  // NOLINT(concurrency-mt-unsafe)
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    tell(status == 0 ? '!' : '?');
    wait_for_test();
  });
  std::string text;
  while (text.empty() || (text.back() != '!' && text.back() != '?')) {
    const char word = told();
    ASSERT_NE(word, 0) << text;
    text += word;
  }
  EXPECT_THAT(text, HasSubstr(" info of_child pid="));
  EXPECT_THAT(text, EndsWith("\n!"));
  EXPECT_EQ(test::occurrences(stderr_until(" info tested ", 200), " info tested "), 200) << "each once, by the parent";
  EXPECT_EQ(wait_for_end(), 0);
}

}  // namespace
}  // namespace ddp
