#include "tests/fake_gpu/faults.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/fake_gpu/visible_devices.hpp"

namespace ddp::fake_gpu {
namespace {

using Kind = Fault::Kind;

TEST(Faults, AreMeantForACallByItsNumber) {
  const auto planned = parse_faults("cudaMalloc:2:return:2;;ncclSend:1:hang;cudaMalloc:4+:delay:30");
  EXPECT_EQ(fault_for(planned, "cudaMalloc", 1).kind, Kind::none);
  EXPECT_EQ(fault_for(planned, "cudaMalloc", 2).kind, Kind::return_code);
  EXPECT_EQ(fault_for(planned, "cudaMalloc", 2).number, 2);
  EXPECT_EQ(fault_for(planned, "cudaMalloc", 3).kind, Kind::none);
  EXPECT_EQ(fault_for(planned, "cudaMalloc", 9).kind, Kind::delay);
  EXPECT_EQ(fault_for(planned, "ncclSend", 1).kind, Kind::hang);
  EXPECT_EQ(fault_for(planned, "ncclRecv", 1).kind, Kind::none);
  EXPECT_TRUE(parse_faults("").empty());
}

TEST(Faults, AllKindsHaveAName) {
  const struct {
    const char* text;
    Kind kind;
  } cases[] = {{"f:1:return:1", Kind::return_code}, {"f:1:sticky:700", Kind::sticky},
               {"f:1:async:6", Kind::async},        {"f:1:hang", Kind::hang},
               {"f:1:delay:5", Kind::delay},        {"f:1:die", Kind::die},
               {"f:1:die_inside", Kind::die_inside}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_EQ(fault_for(parse_faults(c.text), "f", 1).kind, c.kind);
  }
}

TEST(Faults, AMistakeIsRefusedByItsText) {
  for (const char* text :
       {"cudaMalloc", "cudaMalloc:1", "f:x:hang", "f:1:explode", "f:1:hang:3", "f:1:delay", "f:1:delay:x"}) {
    SCOPED_TRACE(text);
    EXPECT_THROW(parse_faults(text), std::invalid_argument);
  }
}

TEST(VisibleDevices, AreThoseThatTheVariableNames) {
  const struct {
    const char* variable;
    std::vector<int> want;
  } cases[] = {{nullptr, {0, 1, 2, 3}},
               {"", {}},
               {"2", {2}},
               {"3,0", {3, 0}},
               {"1,7,2", {1}},
               {"-1", {}},
               {"1,1", {}},
               {"x", {}},
               {"0,", {0}},
               {"GPU-46414b45-0000-0000-0000-000000000003,1", {3, 1}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.variable == nullptr ? "unset" : c.variable);
    EXPECT_EQ(visible_devices(c.variable, 4), c.want);
  }
  EXPECT_EQ(uuid_text(18), "GPU-46414b45-0000-0000-0000-000000000012");
}

}  // namespace
}  // namespace ddp::fake_gpu
