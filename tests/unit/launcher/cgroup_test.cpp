#include "launcher/guardian/cgroup.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher::guardian {
namespace {

// As /proc/self/mountinfo of a machine that has both versions.
constexpr const char* kBoth =
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
    "38 31 0:35 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
constexpr const char* kVersion2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(CgroupFolders, AreThoseOfTheMountsThatShowTheGroups) {
  const struct {
    const char *what, *cgroups, *mounts;
    CgroupFolders want;
  } cases[] = {
      {"version 2",
       "0::/user.slice/run-7.scope\n",
       kVersion2,
       {"/sys/fs/cgroup/user.slice/run-7.scope", "/sys/fs/cgroup", ""}},
      {"its root", "0::/\n", kVersion2, {"/sys/fs/cgroup", "/sys/fs/cgroup", ""}},
      {"both versions",
       "4:memory:/job/step\n2:cpu,cpuacct:/\n0::/\n",
       kBoth,
       {"/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory/job/step"}},
      {"a container that sees its own groups only",
       "0::/docker/abc/inner\n",
       "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
       {"/sys/fs/cgroup/inner", "/sys/fs/cgroup", ""}},
      {"a group that the mount does not show",
       "0::/docker/abcd\n",
       "30 23 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n",
       {}},
      {"a group outside of the namespace", "0::/../other\n", kVersion2, {}},
      {"no mount", "0::/job\n", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n", {}},
      {"no text", "", "", {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(cgroup_folders(c.cgroups, c.mounts), c.want);
  }
}

TEST(OutOfMemoryKills, AreReadFromTheFilesOfBothVersions) {
  EXPECT_EQ(out_of_memory_kills("low 0\nhigh 4\nmax 31\noom 7\noom_kill 3\noom_group_kill 1\n"), 3);
  EXPECT_EQ(out_of_memory_kills("oom_kill_disable 1\nunder_oom 0\noom_kill 2\n"), 2);
  EXPECT_EQ(out_of_memory_kills("oom_kill_disable 0\nunder_oom 0\n"), std::nullopt) << "Linux before 4.13";
  EXPECT_EQ(out_of_memory_kills(""), std::nullopt);
}

}  // namespace
}  // namespace ddp::launcher::guardian
