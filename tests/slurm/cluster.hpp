// A real Slurm on this machine, for tests: a slurmctld and up to eight slurmd, on one host of its own
// (tests/multihost), with files in a folder of its own. Two clusters never meet, and all of one ends with the test,
// however that ends.
//
// The nodes are called n1, n2, ..., which only Slurm knows, and all of them share the host's addresses, its files and
// its processes. Slurm is set up to be quick: jobs start when they can, and a requeued one after 5 s, the least that
// there is.
//
// Threads: the test's main thread only, and no other may run while a process is started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/integration/job.hpp"
#include "tests/multihost/hosts.hpp"
#include "tests/unit/worker_runtime/scratch_directory.hpp"

namespace ddp::test {

// This machine can't have a cluster: no Slurm, or no hosts. A test skips with what it says.
class NoCluster : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Cluster {
 public:
  struct Options {
    int nodes = 2;
    int cpus = 4;                          // of each node; not the machine's, and nothing is bound to them
    int jobs = 2;                          // that may have the same CPU at once
    bool has_urgent = false;               // a partition "urgent", whose jobs put others back into the queue
    bool names_resolve = false;            // of the nodes, to the host's address
    std::chrono::seconds kill_wait{10};    // from Slurm's SIGTERM to its SIGKILL
    std::chrono::seconds silence_max{10};  // a node that is silent for longer is down (SlurmdTimeout)
  };

  // Returns when all nodes are idle. Throws NoCluster, and std::runtime_error for what should work.
  explicit Cluster(Options options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  static std::string node(int index) { return "n" + std::to_string(index + 1); }

  // Which all nodes share, and which is the current one of what runs here.
  const std::filesystem::path& folder() const { return scratch_.path(); }

  // Starts a program beside the daemons, as on a login node. What this build made is along its PATH.
  HostProcess run(const std::vector<std::string>& argv, std::vector<std::string> environment = {});

  // Runs one to its end, and returns what it printed. Throws where that is not 0.
  std::string ask(const std::vector<std::string>& argv, const std::vector<std::string>& environment = {});

  // `sbatch` with these words: the job's number.
  std::string submit(const std::vector<std::string>& words, const std::vector<std::string>& environment = {});

  // Both streams of a batch job, of all its runs. (Of an array's member "7_2" where `sbatch` got --output=job_%A_%a.)
  std::string output(const std::string& job) const;

  // Reads that until `text` stands there `count` times; false at the deadline.
  bool prints(const std::string& job, const std::string& text, int count = 1) const;

  // A field of what `scontrol show job` says, such as JobState; empty where there is no such job or field.
  std::string field(const std::string& job, const std::string& name);

  // How a run of a job ended, as slurmctld wrote it down at that moment, the first run first.
  struct End {
    std::string state;      // "COMPLETED", "FAILED", "CANCELLED", "REQUEUED", ...
    std::string exit_code;  // "0:0": the batch script's code, and its signal
    bool operator==(const End&) const = default;
    friend std::ostream& operator<<(std::ostream& out, const End& end) {
      return out << end.state << " " << end.exit_code;
    }
  };
  std::vector<End> ends(const std::string& job) const;

  // Waits until so many runs of the job have ended; the last one's end, or nothing at the deadline.
  std::optional<End> wait(const std::string& job, int runs = 1, std::chrono::milliseconds limit = kPatience) const;

  // What runs here beside slurmctld and the slurmd: of jobs, and what was started by run().
  struct Process {
    pid_t pid = 0;             // as the test sees it
    std::string command_line;  // arguments with a blank behind each
    std::string environment;   // "NAME=value", with a zero before and behind each
    bool has(const std::string& variable) const;
  };
  std::vector<Process> processes() const;

  // Waits until there is none; returns the command lines of those that are left at the deadline, a line each.
  std::string survivors(std::chrono::milliseconds limit = kPatience) const;

  // What belongs to a node, its slurmd and slurmstepd included.
  std::vector<pid_t> processes_of(int node) const;

  // Kills all that at once, as a loss of power does.
  void crash(int node);

 private:
  void write_configuration(const Options& options) const;
  void start_node(int node);
  HostProcess start_daemon(const std::string& command);
  std::vector<pid_t> all_pids() const;

  ScratchDirectory scratch_;
  Hosts host_;
  std::uint64_t pid_namespace_ = 0;
  std::vector<HostProcess> controller_;  // one
  std::vector<HostProcess> nodes_;       // slurmd of each
};

}  // namespace ddp::test
