// Everything that workers print, from their descriptors to the console and the log files, and ddprun's own words.
//
// Owns the console, each worker's streams of the current round and the log tree:
//   <log-dir>/<job>/round_<n>/rank_<r>/{stdout,stderr}.log, error.json
// No round's files are ever deleted or written over. The console is bounded and drops (console.hpp); a file never
// loses or tears a line. No file is opened, written or closed on the event loop, as its disk may stop answering.
//
// Threads: the event loop's only. Behind it there is a thread for each thing that may stall by itself: ddprun's stdout
// and stderr (console.hpp), the folders and files of a round (here), tee'd files (log_disk.hpp), reasons of failures
// (agent/reason_files.hpp), close() (base/unique_file.hpp). One thread for all files would let a stalled log disk stop
// the console and the reasons too.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.hpp"
#include "launcher/output/output_options.hpp"

namespace ddp::launcher {

class Output {
 public:
  using OpenFile = std::function<base::UniqueFd()>;  // may outlive the Output, wait for the disk, and throw UsageError

  struct RoundFacts {
    std::string job;  // the name of the job's folder (log_tree.hpp)
    std::uint32_t number = 0;
    int rank_first = 0;  // the global rank of local rank 0
    int workers = 1;     // on this node
    int world_size = 1;
    std::string role;
    bool may_read = false;  // rank 0 gets ddprun's own standard input; all others /dev/null
  };

  // reader_gone: stdout is a pipe that nobody reads any more; called once. Throws UsageError where the log directory
  // can't be made or written to.
  Output(boost::asio::io_context& io, OutputOptions options, std::string scratch_directory,
         std::function<void()> reader_gone);
  ~Output();

  // Null, or what went wrong: UsageError (disk full, no rights), std::system_error (descriptors run out).
  using Opened = std::function<void(std::exception_ptr error)>;

  // Makes the round's folders and opens every worker's streams, but for those that live on from the round before (local
  // ranks): these keep theirs, and the files that they had. Ends the round before where nobody has, and waits no more
  // for its files. Names of files are known at once. `opened` is called later, from the loop; no more after end_round()
  // or another begin_round().
  void begin_round(const RoundFacts& round, const std::vector<int>& kept, Opened opened);

  // For the worker: stdin, stdout, stderr, once they are open; to be handed over once, then worker_is_spawned() lets go
  // of them.
  std::array<int, 3> worker_side(int local_rank) const;
  void worker_is_spawned(int local_rank);

  // Reads what is there, writes it to the files and the console, and closes: at the end of the round's process tree.
  // Workers that are kept go on. `written` is called later, from the loop: when the disk has taken everything, which
  // may be never. It is called no more after begin_round() or another end_round(); the rest is still written then.
  void end_round(const std::vector<int>& kept, std::function<void()> written);

  std::string error_file(int local_rank) const;  // where the worker may leave its error.json; empty: nowhere
  std::string round_directory()
      const;  // of this round's log files; "/dev/null": there are to be none; empty: there are none
  std::string stderr_file(int local_rank) const;  // that holds all of its stderr; empty where there is none
  std::vector<std::string> stderr_tail(int local_rank) const;  // its last lines where no file holds it, oldest first

  // One message of ddprun's own on stderr; a newline is added where it has none. Never dropped.
  void print(std::string_view message);

  void resize();  // the user's terminal has another size now

  // The highest <n> of the round_<n> folders that the log tree has of this run id; -1 where there is none.
  int highest_round(const std::string& run_id) const;

  // One line of ddprun's log. Dropped if the console is full.
  void log(std::string_view line);

  // LogTree::open_own_log() and, of the job that has had a round, open_report(); null if there are no log files.
  OpenFile own_log(const std::string& job, const std::string& host_name) const;
  OpenFile report() const;

  // Tells the user once where the log files are, if there are any.
  void print_where();

  // Calls `done` once the console is written, which may be never if nobody reads.
  void when_drained(std::function<void()> done);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::launcher
