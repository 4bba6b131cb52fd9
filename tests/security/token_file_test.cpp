// Where a file with a token may be: as systemd and Kubernetes hand it over, and not where another user can replace it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/security/nodes_with_tokens.hpp"

namespace ddp::test::token {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uid_t kAttacker = 54'322;

class TokenFileOfRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can act for another user";
    if (::access(kSetpriv, X_OK) != 0) GTEST_SKIP() << "setpriv is not installed";
    char name[] = "/tmp/ddprun_token_XXXXXX";
    folder = ::mkdtemp(name);
    ::chmod(folder.c_str(), 0755);
  }
  void TearDown() override {
    if (!folder.empty()) std::filesystem::remove_all(folder);
  }

  void make_directory(const std::string& path, mode_t mode) const {
    std::filesystem::create_directories(path);
    ::chmod(path.c_str(), mode);
  }

  void make_file(const std::string& path, mode_t mode, uid_t owner = 0, gid_t group = 0) const {
    std::ofstream(path) << kToken << '\n';
    ::chmod(path.c_str(), mode);
    ASSERT_EQ(::chown(path.c_str(), owner, group), 0);
  }

  // ddp-rendezvous of a user with this file: what it says, up to its end or up to where it listens.
  static std::string said_with(const std::string& path) {
    const auto start = by_user("ddp-rendezvous", {"--port=0", "--host=127.0.0.1", "--token-file=" + path}, "");
    Job daemon(start.arguments, start.options);
    daemon.prints("listens on port ");
    return daemon.out() + daemon.err();
  }

  static void expect_acceptance(const std::string& path) {
    const auto said = said_with(path);
    if (said.find("Permission denied") != std::string::npos && said.find("setpriv") != std::string::npos)
      GTEST_SKIP() << "another user can't reach the programs";
    EXPECT_THAT(said, HasSubstr("listens on port "));
  }

  // Whether another user can put a file of that user in place of this one.
  bool replaces(const std::string& path) const {
    const pid_t attacker = ::fork();
    if (attacker == 0) {
      if (::setresgid(kAttacker, kAttacker, kAttacker) != 0 || ::setresuid(kAttacker, kAttacker, kAttacker) != 0)
        ::_exit(2);
      const auto own = path + ".evil";
      const int file = ::open(own.c_str(), O_CREAT | O_WRONLY, 0644);
      if (file < 0 || ::fchmod(file, 0644) != 0) ::_exit(1);
      ::_exit(std::rename(own.c_str(), path.c_str()) == 0 ? 0 : 1);
    }
    int status = 0;
    ::waitpid(attacker, &status, 0);
    EXPECT_NE(WEXITSTATUS(status), 2);
    return WEXITSTATUS(status) == 0;
  }

  std::string folder;
};

// A secret in a volume, with fsGroup: the directory is anybody's and sticky, the names are links.
TEST_F(TokenFileOfRoot, SecretOfKubernetesIsAccepted) {
  const auto volume = folder + "/secret", version = volume + "/..2024_11_23_15_25_01.123456789";
  make_directory(volume, 03777);
  make_directory(version, 0755);
  make_file(version + "/token", 0440, 0, kUser);
  std::filesystem::create_directory_symlink("..2024_11_23_15_25_01.123456789", volume + "/..data");
  std::filesystem::create_symlink("..data/token", volume + "/token");
  expect_acceptance(volume + "/token");
}

// An ACL gives the service's user read access to files of root.
TEST_F(TokenFileOfRoot, CredentialOfSystemdIsAccepted) {
  const auto credentials = folder + "/credentials", path = credentials + "/token";
  make_directory(credentials, 0700);
  make_file(path, 0400);
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  const auto allow_user = [](const std::string& of, std::uint16_t permissions) {
    constexpr std::uint32_t kNobody = 0xffff'ffff;
    const struct {
      std::uint32_t version;
      std::array<Entry, 5> entries;
    } acl{2,
          {{{0x01, permissions, kNobody},
            {0x02, permissions, kUser},
            {0x04, 0, kNobody},
            {0x10, permissions, kNobody},
            {0x20, 0, kNobody}}}};
    return ::setxattr(of.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) == 0;
  };
  if (!allow_user(path, 4) || !allow_user(credentials, 5)) GTEST_SKIP() << "the file system of /tmp has no ACLs";
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0440u) << "the mask of the ACL";
  expect_acceptance(path);
}

TEST_F(TokenFileOfRoot, IsRefusedWhereAnotherUserCanReplaceIt) {
  const auto shared = folder + "/shared", path = shared + "/token";
  make_directory(shared, 0777);
  make_file(path, 0440, 0, kUser);
  EXPECT_THAT(said_with(path),
              AllOf(HasSubstr("error: the directory of the token has mode 0777, so others can replace"),
                    HasSubstr("\nwhere: " + shared + "\n")));
  ASSERT_TRUE(replaces(path)) << "so the refusal is right";
  ::chmod(shared.c_str(), 0755);
  EXPECT_THAT(said_with(path), HasSubstr("error: the file with the token belongs to user 54322"));
}

TEST_F(TokenFileOfRoot, CannotBeReplacedInAStickyDirectory) {
  const auto shared = folder + "/sticky", path = shared + "/token";
  make_directory(shared, 01777);
  make_file(path, 0440, 0, kUser);
  EXPECT_FALSE(replaces(path));
  expect_acceptance(path);
}

}  // namespace
}  // namespace ddp::test::token
