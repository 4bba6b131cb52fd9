#include "rendezvous/daemon/job_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

Hello a_hello(std::optional<RoundId> round = {}, const std::string& node_key = "key") {
  Hello hello;
  hello.run_id = "bert";
  hello.node_key = node_key;
  hello.host_name = "h";
  if (round) hello.held = Held{*round, 0, 1, 0};
  hello.was_welcomed = round.has_value();
  return hello;
}

// The membership of one job, whose nodes do what they are told.
class FakeServer {
 public:
  FakeServer(const Hello& hello, const JobBefore& before, TimePoint now)
      : membership_(with_daemon(options_of(hello, {1000, 7, 0}, before)), now) {}

  void joins(const Hello& hello, TimePoint now) { step(Joined{NodeId{++nodes_}, hello, "10.0.0.1", false}, now); }
  void hears(const ToMembership& message, TimePoint now) { step(Heard{NodeId{nodes_}, message}, now); }
  void ticks(TimePoint now) { perform(membership_.tick(now), now); }
  void loses_its_node(TimePoint now) {
    step(Left{NodeId{nodes_}, "silent", false}, now);
    is_anyone_connected = false;
  }
  void connection_breaks(TimePoint now) {
    step(Disconnected{NodeId{nodes_}, "closed"}, now);
    is_anyone_connected = false;
  }
  void finishes(int exit_code, TimePoint now) {
    RoundEnded ended{round.number, {}, 0, false, 0, {}};
    if (exit_code != 0) {
      auto& failure = ended.failures.emplace_back();
      failure.ending = {Ending::Kind::exited, exit_code, false};
      failure.after = std::chrono::minutes(1);  // no pause follows
    }
    hears(ended, now);
  }

  const Membership& membership() const { return membership_; }
  bool is_over() const { return !is_anyone_connected && (membership_.is_finished() || membership_.is_abandoned()); }
  bool take_farewell(const NodeEnded&) { return true; }

  RoundId round;
  bool is_anyone_connected = true;

 private:
  static MembershipOptions with_daemon(MembershipOptions options) {
    options.greater_part_only = false;
    options.nonce = [] { return "nonce"; };
    return options;
  }
  void step(const MembershipEvent& event, TimePoint now) { perform(membership_.step(event, now), now); }
  void perform(const Membership::Actions& actions, TimePoint now) {
    for (const auto& action : actions) {
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      if (const auto* start = std::get_if<StartRound>(&send->message)) round = start->round;
      if (const auto* open = std::get_if<OpenStore>(&send->message)) hears(StoreOpened{open->round.number, 4000}, now);
    }
  }

  Membership membership_;
  std::uint64_t nodes_ = 0;
};

class JobTableTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kJobs = 16;

  JobTable<FakeServer>::Handlers handlers() {
    return {[this](const Hello& hello, const JobBefore& before) {
      ++begun;
      return std::make_unique<FakeServer>(hello, before, now);
    }};
  }
  // Where a node with this hello is sent: it joins there. Null: it was told how its job ended, or was refused.
  FakeServer* comes(const Hello& hello, const std::string& source = "10.0.0.1") {
    const auto direction = table.direct(hello, *base::parse_address(source), now);
    if (const auto* verdict = std::get_if<FinishJob>(&direction)) return told = *verdict, nullptr;
    if (const auto* why = std::get_if<Refused>(&direction)) return refused = *why, nullptr;
    if (std::holds_alternative<std::monostate>(direction)) return nullptr;
    auto& job = std::get<std::reference_wrapper<FakeServer>>(direction).get();
    job.joins(hello, now);
    job.is_anyone_connected = true;
    return &job;
  }

  TimePoint now{1h};
  int begun = 0;
  FinishJob told;
  Refused refused;
  JobTable<FakeServer> table{handlers(), kJobs};
};

TEST_F(JobTableTest, ACutOffNodeOfAJobThatIsOverBeginsItNotAgain) {
  auto* job = comes(a_hello({}));
  const auto round = job->round;
  ASSERT_NE(round, RoundId{});
  job->finishes(5, now);
  for (const bool is_forgotten : {false, true}) {
    SCOPED_TRACE(is_forgotten);
    if (is_forgotten) job->is_anyone_connected = false;
    EXPECT_EQ(comes(a_hello(round, "cut off")), nullptr);
    EXPECT_EQ(told.exit_code, 5);
    EXPECT_EQ(begun, 1);
  }
}

TEST_F(JobTableTest, ANodeWhoseJobIsServedByAnAgentBeginsNoneHere) {
  auto hello = a_hello({});
  hello.is_served_by_agent = true;
  EXPECT_EQ(comes(hello), nullptr);
  EXPECT_EQ(begun, 0);
  hello.is_served_by_agent = false;
  EXPECT_NE(comes(hello), nullptr);
  EXPECT_EQ(begun, 1);
}

TEST_F(JobTableTest, TheNextJobOfANameBeginsAtOnceWithNewerRounds) {
  auto* job = comes(a_hello({}));
  const auto round = job->round;
  job->finishes(5, now);
  auto* next = comes(a_hello({}, "of the next"));  // while the node of the first is connected still
  EXPECT_NE(next, job);
  EXPECT_EQ(begun, 2);
  EXPECT_LT(round, next->round);
  EXPECT_EQ(comes(a_hello(round, "cut off")), nullptr) << "and is no spare of the next job";
  EXPECT_EQ(told.exit_code, 5);
  EXPECT_EQ(table.find("bert"), next);

  const auto round_of_next = next->round;
  next->finishes(6, now);
  job->is_anyone_connected = next->is_anyone_connected = false;
  auto* third = comes(a_hello({}, "of the third"));
  EXPECT_EQ(begun, 3);
  EXPECT_LT(round_of_next, third->round);
  EXPECT_EQ(comes(a_hello(round, "cut off")), nullptr);
  EXPECT_EQ(told.exit_code, 6);
}

