// What other processes of the same user can find of the token in ddprun, its guardian, its workers and ddp-rendezvous.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/sanitized.hpp"
#include "tests/security/nodes_with_tokens.hpp"
#include "tests/text.hpp"

namespace ddp::test::token {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// By another process of that user.
bool is_readable(pid_t pid) {
  const auto path = "/proc/" + std::to_string(pid) + "/environ";
  const pid_t reader = ::fork();
  if (reader == 0) {
    if (::geteuid() == 0 && (::setresgid(kUser, kUser, kUser) != 0 || ::setresuid(kUser, kUser, kUser) != 0))
      ::_exit(2);
    ::_exit(::open(path.c_str(), O_RDONLY) >= 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(reader, &status, 0);
  EXPECT_NE(WEXITSTATUS(status), 2);
  return WEXITSTATUS(status) == 0;
}

// The soft and the hard limit, as /proc shows them.
std::vector<std::string> core_limits_of(const std::string& pid) {
  const auto found = matches(contents_of("/proc/" + pid + "/limits"), "Max core file size +([a-z0-9]+) +([a-z0-9]+)");
  return found.empty() ? std::vector<std::string>() : std::vector{found.front()[1], found.front()[2]};
}

pid_t parent_of(pid_t pid) {
  const auto found = matches(contents_of("/proc/" + std::to_string(pid) + "/status"), "PPid:[[:space:]]*([0-9]+)");
  return found.empty() ? -1 : std::stoi(found.front()[1]);
}

// A job of two nodes at a daemon; all of them have the token.
class TokenInMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() == 0 && ::access(kSetpriv, X_OK) != 0) GTEST_SKIP() << "setpriv is not installed";
    ::getrlimit(RLIMIT_CORE, &core_limit_);
    const rlimit few{std::min<rlim_t>(core_limit_.rlim_max, 1 << 20), core_limit_.rlim_max};
    ::setrlimit(RLIMIT_CORE, &few);
    const auto endpoint = by_user("ddp-rendezvous", {"--port=0", "--host=127.0.0.1"}, kToken);
    daemon.emplace(endpoint.arguments, endpoint.options);
    const auto port = daemon->number_after("membership listens on port ");
    if (port < 0 && daemon->err().find("Permission denied") != std::string::npos)
      GTEST_SKIP() << "another user can't reach the programs";
    ASSERT_GT(port, 0) << daemon->err();
    for (auto* node : {&one, &two}) {
      const auto start = by_user("ddprun", node_at(port, "echo pid $$; " + kStay), kToken);
      node->emplace(start.arguments, start.options);
    }
    for (auto* node : {&one, &two}) ASSERT_GT((*node)->number_after("pid "), 0) << (*node)->err();
    worker = static_cast<pid_t>(one->number_after("pid "));
    guardian = parent_of(worker);
  }
  void TearDown() override { ::setrlimit(RLIMIT_CORE, &core_limit_); }

  std::optional<Job> daemon, one, two;
  pid_t worker = -1, guardian = -1;

 private:
  rlimit core_limit_{};
};

TEST_F(TokenInMemory, NoEnvironmentHasTheToken) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can read the environment of a process that hides its memory";
  for (const pid_t pid : {daemon->pid(), one->pid(), two->pid(), guardian, worker}) {
    std::string environment;
    const auto is_known = [&] {  // it is empty while the process is in an exec
      environment = contents_of("/proc/" + std::to_string(pid) + "/environ");
      return environment.find("JOB_MARK=") != std::string::npos;
    };
    EXPECT_TRUE(becomes_true(is_known));
    EXPECT_THAT(environment, Not(HasSubstr(kToken)));
  }
}

TEST_F(TokenInMemory, ProcessesWithTheTokenCannotBeReadByTheUsersOthers) {
  for (const pid_t pid : {daemon->pid(), one->pid(), two->pid(), guardian}) EXPECT_FALSE(is_readable(pid)) << pid;
  EXPECT_TRUE(is_readable(worker)) << "it has no token, and tools such as py-spy look into it";
}

TEST_F(TokenInMemory, ProcessesWithTheTokenWriteNoCoreAndWorkersKeepTheirLimit) {
  for (const pid_t pid : {daemon->pid(), one->pid(), two->pid(), guardian})
    EXPECT_EQ(core_limits_of(std::to_string(pid)).at(0), "0");
  // A sanitizer itself takes the limit away when a program starts.
  if (!kIsSanitized) {
    EXPECT_EQ(core_limits_of(std::to_string(worker)), core_limits_of("self"));
  }
}

TEST(WithoutAToken, DdprunIsAsOpenAsEverAndMayWriteACore) {
  if (::geteuid() == 0 && ::access(kSetpriv, X_OK) != 0) GTEST_SKIP() << "setpriv is not installed";
  const auto start = by_user("ddprun", {"--standalone", "sh", "-c", "echo pid $$; " + kStay}, "");
  Job job(start.arguments, start.options);
  if (job.number_after("pid ") < 0) GTEST_SKIP() << "another user can't reach the programs";
  EXPECT_TRUE(is_readable(job.pid()));
  EXPECT_EQ(core_limits_of(std::to_string(job.pid())), core_limits_of("self"));
}

TEST(WithoutAToken, DaemonHidesTheTokenOfScrapers) {
  if (::geteuid() == 0 && ::access(kSetpriv, X_OK) != 0) GTEST_SKIP() << "setpriv is not installed";
  char name[] = "/tmp/ddprun_scrape_XXXXXX";
  const std::string folder = ::mkdtemp(name), file = folder + "/token";
  std::ofstream(file) << "token_of_the_scrapers\n";
  ::chmod(file.c_str(), 0600);
  if (::geteuid() == 0) {
    for (const auto& path : {folder, file}) ASSERT_EQ(::chown(path.c_str(), kUser, kUser), 0);
  }
  const auto start = by_user("ddp-rendezvous", {"--port=0", "--host=127.0.0.1", "--scrape-token-file=" + file}, "");
  Job daemon(start.arguments, start.options);
  const auto port = daemon.number_after("membership listens on port ");
  std::filesystem::remove_all(folder);
  if (port < 0 && daemon.err().find("Permission denied") != std::string::npos)
    GTEST_SKIP() << "another user can't reach the programs";
  ASSERT_GT(port, 0) << daemon.err();
  EXPECT_FALSE(is_readable(daemon.pid()));
  EXPECT_EQ(core_limits_of(std::to_string(daemon.pid())).at(0), "0");
}

}  // namespace
}  // namespace ddp::test::token
