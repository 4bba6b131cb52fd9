// The cgroup of the guardian and all that descends from it, and what the kernel says of memory there.
//
// Sources: cgroups(7), proc(5) (mountinfo), the kernel's Documentation/admin-guide/cgroup-v2.rst and
// cgroup-v1/memory.rst.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/locked_folder.hpp"

namespace ddp::launcher::guardian {

// Where the cgroups of a process are, as folders; empty: none is to be seen.
struct CgroupFolders {
  std::string unified;        // version 2
  std::string unified_mount;  // the root of its file system, as far as it is visible
  std::string memory;         // version 1, with the controller of memory

  bool operator==(const CgroupFolders&) const = default;
};

// Pure: from the texts of /proc/PID/cgroup and /proc/PID/mountinfo.
CgroupFolders cgroup_folders(std::string_view cgroups, std::string_view mounts);

// A child of this process's cgroup (version 2), for the guardian. Without one, the guardian stays where ddprun is.
//
// It needs a cgroup that is delegated to this user, as under `systemd-run --user -p Delegate=yes`, or root. A group
// whose ddprun and guardian have died keeps the processes that outlived them; the next one in the same parent kills
// these.
//
// Threads: the main thread, before any other.
class GuardianCgroup {
 public:
  GuardianCgroup();
  ~GuardianCgroup();  // kills what is left in it
  GuardianCgroup(const GuardianCgroup&) = delete;

  const std::string& path() const { return folder_.path; }  // empty: there is none
  const std::string& why_not() const { return why_not_; }
  int swept_count() const { return swept_count_; }  // groups that earlier ones had left

 private:
  base::LockedFolder folder_;
  std::string why_not_;
  int swept_count_ = 0;
};

// Moves the calling process there. It stays where it is if the kernel refuses.
void enter_cgroup(const std::string& path) noexcept;  // also in a forked child, which nothing may unwind

// Sends SIGKILL to every process there and in the groups below, also to those that are being forked.
void kill_cgroup(const std::string& path);

// Removes the group and those below it, once no process is left there; waits for that, up to the limit.
void remove_cgroup(const std::string& path, int limit_ms);

// Moves the calling process to the parent of its group `path`, and removes that group.
void leave_cgroup(const std::string& path);

// How many processes the kernel has killed for want of memory: in the nearest cgroup of this process with such a count
// (version 2: memory.events, of this cgroup and those below; version 1: memory.oom_control, of this cgroup alone).
class OutOfMemoryKills {
 public:
  OutOfMemoryKills();

  std::optional<long> count() const;  // empty: nothing counts here

 private:
  std::string file_;
};

// Pure: from the text of either file.
std::optional<long> out_of_memory_kills(std::string_view text);

}  // namespace ddp::launcher::guardian
