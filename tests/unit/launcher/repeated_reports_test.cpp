#include "launcher/remote/repeated_reports.hpp"

#include <gtest/gtest.h>

#include <string>

#include "launcher/node/job_summary.hpp"

namespace ddp::launcher {
namespace {

std::string full_report() {
  rendezvous::FailureReport failure;
  failure.host = "gpu17";
  failure.pid = 41822;
  failure.program = "./train";
  failure.message = "division by zero";
  failure.gpu_faults = "Xid 79";
  failure.stderr_tail = {"step 4", "error: out of memory"};
  failure.stderr_file = "logs/stderr.log";
  rendezvous::FinishJob verdict;
  verdict.exit_code = 1;
  verdict.world_size = 8;
  verdict.stopped = 7;
  verdict.cause = failure;
  verdict.consequences = {failure};
  return job_summary(verdict);
}

std::string report_between_nodes() {
  rendezvous::FinishJob verdict;
  verdict.exit_code = 77;
  verdict.what = "node 2 was lost";
  verdict.try_this = "look at that host";
  return job_summary(verdict);
}

TEST(RepeatedReports, ReportOfTheJobIsShownOnce) {
  for (const auto& report : {full_report(), report_between_nodes()}) {
    RepeatedReports reports;
    EXPECT_EQ(reports.feed(0, "ddprun: stopped\n" + report + "[0] after\n"),
              "ddprun: stopped\n" + report + "[0] after\n");
    EXPECT_EQ(reports.feed(1, "ddprun: stopped\n" + report + "[1] after\n"), "ddprun: stopped\n[1] after\n");
    EXPECT_EQ(reports.end(1), "");
  }
}

TEST(RepeatedReports, PiecesOfAnySizeGiveTheSame) {
  const auto text = "[0] x\n" + full_report() + "error: other\n" + report_between_nodes() + "error: [0] unfinished";
  for (std::size_t size = 1; size < text.size(); ++size) {
    RepeatedReports reports;
    std::string out, again;
    for (std::size_t at = 0; at < text.size(); at += size) {
      out += reports.feed(0, text.substr(at, size));
      again += reports.feed(1, text.substr(at, size));
    }
    ASSERT_EQ(out + reports.end(0), text) << "pieces of " << size;
    ASSERT_EQ(again + reports.end(1), "[0] x\nerror: other\nerror: [0] unfinished") << "pieces of " << size;
  }
}

TEST(RepeatedReports, ErrorOfOneHostIsShownForEachHost) {
  const std::string error = "error: the program ./train does not exist\nwhere: host gpu17\ntry:   an absolute path\n";
  RepeatedReports reports;
  EXPECT_EQ(reports.feed(0, error), error);
  EXPECT_EQ(reports.feed(1, error), error);
}

TEST(RepeatedReports, ReportsThatDifferAreAllShown) {
  RepeatedReports reports;
  EXPECT_EQ(reports.feed(0, full_report()), full_report());
  EXPECT_EQ(reports.feed(1, report_between_nodes()), report_between_nodes());
}

TEST(RepeatedReports, LineWithAPrefixIsShownBeforeItEnds) {
  RepeatedReports reports;
  EXPECT_EQ(reports.feed(0, "[0] error: 10 %"), "[0] error: 10 %");
  EXPECT_EQ(reports.feed(0, "\r[0] error: 20 %"), "\r[0] error: 20 %");
}

TEST(RepeatedReports, LinesWithoutAnEndAreNotHeldForEver) {
  RepeatedReports reports;
  std::string text = "error: x\nwhere: between the nodes of the job\n", out = reports.feed(0, text);
  const std::string line = "  | " + std::string(1000, 'x') + "\n";
  for (int i = 0; i < 100; ++i) {
    out += reports.feed(0, line);
    text += line;
  }
  EXPECT_GT(out.size(), 60'000U);
  EXPECT_EQ(out + reports.end(0), text);
}

}  // namespace
}  // namespace ddp::launcher
