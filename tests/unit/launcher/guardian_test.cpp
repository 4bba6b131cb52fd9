#include "launcher/guardian/guardian.hpp"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/pidfd.hpp"
#include "launcher/guardian/node_record.hpp"
#include "launcher/guardian/protocol.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::launcher::guardian {
namespace {

constexpr int kPatienceMs = 60'000;

// The first report of one of these kinds on a worker that is asked for; empty at the deadline.
std::optional<Report> start_worker(const GuardianHandle& guardian, const std::set<ReportKind>& kinds,
                                   const std::vector<std::string>& variables = {}) {
  const base::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  send_request(guardian.socket.get(), packet_of({RequestKind::spawn, 0, 0, variables}),
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
  const base::UniqueFd ended = base::open_pidfd(guardian.pid);
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

TEST(Guardian, AnErrorInItEndsItAndItsWorkersAndReachesNoCopyOfItsCaller) {
  GuardianOptions options{{"/bin/sleep", {"sleep", "1000"}}, {}, {}, {1024, 1024}, {}, ""};
  sigemptyset(&options.worker_signal_mask);
  GuardianHandle guardian;
  try {
    guardian = start_guardian(options);
  } catch (...) {
    ::_exit(42);  // the guardian, which came out of its function as a copy of this test
  }
  const auto worker = start_worker(guardian, {ReportKind::spawned});
  ASSERT_TRUE(worker);
  send_request(guardian.socket.get(), packet_of({RequestKind::set_farewell, 0, 0, {"key", "10.0.0.1", "no port"}}), {});
  int status = 0;
  ASSERT_EQ(::waitpid(guardian.pid, &status, 0), guardian.pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILURE) << status;
  EXPECT_EQ(::kill(worker->pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

// A later ddprun on this host may be heard.
TEST(Guardian, KeepsTheRecordOfTheNodeIfNobodyHearsItsFarewell) {
  namespace fs = std::filesystem;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const bool is_wanted : {true, false}) {
    SCOPED_TRACE(is_wanted);
    const test::ScratchDirectory parent;
    const auto folder = parent.path() / "of_ddprun";
    fs::create_directory(folder);
    std::ofstream(folder / "error.json") << "{}";
    const NodeRecord record{"job", {std::string(32, 'a'), {1, 2, 3}, 0, 1, std::string(32, 'b')}, 0};
    write_record(folder, record);
    GuardianOptions options{{"/bin/true", {"true"}}, {}, {}, {1024, 1024}, {}, folder};
    sigemptyset(&options.worker_signal_mask);
    const pid_t ddprun = ::fork();
    if (ddprun == 0) {
      const auto guardian = start_guardian(options);
      const std::vector<std::string> nobody_listens{"key", "127.0.0.1", "1"};
      if (is_wanted)
        send_request(guardian.socket.get(), packet_of({RequestKind::set_farewell, 0, 0, nobody_listens}), {});
      start_worker(guardian, {ReportKind::spawned});  // so the guardian has read what came before
      ::_exit(0);
    }
    while (::waitpid(-1, nullptr, 0) > 0) {  // that one, and then its guardian
    }
    EXPECT_EQ(read_record(folder).has_value(), is_wanted);
    EXPECT_FALSE(fs::exists(folder / "error.json"));
    EXPECT_EQ(fs::exists(folder), is_wanted);
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Guardian, StartsNoWorkerWithAVariableOfAnotherList) {
  GuardianOptions options{{"/bin/true", {"true"}}, {}, {}, {1024, 1024}, {}, ""};
  sigemptyset(&options.worker_signal_mask);
  auto guardian = start_guardian(options);
  for (const auto* variable : {"LD_PRELOAD=/tmp/evil.so", "LD_AUDIT=x", "PYTHONPATH=/tmp", "PYTHONSTARTUP=x",
                               "BASH_ENV=/tmp/evil.sh", "PATH=/tmp", "MASTER_ADDR", ""}) {
    const auto report =
        start_worker(guardian, {ReportKind::spawned, ReportKind::not_spawned}, {"MASTER_ADDR=127.0.0.1", variable});
    ASSERT_TRUE(report);
    EXPECT_EQ(report->kind, ReportKind::not_spawned) << variable;
    EXPECT_EQ(report->value, EPERM);
  }
  const auto report = start_worker(guardian, {ReportKind::spawned, ReportKind::not_spawned}, {"MASTER_ADDR=127.0.0.1"});
  ASSERT_TRUE(report);
  EXPECT_EQ(report->kind, ReportKind::spawned);
  end(std::move(guardian));
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

// A guardian whose workers run one script each.
class GuardianOfScripts : public ::testing::Test {
 protected:
  void SetUp() override {
    GuardianOptions options{
        {"/bin/sh", {"sh", "-c", "eval \"$ROLE_NAME\""}}, {"PATH=/usr/bin:/bin"}, {}, {1024, 1024}, {}, ""};
    sigemptyset(&options.worker_signal_mask);
    guardian = start_guardian(options);
  }
  void TearDown() override {
    if (guardian.socket) end(std::move(guardian));
  }

  // Starts a worker and returns what it prints before the line "ready".
  std::string start(int local_rank, const std::string& script) {
    int output[2], agent[2];
    EXPECT_EQ(::pipe2(output, O_CLOEXEC), 0);
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, agent), 0);
    const base::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC)), reader(output[0]), agent_side(agent[0]);
    base::UniqueFd writer(output[1]), worker_side(agent[1]);
    send_request(guardian.socket.get(), packet_of({RequestKind::spawn, local_rank, 0, {"ROLE_NAME=" + script}}),
                 std::array{null.get(), writer.get(), null.get(), worker_side.get()});
    writer.reset();
    std::string text;
    const std::string last = "ready\n";
    pollfd wait{reader.get(), POLLIN, 0};
    for (char byte = 0; !text.ends_with(last); text += byte)
      if (::poll(&wait, 1, kPatienceMs) != 1 || ::read(reader.get(), &byte, 1) != 1) {
        ADD_FAILURE() << "worker " << local_rank << " printed only: " << text;
        return {};
      }
    return text.substr(0, text.size() - last.size());
  }

  void ask(RequestKind kind, int signal_number = 0) {
    EXPECT_EQ(send_request(guardian.socket.get(), packet_of({kind, 0, signal_number, {}}), {}), Sent::done);
  }

  // The next report of this kind; those before it are passed over. Empty at the deadline.
  std::optional<Report> hear(ReportKind kind) {
    pollfd wait{guardian.socket.get(), POLLIN, 0};
    bool closed = false;
    while (true) {
      while (!heard.empty()) {
        const auto report = heard.front();
        heard.pop_front();
        if (report.kind == kind) return report;
      }
      if (closed || ::poll(&wait, 1, kPatienceMs) != 1) return {};
      if (const auto reports = receive_reports(guardian.socket.get(), closed))
        heard.insert(heard.end(), reports->content.begin(), reports->content.end());
    }
  }

  GuardianHandle guardian;
  std::deque<Report> heard;
};

bool has_ended(const base::UniqueFd& process, int patience_ms) {
  pollfd wait{process.get(), POLLIN, 0};
  return ::poll(&wait, 1, patience_ms) == 1;
}

TEST_F(GuardianOfScripts, WorkerDiesWithTheGuardianIfNobodyElseKillsIt) {
  start(0, "echo ready; exec sleep 1000");
  const auto spawned = hear(ReportKind::spawned);
  ASSERT_TRUE(spawned);
  const base::UniqueFd worker = base::open_pidfd(spawned->pid);
  // This process kills nobody, like a ddprun that was killed together with its guardian.
  ::kill(guardian.pid, SIGKILL);
  ::waitpid(guardian.pid, nullptr, 0);
  guardian.socket.reset();
  EXPECT_TRUE(has_ended(worker, kPatienceMs));
  if (HasFailure()) ::kill(spawned->pid, SIGKILL);
}

// The handler's child is forked after the guardian has listed the tree. The handler ends when its child is `sleep`, or
// the child could lose the signal to the shell's handler.
TEST_F(GuardianOfScripts, ProcessForkedInASignalHandlerGetsTheSignalToo) {
  start(0,
        "trap 'x=$(sh -c \"echo; exec sleep 1000 >/dev/null\" &); exit 0' TERM\n"
        "sh -c 'echo ready; exec sleep 1000' & wait");
  ask(RequestKind::signal_tree, SIGTERM);
  EXPECT_TRUE(hear(ReportKind::tree_empty));
}

// A tracer stops the process in the middle of its death of SIGSEGV, until let_end() is called.
void hold_at_its_end(pid_t pid) {
  int status = 0;
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT), 0);
  ::kill(pid, SIGSEGV);
  ASSERT_EQ(::waitpid(pid, &status, __WALL), pid);  // about to die of the signal
  ASSERT_EQ(::ptrace(PTRACE_CONT, pid, nullptr, SIGSEGV), 0);
  ASSERT_EQ(::waitpid(pid, &status, __WALL), pid);
  ASSERT_EQ(status >> 8, SIGTRAP | PTRACE_EVENT_EXIT << 8);
}

void let_end(pid_t pid) {
  int status = 0;
  ASSERT_EQ(::ptrace(PTRACE_CONT, pid, nullptr, 0), 0);
  ::waitpid(pid, &status, __WALL);  // the tracer reaps it first, then its parent does
}

TEST_F(GuardianOfScripts, WorkerThatEndsAtTheFirstFailureIsReportedAsSuch) {
  pid_t pids[3] = {};
  for (int rank = 0; rank < 3; ++rank) start(rank, "echo ready; exec sleep 1000");
  for (auto& pid : pids) pid = hear(ReportKind::spawned).value_or(Report{}).pid;
  ASSERT_NO_FATAL_FAILURE(hold_at_its_end(pids[1]));
  ::kill(pids[0], SIGKILL);
  const auto first = hear(ReportKind::ended);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->local_rank, 0);
  EXPECT_TRUE(first->was_ending) << "nothing went before it";
  ask(RequestKind::signal_tree, SIGTERM);
  const auto consequence = hear(ReportKind::ended);
  ASSERT_TRUE(consequence);
  EXPECT_EQ(consequence->local_rank, 2);
  EXPECT_FALSE(consequence->was_ending);
  ASSERT_NO_FATAL_FAILURE(let_end(pids[1]));
  const auto late = hear(ReportKind::ended);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->local_rank, 1);
  EXPECT_TRUE(late->was_ending);
}

