#include "launcher/guardian/process_tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

std::vector<pid_t> pids_of(const std::vector<Process>& processes) {
  std::vector<pid_t> out;
  for (const auto& process : processes) out.push_back(process.pid);
  return out;
}

TEST(ProcessTree, FindsDescendantsInAnyOrderOfTheList) {
  // 1 -> 10 -> {20 -> 30, 21}; 1 -> 11 -> 22
  const std::vector<Process> all{{30, 20}, {21, 10}, {20, 10}, {22, 11}, {10, 1}, {11, 1}, {1, 0}};
  EXPECT_THAT(pids_of(descendants_of(10, all)), ::testing::UnorderedElementsAre(20, 21, 30));
  EXPECT_THAT(pids_of(descendants_of(11, all)), ::testing::ElementsAre(22));
  EXPECT_THAT(pids_of(descendants_of(30, all)), ::testing::IsEmpty());
  EXPECT_EQ(descendants_of(1, all).size(), 6u);
}

}  // namespace
}  // namespace ddp::launcher
