// Ranks that no launcher of ours started, and that rank 0 serves the store for: as tasks of a Slurm step, on one node.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "rendezvous/slurm/step.hpp"
#include "rendezvous/store/client.hpp"
#include "rendezvous/store/store_thread.hpp"
#include "tests/integration/as_task.hpp"
#include "tests/integration/free_port.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/integration/thrown_by.hpp"
#include "worker_runtime/core/bootstrap/rank0_store.hpp"
#include "worker_runtime/core/bootstrap/tcp_store.hpp"

namespace ddp {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::open_pidfds;
using testing::RankProcesses;
using testing::Shared;
using testing::thrown_by;
using testing::wait_until;

testing::Step step_of_one_node(int tasks) {
  return {.job = std::to_string(test::free_job()), .node_of = std::vector<int>(static_cast<std::size_t>(tasks), 0)};
}

std::uint16_t first_port_of(const testing::Step& step) { return slurm::ports_of({.job = step.job, .step = "0"}).first; }

// Empty where the port is taken.
base::UniqueFd listen_on(int port) {
  base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  if (::listen(socket.get(), 16) != 0) return {};
  return socket;
}

void expect_sum(ProcessGroup& world) {
  float value = static_cast<float>(world.rank() + 1);
  world.all_reduce(MemoryRange(&value, 1));
  EXPECT_EQ(value, static_cast<float>(world.size() * (world.size() + 1) / 2));
}

// What a process of its own does, which ends with the test.
class Child {
 public:
  template <class Function>
  explicit Child(const Function& function) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    function();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;

