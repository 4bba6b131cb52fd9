#include "tests/guide/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddp::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GuidePage, BlocksAreFilesCommandsAndOutput) {
  const auto blocks = blocks_of(
      "# Title\n\nSave this as `train.py`:\n\n```python\nprint(1)\n```\n\nRun\nit:\n\n```sh\npython3 train.py\n```\n\n"
      "```text\n1\n```\n\n```cpp\nnot_for_the_tests();\n```\n");
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0].kind, PageBlock::Kind::file);
  EXPECT_EQ(blocks[0].name, "train.py");
  EXPECT_EQ(blocks[0].text, "print(1)\n");
  EXPECT_EQ(blocks[0].line, 6);
  EXPECT_EQ(blocks[1].kind, PageBlock::Kind::commands);
  EXPECT_EQ(blocks[1].text, "python3 train.py\n");
  EXPECT_EQ(blocks[1].not_run, "");
  EXPECT_EQ(blocks[2].kind, PageBlock::Kind::output);
}

TEST(GuidePage, CommandsNameTheirHostOrWhyTheyAreNotRun) {
  const auto blocks = blocks_of(
      "```sh\n# on node1\nddprun x\n```\n\nDelete it (not run by the tests: it needs a\ncluster):\n\n```sh\nrm\n```\n");
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_EQ(blocks[0].name, "node1");
  EXPECT_EQ(blocks[1].not_run, "it needs a cluster");
}

TEST(GuidePage, InlineCommandsHaveOptionsAndAProgram) {
  EXPECT_THAT(
      inline_commands_of("| `mpirun -np 4 x` | on node0: `ddprun --nproc-per-node=4 train.py` |\n`ddprun --help`"),
      ElementsAre("ddprun --nproc-per-node=4 train.py"));
}

TEST(GuidePage, OutputMayDifferInNumbersNamesAndOrderOnly) {
  const Names names = {{"gpu17", "node0"}, {"/tmp/x", "/home/you"}};
  const std::string printed =
      "[1] rank 1, pid 77\nlost after 1.25 s on gpu17, /tmp/x/2026_f02fbece177e4a70\nstep   9/10\nready (stop 1 ms)\n";
  EXPECT_THAT(missing_lines("step 10/10\n...\nlost after 12 ms on node0, /home/you/1_0123456789abcdef\nrank 0, pid 4\n"
                            "ready (stop 3 ms, start 2 ms)\n",
                            printed, names),
              IsEmpty());
  EXPECT_THAT(missing_lines("rank 1, pid 77\nrank one\nlost after 1 s on node1\n", printed, names),
              ElementsAre("rank one", "lost after 1 s on node1"));
}

}  // namespace
}  // namespace ddp::test
