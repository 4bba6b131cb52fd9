#include "rendezvous/link/port_answers.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

const PortAnswers::TimePoint kStart{};
const EndpointName kEndpoint{"node0", 100, 3};

TEST(PortAnswers, PortsWithOneReasonAreToldTogether) {
  PortAnswers answers(kEndpoint);
  EXPECT_EQ(answers.reasons_with(101, "refused"), "port 101: refused");
  EXPECT_EQ(answers.reasons_with(100, "refused"), "ports 100-101: refused");
  EXPECT_EQ(answers.reasons_with(102, "silent"), "ports 100-101: refused; port 102: silent");
  EXPECT_EQ(answers.reasons_with(100, "silent"), "port 100: silent; port 101: refused; port 102: silent");
  answers.forget_reasons();
  EXPECT_EQ(answers.reasons_with(102, "silent"), "port 102: silent");
}

TEST(PortAnswers, AreRefusalsOnlyIfOneRefusesForGoodAndNoneIsSilent) {
  PortAnswers answers(kEndpoint);
  answers.note(100, false, "", kStart);
  answers.note(101, true, "the same token", kStart + 1s);  // the refusal counts, however its connection ended
  EXPECT_EQ(answers.refused_since(), std::nullopt) << "port 102 has not been tried";
  answers.note(102, true, "", kStart + 2s);
  EXPECT_EQ(answers.refused_since(), std::nullopt) << "port 102 is silent";
  answers.note(102, false, "", kStart + 3s);
  EXPECT_EQ(answers.refused_since(), kStart + 3s);
  answers.note(100, false, "", kStart + 4s);
  EXPECT_EQ(answers.refused_since(), kStart + 3s);
  EXPECT_EQ(answers.advice(),
            "the same token; if another job has port 101, look at the output of ddprun on node0, which opens the first "
            "free one of these ports");
  answers.note(101, false, "", kStart + 5s);
  EXPECT_EQ(answers.refused_since(), std::nullopt) << "no port refuses for good";
  EXPECT_EQ(answers.advice(), "");
}

TEST(PortAnswers, AreForgottenWithTheHost) {
  PortAnswers answers({"node0", 100, 1});
  answers.note(100, false, "the same token", kStart);
  ASSERT_TRUE(answers.refused_since());
  answers.forget();
  EXPECT_FALSE(answers.refused_since());
  EXPECT_EQ(answers.advice(), "");
}

}  // namespace
}  // namespace ddp::rendezvous
