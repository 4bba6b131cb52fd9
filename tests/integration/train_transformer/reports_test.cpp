#include "examples/train_transformer/loss_curve.hpp"
#include "examples/train_transformer/scaling.hpp"
#include "tests/text.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace {

using ddp::test::occurrences;
using ddp::test::ScratchDirectory;
using testing::HasSubstr;
using testing::StartsWith;
using transformer::loss_curve_svg;
using transformer::scaling_efficiency;

TEST(LossCurve, HasRoundAxesLabelsAndALineThroughAllPoints) {
  const std::string svg = loss_curve_svg({{10, 4.1}, {20, 3.3}, {30, 2.75}}, "a < b & c");
  EXPECT_THAT(svg, StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr(">a &lt; b &amp; c</text>"));
  EXPECT_THAT(svg, HasSubstr(">step</text>"));
  EXPECT_THAT(svg, HasSubstr(">loss (nats per character)</text>"));
  for (const char* mark : {">0</text>", ">5</text>", ">30</text>", ">2.6</text>", ">3.0</text>", ">4.2</text>"}) {
    EXPECT_THAT(svg, HasSubstr(mark));
  }
  EXPECT_EQ(occurrences(svg, "<polyline "), 1);
  EXPECT_THAT(svg, HasSubstr(" points=\"278.3,"));  // step 10 is a third of the way
}

TEST(LossCurve, OnePointIsEnough) { EXPECT_THAT(loss_curve_svg({{1, 2}}, "short"), HasSubstr("<polyline ")); }

TEST(LossCurve, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_THROW(transformer::write_loss_curve("/nowhere/loss.svg", {{1, 2}}, "title"), std::runtime_error);
}

TEST(ScalingEfficiency, ComparesWithTheRateOfOneRank) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "one.txt";
  EXPECT_THAT(scaling_efficiency({"small", 2, 150}, file), HasSubstr("run once with one rank to store it there"));
  EXPECT_THAT(scaling_efficiency({"small", 1, 100}, file), StartsWith("rate of one rank written to "));
  EXPECT_EQ(scaling_efficiency({"small", 2, 150}, file),
            "scaling efficiency: 75.0 % (150 samples/s with 2 ranks, 100 with one)");
  EXPECT_THAT(scaling_efficiency({"large", 2, 150}, file), testing::EndsWith(" is of small"));
  EXPECT_THAT(scaling_efficiency({"small", 2, 150}, {}), HasSubstr("--baseline names no file"));
  EXPECT_THROW(scaling_efficiency({"small", 1, 100}, "/nowhere/one.txt"), std::runtime_error);
}

TEST(ScalingEfficiency, AnotherFileIsNoRate) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "one.txt";
  for (const char* contents : {"", "small\n", "small\nfast\n", "small\n-1\n"}) {
    std::ofstream(file) << contents;
    EXPECT_THAT(scaling_efficiency({"small", 2, 150}, file), StartsWith("scaling efficiency: unknown")) << contents;
  }
}

}  // namespace
