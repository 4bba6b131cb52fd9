#include "rendezvous/security/token.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

namespace ddp::security {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Token, IsPrintableAndOfBoundedLength) {
  EXPECT_EQ(Token(std::string(512, 'a')).text().size(), 512u);
  EXPECT_NO_THROW(Token("!~!~!~!~!~!~!~!~"));
  const std::string end(16, 'x');
  for (const std::string& wrong : {std::string(), std::string(513, 'a'), std::string(15, 'a'), "a b" + end, "a\n" + end,
                                   std::string("a\0b", 3) + end, "\x7f" + end, "\xc3\xa4" + end})
    EXPECT_THROW((void)Token(wrong), InvalidArgument) << wrong;
}

TEST(Token, IsItselfOnly) {
  const std::string text = "secret_of_sixteen";
  const Token token(text);
  EXPECT_TRUE(token.is(text));
  for (const std::string& other : {std::string(), std::string("s"), text.substr(1), text.substr(0, 16),
                                   "S" + text.substr(1), text.substr(0, 16) + "N", text + text})
    EXPECT_FALSE(token.is(other)) << other;
}

const std::string kHush = "hushhushhushhush";
constexpr uid_t kOtherUser = 54'321;

TEST(Tokens, AreOneOrTwoLines) {
  const std::string first = "first_of_two_tokens", second = "second_of_two_tokens";
  for (const auto& lines : {first, first + "\n"}) EXPECT_EQ(Tokens::of_lines(lines).all().size(), 1u);
  for (const auto& lines : {first + "\n" + second, first + "\n" + second + "\n"}) {
    const auto tokens = Tokens::of_lines(lines);
    ASSERT_EQ(tokens.all().size(), 2u);
    EXPECT_EQ(tokens.all().front().text(), first);
    EXPECT_TRUE(tokens.has(first) && tokens.has(second));
    EXPECT_FALSE(tokens.has(lines));
  }
  const std::string longest(512, 'x');
  EXPECT_TRUE(Tokens::of_lines(longest + "\n" + longest + "\n").has(longest));
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
    const auto parent = std::filesystem::path(path).parent_path();
    std::filesystem::create_directories(parent);
    ::chmod(parent.c_str(), 0700);
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  std::optional<Tokens> find(const std::optional<std::string>& file = std::nullopt) const {
    return find_tokens(file, [this](const std::string& name) {
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
  write(".config/ddprun/token", "at_home_at_home_\n");
  EXPECT_TRUE(find()->has("at_home_at_home_"));
  environment["DDPRUN_TOKEN"] = "variable_variable";
  EXPECT_TRUE(find()->has("variable_variable"));
  EXPECT_TRUE(find(write("file", "named_named_named"))->has("named_named_named"));
  EXPECT_TRUE(
      find(write("full", std::string(512, 'x') + "\n" + std::string(512, 'y') + "\n"))->has(std::string(512, 'y')));
  environment.erase("HOME");
  environment.erase("DDPRUN_TOKEN");
  EXPECT_FALSE(find());
}

// Root becomes another user for a test about users' files.
class FindTokenAsUser : public FindToken {
 protected:
  FindTokenAsUser() {
    if (!is_root_) return;
    if (::chown(folder.c_str(), kOtherUser, kOtherUser) != 0 || ::setegid(kOtherUser) != 0 ||
        ::seteuid(kOtherUser) != 0)
      throw std::runtime_error("root can't become another user");
  }
  ~FindTokenAsUser() override { become_root(); }

  bool become_root() const { return is_root_ && ::seteuid(0) == 0 && ::setegid(0) == 0; }

  const bool is_root_ = ::geteuid() == 0;
};

TEST_F(FindTokenAsUser, AcceptsAFileForTheUserAlone) {
  for (const mode_t mode : {0644, 0640, 0660, 0604, 0620}) {
    const auto path = write("file", kHush, mode);
    expect_error(path, "has mode 0", path, "`chmod 600 ");
  }
  const auto own = write(".config/ddprun/token", kHush, 0644);
  expect_error({}, "has mode 0644", own, "`chmod 600 ");
  EXPECT_TRUE(find(write("readonly", "named_named_named", 0400))->has("named_named_named"));
}

TEST_F(FindTokenAsUser, AcceptsAFileOfRootThatTheUsersGroupCanRead) {
  if (!is_root_) GTEST_SKIP() << "only root makes files of root";
  const auto path = write("file", "named_named_named", 0440);
  ASSERT_TRUE(become_root());
  ASSERT_EQ(::chown(path.c_str(), 0, kOtherUser), 0);
  ASSERT_EQ(::setegid(kOtherUser) + ::seteuid(kOtherUser), 0);
  EXPECT_TRUE(find(path)->has("named_named_named"));
}

TEST_F(FindToken, AcceptsAFileOfRootThatAGroupCanRead) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of root";
  for (const mode_t mode : {0400, 0440, 0600, 0640})
    EXPECT_TRUE(find(write("file", "named_named_named", mode))->has("named_named_named")) << mode;
  for (const mode_t mode : {0444, 0644, 0604, 0660, 0620, 0602, 0601}) {
    const auto path = write("file", kHush, mode);
    expect_error(path, "has mode 0", path, "`chmod g-w,o= ");
  }
}

TEST_F(FindToken, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes files of other users";
  const auto path = write("file", kHush);
  ASSERT_EQ(::chown(path.c_str(), kOtherUser, kOtherUser), 0);
  expect_error(path, "belongs to user 54321, who is neither this user nor root", path, "`chown 0 ");
}

TEST_F(FindToken, RefusesADirectoryInWhichOthersCanReplaceTheFile) {
  const auto path = write("shared/token", kHush), shared = folder + "/shared";
  for (const mode_t mode : {0770, 0777, 0720, 0702}) {
    ::chmod(shared.c_str(), mode);
    expect_error(path, "so others can replace the token", shared, "`chmod go-w ");
  }
  // Also where somebody has removed the token already: without one the job would be open.
  ::chmod((write(".config/ddprun/token", kHush), folder + "/.config/ddprun").c_str(), 0777);
  std::filesystem::remove(folder + "/.config/ddprun/token");
  expect_error({}, "so others can replace the token", folder + "/.config/ddprun", "`chmod go-w ");
}

TEST_F(FindToken, FollowsSymbolicLinksAndChecksEachDirectory) {
  const auto path = write("real/token", "named_named_named");
  std::filesystem::create_directories(folder + "/links");
  ::chmod((folder + "/links").c_str(), 0700);
  std::filesystem::create_symlink("../real/token", folder + "/links/token");
  std::filesystem::create_symlink(folder + "/links/token", folder + "/absolute");
  EXPECT_TRUE(find(folder + "/absolute")->has("named_named_named"));
  for (const std::string directory : {"/real", "/links"}) {
    ::chmod((folder + directory).c_str(), 0777);
    EXPECT_THROW((void)find(folder + "/absolute"), TokenError) << directory;
    ::chmod((folder + directory).c_str(), 0700);
  }
  std::filesystem::create_symlink("circle", folder + "/circle");
  expect_error(folder + "/circle", "Too many levels of symbolic links", folder + "/circle", "openssl rand");
}

TEST_F(FindToken, AcceptsAStickyDirectoryOfRootOnly) {
  const auto path = write("sticky/token", "named_named_named"), sticky = folder + "/sticky";
  ::chmod(sticky.c_str(), 01777);
  if (::geteuid() != 0) return expect_error(path, "has mode 1777", sticky, "`chmod go-w ");
  EXPECT_TRUE(find(path)->has("named_named_named"));
  ASSERT_EQ(::chown(sticky.c_str(), kOtherUser, kOtherUser), 0);
  expect_error(path, "belongs to user 54321", sticky, "a directory of your own");
}

TEST_F(FindToken, SaysWhatIsWrongWithIt) {
  const auto empty = write("empty", "\n"), spaced = write("spaced", "hush hush hush hush"),
             three = write("three", kHush + "\n" + kHush + "\n" + kHush + "\n"), half = write("half", kHush + "\n\n"),
             long_one = write("long", std::string(100'000, 'x')), short_one = write("short", "hushhushhushhus\n");
  expect_error(empty, "is empty", empty, "openssl rand -hex 32 > ");
  expect_error(spaced, "a space, or a character that does not print", spaced, "openssl rand");
  expect_error(three, "more than two lines", three, "openssl rand");
  expect_error(half, "is empty", half, "openssl rand");
  expect_error(long_one, "longer than 512", long_one, "openssl rand");
  expect_error(short_one, "fewer than 16 characters", short_one, "openssl rand");
  std::filesystem::create_directories(folder + "/directory");
  expect_error(folder + "/directory", "is no file", folder + "/directory", "openssl rand");
  expect_error(folder + "/none", "No such file", folder + "/none", "openssl rand");
  environment["DDPRUN_TOKEN"] = "";
  expect_error({}, "is empty", "environment variable DDPRUN_TOKEN", "openssl rand");
  environment["DDPRUN_TOKEN"] = "hush hush hush hush";
  expect_error({}, "a space", "environment variable DDPRUN_TOKEN", "openssl rand");
  environment["DDPRUN_TOKEN"] = "hush";
  expect_error({}, "fewer than 16 characters", "environment variable DDPRUN_TOKEN", "openssl rand -hex 32");
}

TEST_F(FindToken, ThatOfScrapersLetsNoNodeJoin) {
  const auto path = write("scrape", kHush + "\nold_hush_of_scrapers\n");
  const Tokens other(Token("secret_of_a_test"));
  EXPECT_FALSE(find_scrape_tokens({}, other));
  EXPECT_TRUE(find_scrape_tokens(path, other)->has(kHush));
  EXPECT_TRUE(find_scrape_tokens(path, {})->has("old_hush_of_scrapers"));
  EXPECT_THROW(find_scrape_tokens(path, Tokens::of_lines("secret_of_a_test\nold_hush_of_scrapers")), TokenError);
  EXPECT_THROW(find_scrape_tokens(folder + "/none", {}), TokenError);
}

}  // namespace
}  // namespace ddp::security
