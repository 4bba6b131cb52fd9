#include "launcher/agent/guardian_link.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "launcher/agent/own_signals.hpp"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using guardian::RequestKind;

constexpr auto kPatience = 60s;
constexpr int kMoreThanASocketHolds = 2000;

void run_until(boost::asio::io_context& io, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition() && io.run_one_until(deadline) > 0) continue;
  EXPECT_TRUE(condition());
}

// This side of what a worker has been given.
struct WorkerEnds {
  base::UniqueFd output, agent;
};

WorkerEnds spawn_worker(GuardianLink& link) {
  int output[2], agent[2];
  EXPECT_EQ(::pipe2(output, O_CLOEXEC), 0);
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, agent), 0);
  const base::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC)), writer(output[1]), worker_side(agent[1]);
  link.spawn(0, {}, {null.get(), writer.get(), null.get(), worker_side.get()});
  return {base::UniqueFd(output[0]), base::UniqueFd(agent[0])};
}

// What the worker writes first.
std::string read_output(const WorkerEnds& worker) {
  std::string text(100, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::read(worker.output.get(), text.data(), text.size()))));
  return text;
}

TEST(GuardianLink, RequestsWaitForAGuardianThatHasNoRoomAndKeepTheirOrderAndDescriptors) {
  guardian::GuardianOptions options{{"/bin/sh", {"sh", "-c", "echo hello"}}, {}, {}, {1024, 1024}, {}, ""};
  sigemptyset(&options.worker_signal_mask);
  boost::asio::io_context io{1};
  GuardianLink link(options, 1);
  int signalled = 0, signalled_at_start = 0;
  bool is_empty = false;
  link.listen(io, {[&](const std::vector<WorkerGroupEvent>& events) {
                     for (const auto& event : events) {
                       if (std::holds_alternative<TreeSignalled>(event)) ++signalled;
                       if (std::holds_alternative<WorkerStarted>(event)) signalled_at_start = signalled;
                       is_empty = is_empty || std::holds_alternative<TreeEmpty>(event);
                     }
                   },
                   [](int) {}, [](int) {}});
  ASSERT_EQ(::kill(link.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(link.pid(), &status, WUNTRACED), link.pid());
  for (int i = 0; i < kMoreThanASocketHolds; ++i) link.signal_tree(SIGURG, {});
  const auto worker = spawn_worker(link);
  ASSERT_EQ(::kill(link.pid(), SIGCONT), 0);
  run_until(io, [&] { return is_empty; });
  EXPECT_EQ(signalled_at_start, kMoreThanASocketHolds);
  EXPECT_EQ(read_output(worker), "hello\n");
  link.child_ended();
  EXPECT_NE(link.pid(), 0) << "the guardian lives";
}

// A process, no descendant of this one, that attaches itself to another one, whose parent then hears nothing of its end
// until this object ends: as if it could not be killed.
class Tracer {
 public:
  Tracer() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("no socket");
    ours_.reset(pair[0]);
    const base::UniqueFd theirs(pair[1]);
    const pid_t parent = ::fork();
    if (parent == 0) {
      if (::fork() == 0) trace(theirs.get());
      ::_exit(0);
    }
    ::waitpid(parent, nullptr, 0);
  }

  bool attach(pid_t traced) {
    bool is_attached = false;
    return ::write(ours_.get(), &traced, sizeof traced) == sizeof traced &&
           ::read(ours_.get(), &is_attached, sizeof is_attached) == sizeof is_attached && is_attached;
  }

 private:
  [[noreturn]] void trace(int socket) {
    ours_.reset();
    pid_t traced = 0;
    if (::read(socket, &traced, sizeof traced) != sizeof traced) ::_exit(0);
    const bool is_attached = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0;
    static_cast<void>(!::write(socket, &is_attached, sizeof is_attached));
    static_cast<void>(!::read(socket, &traced, sizeof traced));
    ::_exit(0);
  }

  base::UniqueFd ours_;
};

