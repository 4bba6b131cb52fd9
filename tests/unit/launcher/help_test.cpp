#include "launcher/command_line/help.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "launcher/command_line/option_table.hpp"

namespace ddp::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Help, HasEveryOptionUnderItsGroup) {
  const auto text = help_text();
  std::size_t at = 0;
  for (const auto& option : option_table()) {
    if (option.group == OptionGroup::hidden) continue;
    const auto heading = text.find("\n" + std::string(title(option.group)) + "\n");
    ASSERT_NE(heading, std::string::npos) << title(option.group);
    EXPECT_EQ(text.rfind("\n" + std::string(title(option.group)) + "\n"), heading) << "a group in two pieces";
    const auto spelling = text.find(" --" + std::string(option.name) + (option.value_name.empty() ? "" : " "), at);
    ASSERT_NE(spelling, std::string::npos) << option.name;
    EXPECT_GT(spelling, heading);
    at = spelling;
  }
  EXPECT_THAT(text, Not(HasSubstr("--print-man-page")));
}

TEST(Help, FitsATerminalOfAHundredColumns) {
  std::istringstream lines(help_text());
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
    EXPECT_TRUE(line.empty() || line.back() != ' ') << line;
  }
}

TEST(ManPage, HasEveryOptionAndTheVersion) {
  const auto page = man_page("1.2-3");
  for (const auto& option : option_table()) {
    std::string name;
    for (const char c : option.name) name += c == '-' ? "\\-" : std::string(1, c);
    const auto row = HasSubstr("\\fB\\-\\-" + name + "\\fR");
    if (option.group == OptionGroup::hidden)
      EXPECT_THAT(page, Not(row));
    else
      EXPECT_THAT(page, row);
  }
  EXPECT_THAT(page, HasSubstr("1.2\\-3"));
  EXPECT_THAT(page, HasSubstr(".SS failures and signals\n"));
  EXPECT_THAT(page, HasSubstr(".SH SEE ALSO\n.BR ddp\\-rendezvous (1),\n.BR ddp\\-bench (1)\n"));
}

}  // namespace
}  // namespace ddp::launcher
