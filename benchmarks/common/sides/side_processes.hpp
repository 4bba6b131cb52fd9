// The processes of one side of a benchmark, started once and asked for figures in turn with the other sides'. Between
// questions they block in a read and cost nothing.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/common/sides/request.hpp"

namespace ddp::benchmarks {

// A side that can't be started, or that failed: the others go on without it.
struct SideFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct SideCommand {
  std::string name;
  // "{socket}" becomes the name of the socket that ranks connect to.
  std::vector<std::string> words;
  int ranks = 2;
  bool for_each_rank = false;  // started once for each rank, "{rank}" being its number; else once: a launcher
  std::vector<std::pair<std::string, std::string>> variables{};
};

class SideProcesses {
 public:
  explicit SideProcesses(SideCommand command);
  ~SideProcesses();
  SideProcesses(const SideProcesses&) = delete;
  SideProcesses& operator=(const SideProcesses&) = delete;

  const std::string& name() const { return command_.name; }

  // Nanoseconds of a call of the slowest rank, for each batch.
  std::vector<double> measure(const Request& request);
  void release();  // the buffers

 private:
  void start();
  void accept_ranks();
  std::vector<std::string> ask(const std::string& line);  // the answers of all ranks
  void end();

  SideCommand command_;
  std::string socket_name_;
  int listener_ = -1, shared_file_ = -1;
  std::vector<pid_t> pids_;
  std::vector<int> pidfds_;
  std::vector<int> connections_;  // by rank
};

// A new folder under the system's own for temporary files, where ranks can meet; gone with this object.
class MeetingFolder {
 public:
  MeetingFolder();
  ~MeetingFolder();
  MeetingFolder(const MeetingFolder&) = delete;
  MeetingFolder& operator=(const MeetingFolder&) = delete;

  std::string new_path(const std::string& name);  // there is nothing yet

 private:
  std::string path_;
  int count_ = 0;
};

// The program of this process, and one of the same build.
std::string own_program();
std::string sibling_program(const std::string& name);
// The path of a program on PATH; empty where there is none.
std::string found_on_path(const std::string& name);

}  // namespace ddp::benchmarks
