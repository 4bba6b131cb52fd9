#include "launcher/gpu_faults/gpu_faults.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

TEST(GpuFaults, AreNamedWithTheirMeaningAndTheirTimeBeforeTheFailure) {
  EXPECT_EQ(describe_faults({{3, 79, 99'600ms}}, 100s, 0s),
            "GPU 3 reported XID 79 (the GPU has fallen off the bus) 400 ms before");
  EXPECT_EQ(describe_faults({{0, 31, 100s}}, 100s, 0s),
            "GPU 0 reported XID 31 (a memory page fault, mostly of the program) at the same time");
  EXPECT_EQ(describe_faults({{0, 45, 102s}}, 100s, 0s),
            "GPU 0 reported XID 45 (the program was ended, mostly after an earlier fault) 2 s after");
  EXPECT_EQ(describe_faults({{1, 999, 97s}}, 100s, 0s), "GPU 1 reported XID 999 3 s before");
}

TEST(GpuFaults, OfLongAgoOrAnEarlierRoundAreOfAnotherFailure) {
  EXPECT_EQ(describe_faults({{3, 79, 98s}}, 100s, 99s), "");
  EXPECT_EQ(describe_faults({{3, 79, 39s}}, 100s, 0s), "");
  EXPECT_EQ(describe_faults({}, 100s, 0s), "");
}

TEST(GpuFaults, OfOneKindAreNamedOnce_AndFourKindsAtMost) {
  const auto text =
      describe_faults({{0, 31, 99s}, {0, 31, 99s}, {1, 31, 99s}, {0, 43, 99s}, {0, 45, 99s}, {2, 9, 99s}}, 100s, 0s);
  std::string all;
  for (const auto* fault : {"GPU 0 reported XID 31 (a memory page fault, mostly of the program)",
                            "GPU 1 reported XID 31 (a memory page fault, mostly of the program)",
                            "GPU 0 reported XID 43 (the program was stopped after a fault of its own)",
                            "GPU 0 reported XID 45 (the program was ended, mostly after an earlier fault)"})
    all += (all.empty() ? "" : "; ") + std::string(fault) + " 1 s before";
  EXPECT_EQ(text, all);
}

}  // namespace
}  // namespace ddp::launcher