  void end() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

TEST(Rank0Store, TasksOfAStepMeetWithoutALauncher) {
  const auto step = step_of_one_node(3);
  testing::run_ranks(3, [&](int rank) {
    testing::become_task(step, rank);
    ProcessGroup world = init_process_group();
    EXPECT_EQ(world.rank(), rank);
    EXPECT_EQ(world.size(), 3);
    EXPECT_EQ(world.local_size(), 3);
    expect_sum(world);
    ProcessGroup second = init_process_group();
    expect_sum(second);
    EXPECT_EQ(second.round().number, 0u);
  });
}

// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and nothing else.
void become_rank_by_hand(int rank, int size, const std::string& master, int port) {
  testing::forget_launcher();
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(size));
  set("MASTER_ADDR", master);
  set("MASTER_PORT", std::to_string(port));
}

TEST(Rank0Store, RanksByHandMeetAtMasterAddrAndMasterPort) {
  const int port = first_port_of(step_of_one_node(3));
  for (const auto& master : {std::string("localhost"), std::string("127.0.0.1")}) {
    testing::run_ranks(3, [&](int rank) {
      become_rank_by_hand(rank, 3, master, port);
      ProcessGroup world = init_process_group();
      EXPECT_EQ(world.rank(), rank);
      EXPECT_EQ(world.local_rank(), rank);
      EXPECT_EQ(world.local_size(), 3);
      expect_sum(world);
    });
  }
}

TEST(Rank0Store, WhoWaitsLongSaysForWhat) {
  const int port = first_port_of(step_of_one_node(2));
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const base::UniqueFd read_end(ends[0]);
  base::UniqueFd write_end(ends[1]);
  RankProcesses ranks(2,
                      [&](int rank) {
                        become_rank_by_hand(rank, 2, "127.0.0.1", port);
                        ::dup2(write_end.get(), STDERR_FILENO);
                        thrown_by<TimeoutError>([] { init_process_group({.timeout = 20s}); });
                      },
                      {0});
  write_end.reset();
  std::string text;
  char byte = 0;
  pollfd waiting{read_end.get(), POLLIN, 0};
  while (byte != '\n' && ::poll(&waiting, 1, 60'000) == 1 && ::read(read_end.get(), &byte, 1) == 1) text += byte;
  const auto place = std::to_string(port) + " (127.0.0.1:" + std::to_string(port) + ": Connection refused)";
  EXPECT_THAT(text,
              HasSubstr("libddp: rank 1 of 2 waits for rank 0's store at 127.0.0.1, port " + place + ", for up to 1"));
  ranks.kill(1);
  ranks.expect_killed(1);
}

TEST(Rank0Store, PortsThatOthersHaveArePassedOver) {
  const auto step = step_of_one_node(3);
  const int first = first_port_of(step);
  const auto silent = listen_on(first);  // takes connections, and never answers
  const auto of_http = listen_on(first + 1);
  ASSERT_TRUE(silent && of_http);
  const Child http([&] {
    while (true) {
      const base::UniqueFd caller(::accept(of_http.get(), nullptr, nullptr));
      constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
      static_cast<void>(::write(caller.get(), kAnswer.data(), kAnswer.size()));
    }
  });
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const Child stores([&] {  // of another job, and one that names none
    const auto port = [&](int i) { return static_cast<std::uint16_t>(first + i); };
    const store::StoreThread other({.addresses = {"127.0.0.1"},
                                    .first_port = port(2),
                                    .last_port = port(2),
                                    .entries = {{"ddp/job", "slurm 1.0 uid 0"}}});
    const store::StoreThread nameless({.addresses = {"127.0.0.1"}, .first_port = port(3), .last_port = port(3)});
    static_cast<void>(::write(ready[1], "", 1));
    ::pause();
  });
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  testing::run_ranks(3, [&](int rank) {
    testing::become_task(step, rank);
    ProcessGroup world = init_process_group();
    expect_sum(world);
  });
}

TEST(Rank0Store, AProgramThatRunsAfterAnotherInTheStepMeetsItsOwnRank0) {
  const auto step = step_of_one_node(2);
  const Shared<std::atomic<bool>> second_has_met;
  testing::run_ranks(2, [&](int rank) {
    testing::become_task(step, rank);
    std::optional<Child> first(std::in_place, [&] {
      ProcessGroup world = init_process_group();
      expect_sum(world);
      if (rank == 0) wait_until([&] { return second_has_met->load(); });  // it takes its time to end
    });
    if (rank == 1) {
      EXPECT_EQ(first->wait(), 0);
    }
    Child second([&] {
      ProcessGroup world = init_process_group();
      expect_sum(world);
      second_has_met->store(true);
    });
    EXPECT_EQ(second.wait(), 0);
    if (rank == 0) {
      EXPECT_EQ(first->wait(), 0);
    }
  });
}

TEST(Rank0Store, ARank0ThatEndsAtOnceLeavesTheOthersInPeace) {
  const auto step = step_of_one_node(4);
  for (int i = 0; i < 5; ++i) {
    testing::run_ranks(4, [&](int rank) {
      testing::become_task(step, rank);
      const ProcessGroup world = init_process_group();
      EXPECT_EQ(world.rank(), rank);
      if (rank == 0) std::_Exit(0);
    });
  }
}

TEST(Rank0Store, AStoreThatHasEndedIsNotLookedForAgain) {
  const auto step = step_of_one_node(2);
  const auto port = first_port_of(step);
  const Shared<std::atomic<bool>> has_ended;
  RankProcesses ranks(2, [&](int rank) {
    testing::become_task(step, rank);
    ProcessGroup world = init_process_group();
    expect_sum(world);
    if (rank == 0) return;
    wait_until([&] { return has_ended->load(); });
    const auto fails_with = [](const std::string& why) {
      const auto error = thrown_by<RankFailure>([] { init_process_group({.timeout = milliseconds(60'000)}); });
      if (!error) return;
      EXPECT_THAT(error->ranks(), ElementsAre(0));
      EXPECT_THAT(error->what(), HasSubstr("rank 0's store, at which this process has made a group before, has ended"));
      EXPECT_THAT(error->what(), HasSubstr(why));
    };
    fails_with("127.0.0.1:" + std::to_string(port) + ": Connection refused");
    const store::StoreThread other({.addresses = {"127.0.0.1"},
                                    .first_port = port,
                                    .last_port = port,
                                    .entries = {{"ddp/job", "slurm 1.0 uid 0"}}});
    fails_with("the store of another job");
  });
  ranks.expect_success(0);
  has_ended->store(true);
  ranks.expect_success(1);
}

TEST(Rank0Store, WhoMayConnectIsRefusedInThreeLinesWhereItIsMalformed) {
  const auto step = step_of_one_node(2);
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    ::setenv("DDPRUN_STORE_ALLOW", "10.0.0.0/8,10.0.0.0/99", 1);
    const auto error = thrown_by<InvalidArgument>([] { init_process_group(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                HasSubstr("DDPRUN_STORE_ALLOW is '10.0.0.0/8,10.0.0.0/99': \"10.0.0.0/99\" is no block"));
    EXPECT_THAT(error->what(), HasSubstr("\nwhere: the environment of this process"));
    EXPECT_THAT(error->what(), HasSubstr("\ntry:   DDPRUN_STORE_ALLOW="));
    EXPECT_THAT(error->what(), ::testing::Not(HasSubstr("--store-allow")));
  };
  RankProcesses ranks(2, body, {1});
  ranks.expect_success(0);
}

TEST(Rank0Store, WithFewerDescriptorsThanRanksSaysSo) {
  const auto step = step_of_one_node(200);
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    const rlimit limit{128, 128};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    const auto error = thrown_by<Error>([] { init_process_group({.timeout = milliseconds(500)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("this process may open 128 descriptors, and 200 ranks connect to it"));
    EXPECT_THAT(error->what(), HasSubstr("\ntry:   `ulimit -n"));
  };
  std::vector<int> absent;
  for (int rank = 1; rank < 200; ++rank) absent.push_back(rank);
  RankProcesses ranks(200, body, absent);
  ranks.expect_success(0);
}

TEST(Rank0Store, WhoeverLeavesLateDoesNotMindThatItHasEnded) {
  const auto end = std::chrono::steady_clock::now() + testing::kPatience;
  std::optional<store::StoreThread> store(store::StoreThreadOptions{.addresses = {"127.0.0.1"}});
  core::TcpStore client(store::Client::connect({.host = "127.0.0.1", .port = store->port(), .deadline = end}));
  store.reset();
  core::Launch launch;
  launch.rank = 1;
  launch.size = 2;
  EXPECT_NO_THROW(core::leave_rank0(launch, client, "group_0/", base::Deadline(std::chrono::steady_clock::now(), end)));
}

TEST(Rank0Store, WhyTheRanksDidNotMeetIsReadBeforeItEndsWithRank0) {
  const auto step = step_of_one_node(4);
  struct Steps {
    std::atomic<bool> has_come, may_die;
  };
  const Shared<Steps> steps;
  const auto fail = [] {
    const auto error = thrown_by<RankFailure>([] { init_process_group(); });
    if (!error) return;
    EXPECT_THAT(error->ranks(), ElementsAre(2));
    EXPECT_THAT(error->what(), HasSubstr("rank 2 ended before all ranks had met"));
  };
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    std::thread init([&] {
      fail();
      if (rank == 0) std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    if (rank != 0) wait_until([] { return open_pidfds() >= 2; });  // its own and rank 0's: it has been welcomed
    if (rank == 1) steps->has_come = true;
    if (rank == 2) {
      wait_until([&] { return steps->may_die.load(); });
      ::raise(SIGKILL);
    }
    init.join();
  };
  RankProcesses ranks(4, body, {3});
  wait_until([&] { return steps->has_come.load(); });
  ranks.stop(1);  // it is slow to hear of it
  steps->may_die = true;
  {
    const auto until = std::chrono::steady_clock::now() + testing::kPatience;
    auto store = store::Client::connect({.host = "127.0.0.1", .port = first_port_of(step), .deadline = until});
    EXPECT_THAT(store.get("ddp/restart_0/group_0/verdict", until), HasSubstr("rank_failure 2\n"));
    EXPECT_THROW(store.wait({"what nobody sets"}, std::chrono::steady_clock::now() + 200ms), TimeoutError)
        << "the store stays as long as somebody is there";
  }
  ranks.go_on(1);
  ranks.expect_success(0);
  ranks.expect_success(1);
  ranks.expect_killed(2);
}

TEST(Rank0Store, AtItsDeadlineSaysWhatWasAtEachPort) {
  const auto step = step_of_one_node(2);
  const int first = first_port_of(step);
  const auto silent = listen_on(first + 1);
  ASSERT_TRUE(silent);
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    const auto error = thrown_by<TimeoutError>([] { init_process_group({.timeout = milliseconds(2'000)}); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->ranks(), ElementsAre(0));
    EXPECT_THAT(error->what(), HasSubstr("rank 0 did not serve its store within 2000 ms"));
    EXPECT_THAT(error->what(), HasSubstr("127.0.0.1:" + std::to_string(first) + ": Connection refused"));
    EXPECT_THAT(error->what(), HasSubstr(std::to_string(first + 1) + ": no answer within "));
    EXPECT_THAT(error->what(), HasSubstr("\nwhere: rank 1 of 2 (SLURM_PROCID), job 'slurm " + step.job + ".0'"));
    EXPECT_THAT(error->what(), HasSubstr("\ntry:   "));
  };
  RankProcesses ranks(2, body, {0});
  ranks.expect_success(1);
}

TEST(Rank0Store, WithoutAFreePortSaysSo) {
  const auto step = step_of_one_node(2);
  std::vector<base::UniqueFd> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(listen_on(first_port_of(step) + i));
  const auto body = [&](int rank) {
    testing::become_task(step, rank);
    const auto error = thrown_by<Error>([] { init_process_group(); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 0 can't serve the store"));
    EXPECT_THAT(error->what(), HasSubstr("Address already in use"));
    EXPECT_THAT(error->what(), HasSubstr("MASTER_PORT=a port that is free there"));
  };
  RankProcesses ranks(2, body, {1});
  ranks.expect_success(0);
}

TEST(Rank0Store, AProcessThatRank0ForkedDoesNotHoldItsPort) {
  const auto step = step_of_one_node(2);
  const Shared<std::atomic<pid_t>> forked;
  testing::run_ranks(2, [&](int rank) {
    testing::become_task(step, rank);
    const ProcessGroup world = init_process_group();
    if (rank != 0) return;
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::pause();
    }
    forked->store(pid);
  });
  wait_until([&] { return static_cast<bool>(listen_on(first_port_of(step))); });  // the child may only just begin
  ASSERT_GT(forked->load(), 0);
  ::kill(forked->load(), SIGKILL);
}

// DDPRUN_AGENT_SOCKET of a worker that called srun: were its number a socket here, it would not be meant.
TEST(Rank0Store, TheSocketToAnotherStepsAgentIsLeftAlone) {
  const auto step = step_of_one_node(1);
  const auto says_hello = [&](const std::string& outer_step) {
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()) != 0) throw std::runtime_error("socketpair");
    struct stat status {};
    ::fstat(ends[0], &status);
    const auto name = std::to_string(ends[0]) + ":" + std::to_string(status.st_ino);
    testing::run_ranks(1, [&](int rank) {
      testing::become_task(step, rank);
      ::setenv("DDPRUN_AGENT_SOCKET", name.c_str(), 1);
      ::setenv("DDPRUN_SLURM_STEP", outer_step.c_str(), 1);
      const ProcessGroup world = init_process_group();
      EXPECT_EQ(world.size(), 1);
    });
    std::array<char, 4096> packet{};
    const bool is_heard = ::recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) > 0;
    ::close(ends[0]);
    ::close(ends[1]);
    return is_heard;
  };
  EXPECT_FALSE(says_hello(step.job + ".7"));
  EXPECT_TRUE(says_hello(step.job + ".0"));
}

}  // namespace
}  // namespace ddp
