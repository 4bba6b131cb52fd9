// What concerns ddprun's own process: the signals it takes in, its limits, its folder for short-lived files.
//
// Threads: the program's main thread.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file_thread.hpp"
#include "base/locked_folder.hpp"
#include "launcher/guardian/node_record.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

// Those that stop the job and those that are passed on, beside SIGTSTP, SIGCONT, SIGWINCH and SIGCHLD; less what was
// ignored at the start (nohup): that stays ignored, for the workers too. A blocked signal reaches a signalfd even where
// it is ignored, so those must not be in the set. In a step of Slurm, the warnings that are passed on are taken in all
// the same: who started this ddprun may be another one's worker.
sigset_t signals_to_take_in(const std::vector<int>& stop, const std::vector<int>& forward, bool is_in_step);

// In a step such a warning comes to every process, of which those that do not expect it would die.
bool is_ignored_by_workers(int warning);

// " from pid 17 (uid 1000)"; empty where no process sent the signal.
std::string sender_of(const signalfd_siginfo& info);

// Throws std::system_error.
int open_signalfd(const sigset_t& signals);

// Stops this process as a terminal's ctrl-z does. Returns after SIGCONT, or at once if nobody could continue this
// process. Requires that SIGTSTP is blocked and has its default action.
void suspend_this_process();

// To the highest that is allowed: each worker costs ddprun two streams, a pidfd and the connections of its store
// clients. Returns the limit before, which the workers get back.
rlimit raise_descriptor_limit();

// A folder of this run for files that workers leave for the agent; gone with the run. Throws UsageError.
//
// A ddprun that is killed leaves its folder, and the next one of the same user removes that, while the host is not
// booted again. It knows by a lock on the folder (flock), which the kernel releases once ddprun and its guardian have
// ended. A folder with a record (node_record.hpp) also proves the end of its node. One of this job stays until this
// node has a record of its own, one of another job until a ddprun of that job comes, a day at most. Where a ddprun of
// this job has ended and its guardian is about to, waits for that, a second at most.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& run_id);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  const std::string& path() const { return folder_.path; }

  const std::vector<rendezvous::EndedNode>& ended_nodes() const { return ended_nodes_; }  // at most kEndedNodesMax
  const std::vector<std::string>& read_folders() const { return read_folders_; }          // that are those nodes'

 private:
  base::LockedFolder folder_;
  std::vector<rendezvous::EndedNode> ended_nodes_;
  std::vector<std::string> read_folders_;
};

// Writes the record of this node on a thread of its own. A record that can't be written, or waits behind others for the
// disk, is left out: nothing is proven by it.
class RecordFile {
 public:
  RecordFile(boost::asio::io_context& io, const ScratchDirectory& scratch)
      : io_(io), folder_(scratch.path()), read_folders_(scratch.read_folders()) {}

  void write(const NodeRecord& record);

 private:
  boost::asio::io_context& io_;
  const std::string folder_;
  std::vector<std::string> read_folders_;  // of nodes whose end was told before this one took part
  std::optional<base::FileThread> thread_;
};

}  // namespace ddp::launcher
