#include "base/man_page.hpp"

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

TEST(ManPageOfAHelp, EachOptionIsAParagraphWithItsHelp) {
  EXPECT_EQ(man_page("ddp-x", "does x", "1.2",
                     "Does x.\n"
                     "Usage: ddp-x [OPTIONS]\n"
                     "\n"
                     "Options:\n"
                     "  -h,--help                   Print this help\n"
                     "  --port PORT:INT in [0 - 65535]=29400\n"
                     "                              Port to listen on\n"),
            ".TH DDP\\-X 1 \"\" \"ddprun 1.2\"\n"
            ".SH NAME\n"
            "ddp\\-x \\- does x\n"
            ".SH DESCRIPTION\n"
            "Does x.\n"
            ".PP\n"
            "Usage: ddp\\-x [OPTIONS]\n"
            ".PP\n"
            ".SS Options:\n"
            ".TP\n"
            "\\fB\\-h,\\-\\-help\\fR\n"
            "Print this help\n"
            ".TP\n"
            "\\fB\\-\\-port PORT:INT in [0 \\- 65535]=29400\\fR\n"
            "Port to listen on\n"
            ".SH SEE ALSO\n"
            ".BR ddprun (1)\n");
}

TEST(ForTroff, NoLineOfTextIsTakenForARequest) {
  EXPECT_EQ(for_troff(".config\n'quoted' and .so\nC:\\x"), "\\&.config\n\\&'quoted' and .so\nC:\\ex");
}

}  // namespace
}  // namespace ddp::base