TEST_F(JobTableTest, ANodeWithARoundOfAnEndingJobBelongsToThat) {
  auto* job = comes(a_hello({}));
  const auto round = job->round;
  job->hears(StopAsked{15, false}, now);
  ASSERT_TRUE(job->membership().is_ending());
  ASSERT_FALSE(job->membership().is_finished());
  EXPECT_EQ(comes(a_hello(round, "cut off")), job);
  auto* next = comes(a_hello({}, "of the next"));
  EXPECT_NE(next, job);
  EXPECT_LT(round, next->round);
  EXPECT_EQ(comes(a_hello(round, "cut off too")), job);
}

TEST_F(JobTableTest, ARoundThatWasGivenUpBeginsNotAgainAfterAllHaveLeft) {
  auto hello = a_hello();
  hello.restarts_max = 2;
  auto* job = comes(hello);
  const auto first = job->round;
  job->finishes(1, now);
  const auto last = job->round;
  ASSERT_LT(first, last) << "a second round";
  job->loses_its_node(now);
  ASSERT_TRUE(job->is_over());
  auto* next = comes(a_hello(first, "left behind"));
  EXPECT_EQ(begun, 2);
  EXPECT_LT(last, next->round == RoundId{} ? next->membership().term() : next->round);
  EXPECT_NE(next->membership().last_round(), first);

  next->loses_its_node(now);
  next = comes(a_hello(last, "of the last round"));
  now += 1min;
  next->ticks(now);
  EXPECT_EQ(next->membership().last_round(), last) << "which goes on";
}

Hello hello_of_job(int number, int nodes = 2) {
  auto hello = a_hello({}, "key of " + std::to_string(number));
  hello.run_id = std::to_string(number);
  hello.nodes_min = hello.nodes_max = nodes;
  return hello;
}

TEST_F(JobTableTest, JobWithoutARoundIsForgottenWhenNobodyIsConnected) {
  for (int number = 0; number < 1'000; ++number) {
    auto* job = comes(hello_of_job(number));
    ASSERT_NE(job, nullptr) << refused.what;
    job->connection_breaks(now);
  }
}

TEST_F(JobTableTest, NodeThatComesAgainBeforeTheFirstRoundFindsItsJob) {
  auto* job = comes(hello_of_job(1));
  job->connection_breaks(now);
  EXPECT_EQ(comes(hello_of_job(1)), job);
  EXPECT_EQ(begun, 1);
}

TEST_F(JobTableTest, JobWithARoundIsKeptWhileItsNodesMayComeAgain) {
  auto* job = comes(hello_of_job(1, 1));
  ASSERT_NE(job->round, RoundId{});
  job->connection_breaks(now);
  ASSERT_NE(comes(hello_of_job(2)), nullptr);
  EXPECT_EQ(comes(hello_of_job(1, 1)), job);
  EXPECT_EQ(begun, 2);
}

TEST_F(JobTableTest, OneAddressBeginsAQuarterOfTheJobsAtMost) {
  std::vector<FakeServer*> jobs;
  for (int number = 0; number < 4; ++number) jobs.push_back(comes(hello_of_job(number), "10.0.0.2"));
  EXPECT_EQ(comes(hello_of_job(4), "10.0.0.2"), nullptr);
  EXPECT_EQ(refused.what,
            "the endpoint has 4 jobs that nodes of this address have begun, as many as it takes from one address");
  auto other = hello_of_job(3);
  other.node_key = "another";
  EXPECT_EQ(comes(other, "10.0.0.2"), jobs[3]) << "nodes of jobs that have begun are not counted";
  EXPECT_NE(comes(hello_of_job(5), "10.0.0.3"), nullptr);
  jobs[0]->loses_its_node(now);
  EXPECT_NE(comes(hello_of_job(4), "10.0.0.2"), nullptr);
}

TEST_F(JobTableTest, AddressesOfOneIpv6NetworkAreOne) {
  for (int number = 0; number < 4; ++number)
    ASSERT_NE(comes(hello_of_job(number), "2001:db8:0:1::" + std::to_string(number + 1)), nullptr);
  EXPECT_EQ(comes(hello_of_job(4), "2001:db8:0:1::9"), nullptr);
  EXPECT_NE(comes(hello_of_job(4), "2001:db8:0:2::9"), nullptr);
}

TEST_F(JobTableTest, ThereIsALimitOnAllJobs) {
  for (int number = 0; number < static_cast<int>(kJobs); ++number)
    ASSERT_NE(comes(hello_of_job(number), "10.0.1." + std::to_string(number)), nullptr);
  EXPECT_EQ(comes(hello_of_job(99), "10.0.2.1"), nullptr);
  EXPECT_EQ(refused.what, "the endpoint has 16 jobs already, as many as it takes");
  EXPECT_FALSE(refused.is_round_unknown);
  EXPECT_FALSE(refused.is_other_job);
  auto with_round = a_hello(RoundId{1000, 7, 3});
  EXPECT_EQ(comes(with_round, "10.0.2.1"), nullptr);
  EXPECT_TRUE(refused.is_round_unknown) << "so its workers go on, and it tries again";
  EXPECT_TRUE(refused.is_other_job) << "so it keeps its round";
}

}  // namespace
}  // namespace ddp::rendezvous
