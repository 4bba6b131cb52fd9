// Whether a process knows that it was forked, also where the kernel does not wipe a page for it.
#include "base/fork_guard.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "ddp/error.hpp"
#include "tests/seccomp_filter.hpp"

namespace ddp::base {
namespace {

// What `check` returns in a forked child.
template <class Check>
bool in_child(const Check& check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 7 : 8);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 7 || WEXITSTATUS(status) == 8)) << status;
  return WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

bool tells_child_from_parent() {
  const ForkGuard guard;
  const bool is_told = in_child([&] { return guard.in_forked_child() && !ForkGuard().in_forked_child(); });
  return is_told && !guard.in_forked_child();
}

TEST(ForkGuard, TellsAForkedChildFromItsParent) {
  EXPECT_TRUE(tells_child_from_parent());
  const ForkGuard guard;
  EXPECT_NO_THROW(guard.require_own_process());
  EXPECT_TRUE(in_child([&] {
    try {
      guard.require_own_process();
    } catch (const InvalidArgument&) {
      return true;
    }
    return false;
  }));
}

TEST(ForkGuard, DoesSoWhereTheKernelWipesNoPage) {
  EXPECT_TRUE(in_child([] {
    testing::refuse_system_call(SYS_madvise, EINVAL);
    return tells_child_from_parent();
  }));
}

}  // namespace
}  // namespace ddp::base
