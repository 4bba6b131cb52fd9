// What a ddprun leaves in its scratch folder, so that a later one on the same host can prove that this one has ended.
//
// ddprun and its guardian hold a lock on the folder (base/locked_folder.hpp), which the kernel releases once both have
// ended. Locks of another kernel prove nothing, so the folder's name has the boot id. Nor does a copy of a folder, so
// the record names the folder's inode. A host that was booted again proves nothing either: its folder can't be told
// from that of a living host with which it shares the file system.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

struct NodeRecord {
  std::string run_id;
  rendezvous::EndedNode node;
  int pid = 0;  // of ddprun, among the processes that it sees; 0: not known
};

// Replaces the record of the folder, at one instant. What can't be written is left out: then nothing is proven. May
// wait for the disk.
void write_record(const std::string& folder, const NodeRecord& record) noexcept;

// Empty: the folder has none of its own.
std::optional<NodeRecord> read_record(const std::string& folder);

// Removes what else is in the folder.
void keep_record_only(const std::string& folder);

// Its ddprun has ended; the guardian follows as soon as it has killed the workers. A guess where ddprun was in another
// PID namespace.
bool has_ended(const NodeRecord& record);

// Older than a day, or none.
bool is_record_old(const std::string& folder);

}  // namespace ddp::launcher
