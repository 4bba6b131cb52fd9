#include "launcher/node/log_events.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

namespace ddp::launcher {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// "name key=value"
std::vector<std::string> lines_of(const NodeCore::Event& event) {
  std::vector<std::string> out;
  for (const auto& line : log_events_of(event)) out.push_back(std::string(line.name) + line.fields.text());
  return out;
}

TEST(NodeEvents, OfEveryStepHaveNoLine) {
  EXPECT_THAT(lines_of(NodeCore::WorkerSaid{0, worker_link::LinkProgress{}}), IsEmpty());
  EXPECT_THAT(lines_of(NodeCore::WorkersChanged{}), IsEmpty());
  EXPECT_THAT(lines_of(NodeCore::WorkersChanged{StopAtStep{}}), IsEmpty()) << "it comes from within";
}

TEST(NodeEvents, OfOneInstantAreLinesOfTheirOwn) {
  EXPECT_THAT(lines_of(NodeCore::WorkersChanged{WorkerStopping{0},
                                                WorkerEnded{1, {Ending::Kind::killed, SIGKILL, false}}, TreeEmpty{}}),
              ElementsAre("worker_stopping local_rank=0", "worker_ended local_rank=1 how=\"was killed by SIGKILL\"",
                          "tree_empty"));
}

TEST(NodeEvents, OfMembershipAreItsMessages) {
  rendezvous::StartRound start;
  start.world_size = 16;
  start.why = "rank 3 was killed";
  EXPECT_THAT(lines_of(NodeCore::MembershipSaid{start, ""}),
              ElementsAre(AllOf(StartsWith("start_round "), HasSubstr(" world_size=16 "),
                                HasSubstr(" why=\"rank 3 was killed\""))));
}

TEST(NodeActions, HaveLines) {
  const auto spawn = log_event_of(NodeCore::Action(NodeCore::Spawn{{0, 1}}));
  ASSERT_TRUE(spawn);
  EXPECT_EQ(spawn->fields.text(), " local_ranks=0,1");
  const auto finish = log_event_of(NodeCore::Action(NodeCore::Finish{rendezvous::outcome::Told{3}}));
  ASSERT_TRUE(finish);
  EXPECT_EQ(finish->fields.text(), " exit_code=3");
  EXPECT_FALSE(log_event_of(NodeCore::Action(NodeCore::Print{"said"}))) << "the agent logs what it prints";
}

}  // namespace
}  // namespace ddp::launcher
