#include "rendezvous/membership/own_absence.hpp"

#include <gtest/gtest.h>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

TEST(OwnAbsence, PauseOfMoreThanHalfAHeartbeatTimeoutBringsDoubt) {
  TimePoint now{1h};
  OwnAbsence absence(4s, 10s, now);
  EXPECT_EQ(absence.next_look(), now + 1s);
  absence.runs(true, now += 2s);
  EXPECT_FALSE(absence.is_in_doubt(now));
  absence.runs(true, now += 2001ms);
  EXPECT_TRUE(absence.is_in_doubt(now));
  absence.runs(true, now += 1s);
  EXPECT_TRUE(absence.is_in_doubt(now + 8999ms)) << "the doubt lasts ten seconds";
  EXPECT_FALSE(absence.is_in_doubt(now + 9s));
}

TEST(OwnAbsence, WhatCameMeanwhileIsHeardForAMoment) {
  TimePoint now{1h};
  OwnAbsence absence(4s, 10s, now);
  absence.runs(true, now += 2s);
  EXPECT_EQ(absence.hears_until(now), std::nullopt);
  absence.runs(true, now += 3s);
  EXPECT_EQ(absence.hears_until(now), now + OwnAbsence::kHears);
  EXPECT_EQ(absence.hears_until(now + OwnAbsence::kHears), std::nullopt);
}

TEST(OwnAbsence, PauseProvesNothingIfNobodyHadToLook) {
  TimePoint now{1h};
  OwnAbsence absence(4s, 10s, now);
  absence.runs(false, now += 1h);
  EXPECT_FALSE(absence.is_in_doubt(now));
  absence.runs(true, now += 1s);
  EXPECT_FALSE(absence.is_in_doubt(now));
}

}  // namespace
}  // namespace ddp::rendezvous
