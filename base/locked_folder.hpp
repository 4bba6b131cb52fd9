// A folder of this process with a name of its own, which its process may leave behind when it is killed.
//
// Others find out by a lock on the folder (flock). The kernel releases the lock once the process and its forked
// children have ended.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {

struct LockedFolder {
  std::string path;
  UniqueFd lock;  // empty if the file system has no locks
};

// Makes `parent`/`start`XXXXXX with other characters for the X. Throws std::system_error.
LockedFolder make_locked_folder(const std::string& parent, const std::string& start);

// Calls use(path) for each such folder of this user that no living process holds. The lock is held during the call.
// Of a folder that is held, is_ending(path) may say that its processes are about to end: then waits for that, at most
// `limit` for all of them together.
struct EndingHolders {
  std::function<bool(const std::string& path)> is_ending;
  std::chrono::milliseconds limit;
};
void for_each_left_folder(const std::string& parent, const std::string& start,
                          const std::function<void(const std::string& path)>& use, const EndingHolders& ending = {});

}  // namespace ddp::base
