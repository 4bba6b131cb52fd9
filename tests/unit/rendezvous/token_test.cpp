#include "rendezvous/security/token.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

namespace ddp::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Token, IsPrintableAndOfBoundedLength) {
  EXPECT_EQ(Token(std::string(512, 'a')).text().size(), 512u);
  EXPECT_NO_THROW(Token("!~"));
  for (const std::string& wrong : {std::string(), std::string(513, 'a'), std::string("a b"), std::string("a\n"),
                                   std::string("a\0b", 3), std::string("\x7f"), std::string("\xc3\xa4")})
    EXPECT_THROW((void)Token(wrong), InvalidArgument) << wrong;
}

TEST(Token, IsItselfOnly) {
  const Token token("secret");
  EXPECT_TRUE(token.is("secret"));
  for (const auto* other : {"", "s", "secre", "Secret", "secres", "secretsecret"})
    EXPECT_FALSE(token.is(other)) << other;
}

class FindToken : public ::testing::Test {
 protected:
  FindToken() {
    char name[] = "/tmp/ddprun_token_XXXXXX";
    folder = ::mkdtemp(name);
    environment["HOME"] = folder;
  }
  ~FindToken() override { std::filesystem::remove_all(folder); }

  std::string write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    const auto path = folder + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::optional<Token> find(const std::optional<std::string>& file = std::nullopt) const {
    return find_token(file, [this](const std::string& name) {
      const auto found = environment.find(name);
      return found == environment.end() ? std::nullopt : std::optional(found->second);
    });
  }

  void expect_error(const std::optional<std::string>& file, const char* says, const std::string& where,
                    const char* remedy) {
    try {
      find(file);
      ADD_FAILURE() << "accepted";
    } catch (const TokenError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(says), Not(HasSubstr("hush"))));
      EXPECT_EQ(error.where(), where);
      EXPECT_THAT(error.try_this(), AllOf(HasSubstr(remedy), Not(HasSubstr("hush"))));
    }
  }

  std::string folder;
  std::map<std::string, std::string> environment;
};

TEST_F(FindToken, TakesTheFileThenTheVariableThenTheUsersOwn) {
  EXPECT_FALSE(find());
  write(".config/ddprun/token", "at_home\n");
  EXPECT_EQ(find()->text(), "at_home");
  environment["DDPRUN_TOKEN"] = "variable";
  EXPECT_EQ(find()->text(), "variable");
  EXPECT_EQ(find(write("file", "named"))->text(), "named");
  environment.erase("HOME");
  environment.erase("DDPRUN_TOKEN");
  EXPECT_FALSE(find());
}

TEST_F(FindToken, WantsAFileThatOthersCannotRead) {
  for (const mode_t mode : {0644, 0640, 0660, 0604, 0620}) {
    const auto path = write("file", "hush", mode);
    expect_error(path, "has mode 0", path, "`chmod 600 ");
  }
  const auto own = write(".config/ddprun/token", "hush", 0644);
  expect_error({}, "has mode 0644", own, "`chmod 600 ");
  EXPECT_EQ(find(write("readonly", "named", 0400))->text(), "named");
}

TEST_F(FindToken, SaysWhatIsWrongWithIt) {
  const auto empty = write("empty", "\n"), spaced = write("spaced", "hush hush"), two = write("two", "hush\nhush\n"),
             long_one = write("long", std::string(100'000, 'x'));
  expect_error(empty, "is empty", empty, "openssl rand -hex 32 > ");
  expect_error(spaced, "a space, or a character that does not print", spaced, "openssl rand");
  expect_error(two, "does not print", two, "openssl rand");
  expect_error(long_one, "longer than 512", long_one, "openssl rand");
  expect_error(folder, "is no file", folder, "openssl rand");
  expect_error(folder + "/none", "No such file", folder + "/none", "openssl rand");
  environment["DDPRUN_TOKEN"] = "";
  expect_error({}, "is empty", "environment variable DDPRUN_TOKEN", "openssl rand");
  environment["DDPRUN_TOKEN"] = "hush hush";
  expect_error({}, "a space", "environment variable DDPRUN_TOKEN", "openssl rand");
}

TEST_F(FindToken, ThatOfScrapersLetsNoNodeJoin) {
  const auto path = write("scrape", "hush");
  EXPECT_FALSE(find_scrape_token({}, Token("secret")));
  EXPECT_EQ(find_scrape_token(path, Token("secret"))->text(), "hush");
  EXPECT_EQ(find_scrape_token(path, {})->text(), "hush");
  EXPECT_THROW(find_scrape_token(path, Token("hush")), TokenError);
  EXPECT_THROW(find_scrape_token(folder + "/none", {}), TokenError);
}

}  // namespace
}  // namespace ddp::security
