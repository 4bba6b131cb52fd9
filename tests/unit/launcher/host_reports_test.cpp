#include "launcher/remote/host_reports.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "launcher/output/report_pipe.hpp"

namespace ddp::launcher {
namespace {

std::string shown(HostReports& reports) {
  std::string out;
  for (const auto& report : reports.take_new()) out += std::to_string(report.host) + ":" + report.text + " ";
  return out;
}

TEST(HostReports, EqualOnesAreShownOnceForTheFirstHost) {
  HostReports reports;
  reports.add(2, "rank 1 failed");
  reports.add(0, "rank 1 failed");
  reports.add(1, "the endpoint is lost");
  EXPECT_EQ(shown(reports), "2:rank 1 failed 1:the endpoint is lost ");
}

TEST(HostReports, LaterOneIsShownIfItDiffersFromThoseThatWereShown) {
  HostReports reports;
  reports.add(0, "rank 1 failed");
  EXPECT_TRUE(reports.has_new());
  EXPECT_EQ(shown(reports), "0:rank 1 failed ");
  reports.add(1, "rank 1 failed");
  EXPECT_FALSE(reports.has_new());
  reports.add(2, "other");
  EXPECT_EQ(shown(reports), "2:other ");
}

TEST(HostReports, HostHasOneOfLimitedLength) {
  HostReports reports;
  reports.add(0, std::string(kReportBytesMax + 1, 'x'));
  reports.add(0, "another");
  const auto taken = reports.take_new();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].text, std::string(kReportBytesMax, 'x'));
}

// The descriptors of a pipe; `end` of them is named by the variable.
struct NamedPipe {
  explicit NamedPipe(int end) {
    EXPECT_EQ(::pipe(ends), 0);
    ::setenv(kReportPipeVariable, std::to_string(ends[end]).c_str(), 1);
  }
  std::string read() const {
    char bytes[64];
    const auto count = ::read(ends[0], bytes, sizeof bytes);
    return count > 0 ? std::string(bytes, static_cast<std::size_t>(count)) : std::string();
  }
  int ends[2];
};

TEST(ReportPipe, IsTakenOutOfTheEnvironmentAndNotInherited) {
  const NamedPipe named(1);
  const auto pipe = ReportPipe::take();
  EXPECT_EQ(pipe.fd(), named.ends[1]);
  EXPECT_EQ(::getenv(kReportPipeVariable), nullptr);
  EXPECT_EQ(::fcntl(pipe.fd(), F_GETFD), FD_CLOEXEC);
  EXPECT_TRUE(pipe.write("error: x"));
  EXPECT_EQ(named.read(), "error: x\n");
  ::close(named.ends[0]);
}

TEST(ReportPipe, WhatIsNoPipeToWriteToIsNotTaken) {
  const NamedPipe wrong_end(0);
  EXPECT_EQ(ReportPipe::take().fd(), -1);
  for (const char* text : {"", "x", "2", "1000000", "3x", "-1"}) {
    ::setenv(kReportPipeVariable, text, 1);
    const auto pipe = ReportPipe::take();
    EXPECT_EQ(pipe.fd(), -1) << text;
    EXPECT_FALSE(pipe.write("error: x"));
    EXPECT_EQ(::getenv(kReportPipeVariable), nullptr);
  }
  for (const int end : wrong_end.ends) EXPECT_EQ(::close(end), 0);
}

TEST(ReportPipe, ReaderThatTakesNothingDoesNotBlockForEver) {
  const NamedPipe named(1);
  const auto pipe = ReportPipe::take();
  EXPECT_FALSE(pipe.write(std::string(4 << 20, 'x')));
  ::close(named.ends[0]);
}

}  // namespace
}  // namespace ddp::launcher
