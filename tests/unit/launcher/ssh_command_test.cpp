#include "launcher/remote/ssh_command.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/command_line/quoted_word.hpp"
#include "launcher/command_line/usage_error.hpp"

namespace ddp::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SshCommand, UsersArgumentsComeBeforeOurOwn) {
  const auto command = ssh_command({"user", "fe80::1", {}}, {"-o", "ConnectTimeout=1"}, "/opt/d p/ddprun");
  const auto at = [&command](const std::string& word) {
    return std::find(command.begin(), command.end(), word) - command.begin();
  };
  EXPECT_EQ(command.front(), "ssh");
  EXPECT_LT(at("ConnectTimeout=1"), at("ConnectTimeout=10"));
  EXPECT_EQ(command[command.size() - 2], "user@fe80::1");
  EXPECT_EQ(command[command.size() - 3], "--") << "a host is never taken for an option";
  EXPECT_THAT(command.back(), HasSubstr("'/opt/d p/ddprun'"));
}

TEST(SshCommand, ArgumentsAreWordsAsInAShell) {
  EXPECT_THAT(words_of("-p 2222  -i 'my key' -o \"A=b c\" x\\ y ''", "--ssh-args"),
              ElementsAre("-p", "2222", "-i", "my key", "-o", "A=b c", "x y", ""));
  EXPECT_THROW(words_of("-i 'key", "--ssh-args"), UsageError);
}

TEST(SshCommand, WordsAreQuotedForAShellWhereNeeded) {
  EXPECT_EQ(quoted_word("/usr/bin/ddprun"), "/usr/bin/ddprun");
  EXPECT_EQ(quoted_word(""), "''");
  EXPECT_EQ(quoted_word("it's $HOME"), "'it'\\''s $HOME'");
}

TEST(SshCommand, AddressIsThatOfSshsConfiguration) {
  EXPECT_EQ(address_in_configuration("user me\nhostname 10.0.0.7\nport 22\n"), "10.0.0.7");
  EXPECT_EQ(address_in_configuration("user me\n"), "");
}

TEST(SshCommand, NamesOfThisMachineNeedNoSsh) {
  for (const char* name : {"localhost", "127.0.0.1", "::1", "gpu17.example.org", "gpu17"})
    EXPECT_TRUE(is_this_machine({"", name, {}}, "gpu17.example.org")) << name;
  for (const char* name : {"gpu1", "127.0.0.2", "gpu17.example", "example.org"})
    EXPECT_FALSE(is_this_machine({"", name, {}}, "gpu17.example.org")) << name;
  EXPECT_FALSE(is_this_machine({"user", "localhost", {}}, "gpu17"));
}

}  // namespace
}  // namespace ddp::launcher
