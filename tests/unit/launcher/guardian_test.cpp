#include "launcher/guardian/guardian.hpp"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <set>
#include <utility>

#include "launcher/guardian/protocol.hpp"
#include "rendezvous/io/pidfd.hpp"

namespace ddp::launcher::guardian {
namespace {

constexpr int kPatienceMs = 20'000;

// The first report of one of these kinds on a worker that is asked for; empty at the deadline.
std::optional<Report> start_worker(const GuardianHandle& guardian, const std::set<ReportKind>& kinds) {
  const io::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  send_request(guardian.socket.get(), {RequestKind::spawn, 0, 0, {}},
               std::array{null.get(), null.get(), null.get(), null.get()});
  pollfd answer{guardian.socket.get(), POLLIN, 0};
  bool closed = false;
  while (::poll(&answer, 1, kPatienceMs) == 1 && !closed)
    if (const auto reports = receive_reports(guardian.socket.get(), closed))
      for (const auto& report : reports->content)
        if (kinds.count(report.kind) != 0) return report;
  return {};
}

void end(GuardianHandle guardian) {
  const io::UniqueFd ended = io::open_pidfd(guardian.pid);
  guardian.socket.reset();
  pollfd wait{ended.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&wait, 1, kPatienceMs), 1);
  ::waitpid(guardian.pid, nullptr, 0);
}

TEST(Guardian, CoresThatAreGoneAreAFailedStart) {
  GuardianOptions options{{"/bin/true", {"true"}}, {}, {}, {1024, 1024}, {Binding{}}, ""};
  sigemptyset(&options.worker_signal_mask);
  for (const bool is_gone : {false, true}) {
    if (is_gone) options.bindings.front().cpus = {100'000};  // no kernel has so many
    auto guardian = start_guardian(options);
    const auto report = start_worker(guardian, {ReportKind::spawned, ReportKind::not_spawned});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->kind, is_gone ? ReportKind::not_spawned : ReportKind::spawned);
    EXPECT_TRUE(!is_gone || report->value == EINVAL) << report->value;
    end(std::move(guardian));
  }
}

TEST(Guardian, WorkersStartWithTheSignalsIgnoredThatAreToBe) {
  for (const bool is_ignored : {false, true}) {
    GuardianOptions options{{"/bin/sh", {"sh", "-c", "kill -USR1 $$; exit 3"}}, {}, {}, {1024, 1024}, {}, ""};
    sigemptyset(&options.worker_signal_mask);
    if (is_ignored) options.ignored_signals = {SIGUSR1};
    auto guardian = start_guardian(options);
    const auto report = start_worker(guardian, {ReportKind::ended});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->value, is_ignored ? 3 << 8 : SIGUSR1);
    end(std::move(guardian));
  }
}

}  // namespace
}  // namespace ddp::launcher::guardian
