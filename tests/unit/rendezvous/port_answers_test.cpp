#include "rendezvous/link/port_answers.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

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

TEST(PortAnswers, AdviceIsAboutAPortThatRefuses_UntilItAnswersOtherwiseOrTheHostIsUnknown) {
  PortAnswers answers(kEndpoint);
  answers.note(100, std::nullopt);
  EXPECT_EQ(answers.advice(), std::nullopt);
  answers.note(101, "the same token");
  EXPECT_EQ(answers.advice(),
            "the same token; if another job has port 101, look at the output of ddprun on node0, which opens the first "
            "free one of these ports");
  answers.note(101, std::nullopt);
  EXPECT_EQ(answers.advice(), std::nullopt);
  answers.note(101, "the same token");
  answers.forget();
  EXPECT_EQ(answers.advice(), std::nullopt);
}

}  // namespace
}  // namespace ddp::rendezvous
