#include "launcher/output/log_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cerrno>
#include <fstream>

#include "launcher/output/line_tail.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

using ddp::test::contents_of;

base::UniqueFd open_for_append(const std::string& path) {
  return base::UniqueFd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
}

// Files may grow to this size only, as if the disk were full there.
class Limit {
 public:
  explicit Limit(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    set(bytes);
  }
  ~Limit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  void set(rlim_t bytes) const {
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

 private:
  rlimit before_{};
};

TEST(LogFile, GoesOnAtALineOnceThereIsRoomAndSaysWhatIsMissing) {
  const test::ScratchDirectory scratch;
  const auto path = (scratch.path() / "log").string();
  LogFile file(open_for_append(path), path);
  EXPECT_EQ(file.append("one\n"), 0);
  {
    const Limit limit(6);
    EXPECT_EQ(file.append("two\nthr"), EFBIG);  // "tw" has room
    EXPECT_EQ(file.append("ee\nfour"), EFBIG);
  }
  EXPECT_NE(file.append(" and a half"), 0);
  EXPECT_EQ(file.append("\nfive\nsix"), 0);
  EXPECT_EQ(file.append("\n"), 0);
  EXPECT_EQ(contents_of(path),
            "one\ntw\nddprun: 24 bytes of output are missing here, because they could not be written\n"
            "five\nsix\n");
}

TEST(LogFile, SaysAtItsEndWhatWasDropped) {
  const test::ScratchDirectory scratch;
  const auto path = (scratch.path() / "log").string();
  LogFile file(open_for_append(path), path);
  EXPECT_EQ(file.append("one\n"), 0);
  file.skip(7, false);
  file.skip(5, true);
  EXPECT_EQ(file.append("no newline"), 0) << "dropped, and not refused by the disk";
  EXPECT_EQ(file.end(), 0);
  EXPECT_EQ(file.end(), 0);
  EXPECT_EQ(contents_of(path), "one\nddprun: 22 bytes of output are missing here, because they could not be written\n");
}

TEST(LogFile, AddsToWhatIsThere) {
  const test::ScratchDirectory scratch;
  const auto path = (scratch.path() / "log").string();
  std::ofstream(path) << "before\n";
  EXPECT_EQ(LogFile(open_for_append(path), path).append("after\n"), 0);
  EXPECT_EQ(contents_of(path), "before\nafter\n");
}

TEST(TailOfFile, HasTheLastLines) {
  const test::ScratchDirectory scratch;
  const auto path = (scratch.path() / "log").string();
  {
    std::ofstream file(path);
    for (int i = 0; i < 10'000; ++i) file << "line " << i << "\n\n";
    file << "the end";
  }
  const auto lines = tail_of_file(path);
  ASSERT_GE(lines.size(), 10u);
  EXPECT_LE(lines.size(), 13u);
  EXPECT_EQ(lines.back(), "the end");
  EXPECT_EQ(lines[lines.size() - 2], "line 9999");
  EXPECT_TRUE(tail_of_file("/nonexistent").empty());
  EXPECT_TRUE(tail_of_file("/dev/null").empty());
}

TEST(LineTail, HasTheLastDrawingOfAProgressBar) {
  LineTail tail;
  for (const auto* part : {"begin\r\n", "\r10%", "\r20%", "\r", "30% \r", "\nTraceback\r", "\nerror\r"})
    tail.remember(part);
  EXPECT_EQ(tail.lines(), (std::vector<std::string>{"begin", "30% ", "Traceback", "error"}));
}

TEST(LineTail, IsPrintableAndWithoutColours) {
  LineTail tail;
  tail.remember(
      "\x1b[1;31mValueError\x1b[0m: caf\xc3\xa9\n\x1b[2J\x1b]0;x\x07\n\tat \xc2\x9b"
      "2J\nwhere: here\n");
  tail.remember(std::string(399, 'x') + "\xe6\xbc\xa2\xe6\xbc\xa2");
  EXPECT_EQ(tail.lines(), (std::vector<std::string>{"ValueError: caf\xc3\xa9", "\\x1b[2J\\x1b]0;x\\x07",
                                                    " at \\u009b2J", "where: here", std::string(397, 'x') + "..."}));
}

}  // namespace
}  // namespace ddp::launcher