// The guardian looks when it reaps the first failure, not when ddprun answers with a signal.
TEST_F(GuardianOfScripts, WorkerThatEndsAfterTheFirstFailureIsNotReportedAsEndingThen) {
  pid_t pids[2] = {};
  for (int rank = 0; rank < 2; ++rank) start(rank, "echo ready; exec sleep 1000");
  for (auto& pid : pids) pid = hear(ReportKind::spawned).value_or(Report{}).pid;
  ::kill(pids[0], SIGKILL);
  ASSERT_TRUE(hear(ReportKind::ended));
  ASSERT_NO_FATAL_FAILURE(hold_at_its_end(pids[1]));
  ask(RequestKind::signal_tree, SIGTERM);
  ASSERT_TRUE(hear(ReportKind::signalled));
  ASSERT_NO_FATAL_FAILURE(let_end(pids[1]));
  const auto late = hear(ReportKind::ended);
  ASSERT_TRUE(late);
  EXPECT_EQ(late->local_rank, 1);
  EXPECT_FALSE(late->was_ending);
}

TEST_F(GuardianOfScripts, SignalToTheTreeSparesAWorkerAndItsDescendants) {
  const base::UniqueFd child = base::open_pidfd(std::stoi(start(0, "sleep 1000 & echo $!; echo ready; wait")));
  start(1, "echo ready; exec sleep 1000");
  EXPECT_EQ(send_request(guardian.socket.get(), packet_of({RequestKind::signal_tree, 0, SIGTERM, {"0"}}), {}),
            Sent::done);
  ASSERT_TRUE(hear(ReportKind::signalled));
  EXPECT_EQ(hear(ReportKind::ended).value_or(Report{}).local_rank, 1);
  EXPECT_FALSE(has_ended(child, 0));
  ask(RequestKind::signal_tree, SIGTERM);
  EXPECT_TRUE(has_ended(child, kPatienceMs));
  EXPECT_TRUE(hear(ReportKind::tree_empty));
}

TEST_F(GuardianOfScripts, OrphansOfALivingWorkerOutliveThoseOfADeadOne) {
  const std::string leave_an_orphan = "(sleep 1000 & echo $!); echo ready; ";
  const base::UniqueFd spared = base::open_pidfd(std::stoi(start(0, leave_an_orphan + "exec sleep 1000")));
  const base::UniqueFd killed = base::open_pidfd(std::stoi(start(1, leave_an_orphan)));
  const auto ended = hear(ReportKind::ended);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->local_rank, 1);
  ask(RequestKind::kill_orphans);
  ASSERT_TRUE(hear(ReportKind::orphans_gone));
  EXPECT_TRUE(has_ended(killed, 0));
  EXPECT_FALSE(has_ended(spared, 0));
}

}  // namespace
}  // namespace ddp::launcher::guardian
