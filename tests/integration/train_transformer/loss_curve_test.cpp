#include "examples/train_transformer/loss_curve.hpp"
#include "tests/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace {

using ddp::test::occurrences;
using testing::HasSubstr;
using testing::StartsWith;
using transformer::loss_curve_svg;

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

}  // namespace