// What it leaves has to end before ddprun does, but the other nodes have to hear of it at once. Until then the event
// loop goes on: it keeps the heartbeats of the node.
TEST(GuardianLink, EndOfTheGuardianIsReportedThoughSomethingThatItLeftDoesNotEnd_AndHoldsUpNothing) {
  std::optional<Tracer> tracer(std::in_place);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t child_ended;
  sigemptyset(&child_ended);
  sigaddset(&child_ended, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &child_ended, nullptr);

  guardian::GuardianOptions options{
      {"/bin/sh", {"sh", "-c", "sleep 1000 & echo $!; wait"}}, {}, {}, {1024, 1024}, {}, ""};
  sigemptyset(&options.worker_signal_mask);
  boost::asio::io_context io{1};
  std::optional<GuardianLink> link(std::in_place, options, 1);
  std::optional<Ending> ending;
  bool is_left = false, has_loop_gone_on = false;
  link->listen(io, {[](const std::vector<WorkerGroupEvent>&) {}, [](int) {}, [](int) {},
                    [&](const Ending& its, pid_t, bool is_tree_left) { ending = its, is_left = is_tree_left; }});
  OwnSignals signals(io, child_ended, {},
                     {[](const NodeCore::Event&) {},
                      [&] {
                        link->child_ended();
                        boost::asio::post(io, [&] { has_loop_gone_on = has_loop_gone_on || !ending; });
                      },
                      [] {}});
  signals.listen();
  const auto worker = spawn_worker(*link);
  const pid_t started_by_worker = std::atoi(read_output(worker).c_str());
  ASSERT_GT(started_by_worker, 0);
  if (!tracer->attach(started_by_worker)) GTEST_SKIP() << "this process may not trace others";

  ASSERT_EQ(::kill(link->pid(), SIGKILL), 0);
  run_until(io, [&] { return ending.has_value(); });
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->value, SIGKILL);
  EXPECT_TRUE(is_left);
  EXPECT_TRUE(has_loop_gone_on) << "it was held up until the end was told";
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), 0) << "something must be left for this test to prove anything";
  tracer.reset();
  link.reset();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "something is left";
}

class GuardianRequestsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    ours_.reset(pair[0]);
    theirs_.reset(pair[1]);
  }

  boost::asio::io_context io_{1};
  base::UniqueFd ours_, theirs_;
  int lost_ = 0;
};

TEST_F(GuardianRequestsTest, AGuardianThatMakesNoRoomInTimeIsLost) {
  GuardianRequests requests(
      io_, ours_.get(), [this] { ++lost_; }, 10ms);
  for (int i = 0; i < kMoreThanASocketHolds; ++i) requests.send({RequestKind::kill_orphans, 0, 0, {}}, {});
  EXPECT_EQ(lost_, 0);
  run_until(io_, [this] { return lost_ > 0; });
  io_.poll();
  EXPECT_EQ(lost_, 1);
}

TEST_F(GuardianRequestsTest, NoMoreIsKeptThanANodeMayNeed) {
  GuardianRequests requests(io_, ours_.get(), [this] { ++lost_; });
  const int more_than_is_kept = kMoreThanASocketHolds + static_cast<int>(GuardianRequests::kWaitingMax);
  for (int i = 0; i < more_than_is_kept && lost_ == 0; ++i) requests.send({RequestKind::kill_orphans, 0, 0, {}}, {});
  EXPECT_EQ(lost_, 1);
}

TEST_F(GuardianRequestsTest, AGuardianThatEndsMeanwhileIsLost) {
  GuardianRequests requests(io_, ours_.get(), [this] { ++lost_; });
  for (int i = 0; i < kMoreThanASocketHolds; ++i) requests.send({RequestKind::kill_orphans, 0, 0, {}}, {});
  theirs_.reset();
  run_until(io_, [this] { return lost_ > 0; });
  io_.poll();
  EXPECT_EQ(lost_, 1);
}

}  // namespace
}  // namespace ddp::launcher
