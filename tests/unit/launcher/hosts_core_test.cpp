#include "launcher/remote/hosts_core.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

constexpr HostsCore::TimePoint kStart{};

std::string text_of(const HostsCore::Actions& actions) {
  std::string out;
  for (const auto& action : actions) {
    if (!out.empty()) out += ' ';
    if (std::holds_alternative<HostsCore::StartJob>(action)) out += "start";
    if (std::holds_alternative<HostsCore::TooFewHosts>(action)) out += "too few";
    if (std::holds_alternative<HostsCore::StopHosts>(action)) out += "stop";
    if (std::holds_alternative<HostsCore::LeaveHosts>(action)) out += "leave";
    if (const auto* finish = std::get_if<HostsCore::Finish>(&action)) out += std::to_string(finish->exit_code);
  }
  return out;
}

HostsCore running(std::size_t hosts, std::size_t hosts_min) {
  HostsCore out({.hosts = hosts, .hosts_min = hosts_min, .grace = 30s});
  std::string last;
  for (std::size_t i = 0; i < hosts; ++i) last = text_of(out.connected(kStart));
  EXPECT_EQ(last, "start");
  return out;
}

TEST(HostsCore, StartsOnceAllHostsAreConnected) {
  HostsCore core({.hosts = 2, .hosts_min = 2, .grace = 30s});
  EXPECT_EQ(text_of(core.connected(kStart)), "");
  EXPECT_EQ(text_of(core.connected(kStart)), "start");
  EXPECT_EQ(text_of(core.ended(0, true, kStart)), "");
  EXPECT_EQ(text_of(core.ended(0, true, kStart)), "0");
}

TEST(HostsCore, StartsNothingIfAHostIsMissing) {
  HostsCore core({.hosts = 2, .hosts_min = 2, .grace = 30s});
  EXPECT_EQ(text_of(core.connected(kStart)), "");
  EXPECT_EQ(text_of(core.ended({}, false, kStart)), "too few");
  EXPECT_EQ(core.next_deadline(), kStart);
  EXPECT_EQ(text_of(core.tick(kStart)), "leave");
  EXPECT_EQ(core.next_deadline(), std::nullopt);
  EXPECT_EQ(text_of(core.ended({}, true, kStart)), "77");
}

TEST(HostsCore, StartsWithoutAHostIfEnoughAreConnected) {
  HostsCore core({.hosts = 3, .hosts_min = 2, .grace = 30s});
  core.connected(kStart);
  core.ended({}, false, kStart);
  EXPECT_EQ(text_of(core.connected(kStart)), "start");
}

TEST(HostsCore, FirstHostToFailGivesTheExitCode) {
  auto core = running(2, 2);
  EXPECT_EQ(text_of(core.ended(127, true, kStart)), "");
  EXPECT_EQ(core.next_deadline(), kStart + 5s) << "the other one may end by itself";
  EXPECT_EQ(text_of(core.tick(kStart + 5s)), "stop");
  EXPECT_EQ(text_of(core.ended(143, true, kStart + 6s)), "127");
}

TEST(HostsCore, HostsThatNoticeALostHostThemselvesAreNotStopped) {
  auto core = running(2, 2);
  EXPECT_EQ(text_of(core.ended({}, true, kStart)), "");
  EXPECT_EQ(text_of(core.ended(77, true, kStart + 4s)), "77");
}

TEST(HostsCore, HostsThatWaitForALostHostAreStopped) {
  auto core = running(2, 2);
  core.ended({}, true, kStart);
  EXPECT_EQ(text_of(core.tick(kStart + 5s)), "stop");
  EXPECT_EQ(text_of(core.ended(143, true, kStart + 6s)), "77");
}

TEST(HostsCore, JobWithEnoughHostsSurvivesTheLossOfOne) {
  auto core = running(3, 2);
  EXPECT_EQ(text_of(core.ended({}, true, kStart)), "");
  EXPECT_EQ(core.next_deadline(), std::nullopt);
  EXPECT_EQ(text_of(core.ended(0, true, kStart + 60s)), "");
  EXPECT_EQ(text_of(core.ended(0, true, kStart + 60s)), "0");
}

TEST(HostsCore, HostsThatDoNotEndAreLeftAfterTheGrace) {
  auto core = running(2, 2);
  EXPECT_EQ(text_of(core.stopping(SIGINT, kStart)), "");
  EXPECT_EQ(core.next_deadline(), kStart + 50s);
  EXPECT_EQ(text_of(core.ended(130, true, kStart + 1s)), "");
  EXPECT_EQ(text_of(core.tick(kStart + 50s)), "leave");
  EXPECT_EQ(text_of(core.ended({}, true, kStart + 51s)), "130");
}

TEST(HostsCore, WithoutAReaderOfTheOutputTheCodeIsThatOfSigpipe) {
  auto core = running(1, 1);
  core.reader_gone();
  EXPECT_EQ(text_of(core.stopping(SIGTERM, kStart)), "");
  EXPECT_EQ(text_of(core.ended(143, true, kStart + 1s)), "141");
}

TEST(HostsCore, StopBeforeTheStartEndsWithTheSignalsCode) {
  HostsCore core({.hosts = 2, .hosts_min = 2, .grace = 30s});
  core.connected(kStart);
  EXPECT_EQ(text_of(core.stopping(SIGINT, kStart)), "");
  EXPECT_EQ(text_of(core.tick(kStart)), "leave");
  EXPECT_EQ(text_of(core.ended({}, true, kStart)), "");
  EXPECT_EQ(text_of(core.ended({}, false, kStart)), "130");
}

}  // namespace
}  // namespace ddp::launcher
