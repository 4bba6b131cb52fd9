// What other processes of the same user can find of the token in ddprun, its guardian, its workers and ddp-rendezvous.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "tests/security/nodes_with_tokens.hpp"
#include "tests/text.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kToken = "7d3f0a5c_of_the_nodes";

// A daemon and a job of two nodes whose workers run `script`, up to "up".
class TokenInMemory : public ::testing::Test {
 protected:
  void start(const std::string& script) {
    ASSERT_GT(daemon.port, 0) << daemon.program.err();
    for (auto* node : {&one, &two}) {
      node->emplace(node_at(daemon.port, script + "; echo up; " + kStay), with_token(kToken));
    }
    for (auto* node : {&one, &two}) ASSERT_TRUE((*node)->prints("up\n")) << (*node)->err();
  }

  Daemon daemon{with_token(kToken, "ddp-rendezvous")};
  std::optional<Job> one, two;
};

TEST_F(TokenInMemory, NoEnvironmentHasTheToken) {
  start("true");
  if (::geteuid() != 0) GTEST_SKIP() << "only root can read the environment of a process that hides its memory";
  EXPECT_GE(one->processes().size(), 3u) << "ddprun, its guardian, its worker";
  for (const auto* job : {&daemon.program, &*one, &*two})
    for (const pid_t pid : job->processes())
      EXPECT_THAT(contents_of("/proc/" + std::to_string(pid) + "/environ"), Not(HasSubstr(kToken)));
}

}  // namespace
}  // namespace ddp::test
