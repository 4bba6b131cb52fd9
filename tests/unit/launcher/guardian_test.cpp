#include "launcher/guardian/guardian.hpp"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>

#include "launcher/guardian/protocol.hpp"
#include "rendezvous/io/pidfd.hpp"

namespace ddp::launcher::guardian {
namespace {

constexpr int kPatienceMs = 20'000;

// The first report on a worker that is asked for; empty at the deadline.
std::optional<Report> start_worker(const GuardianHandle& guardian) {
  const io::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  send_request(guardian.socket.get(), {RequestKind::spawn, 0, 0, {}},
               std::array{null.get(), null.get(), null.get(), null.get()});
  pollfd answer{guardian.socket.get(), POLLIN, 0};
  bool closed = false;
  if (::poll(&answer, 1, kPatienceMs) != 1) return {};
  const auto reports = receive_reports(guardian.socket.get(), closed);
  return reports && !reports->content.empty() ? std::optional(reports->content.front()) : std::nullopt;
}

TEST(Guardian, CoresThatAreGoneAreAFailedStart) {
  GuardianOptions options{{"/bin/true", {"true"}}, {}, {}, {1024, 1024}, {Binding{}}, ""};
  sigemptyset(&options.worker_signal_mask);
  for (const bool is_gone : {false, true}) {
    if (is_gone) options.bindings.front().cpus = {100'000};  // no kernel has so many
    auto guardian = start_guardian(options);
    const auto report = start_worker(guardian);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->kind, is_gone ? ReportKind::not_spawned : ReportKind::spawned);
    EXPECT_TRUE(!is_gone || report->value == EINVAL) << report->value;
    const io::UniqueFd ended = io::open_pidfd(guardian.pid);
    guardian.socket.reset();
    pollfd wait{ended.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, kPatienceMs), 1);
    ::waitpid(guardian.pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace ddp::launcher::guardian
