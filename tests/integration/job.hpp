// Runs ddprun, or another program, as a user would, from outside, and waits for what can be seen of it. Every wait has
// a deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace ddp::test {

constexpr std::chrono::seconds kPatience{60};  // for anything that must happen; only a failing test waits this long

class Job {
 public:
  struct Options {
    std::vector<std::string> environment;  // "NAME=value", beside the test's own, or in place of it
    bool terminal = false;                 // stdin, stdout and stderr are one pseudo-terminal of 24 x 80 and ddprun is
                                           // its foreground job; else stdin is empty, stdout and stderr are pipes
    std::string program = "ddprun";        // of this build, or an absolute path
    std::function<void()> before_exec{};   // what its process does to itself first; without a terminal
    std::chrono::milliseconds patience{kPatience};  // of each wait but is_gone_within()
  };

  // `arguments` of ddprun. It starts at once.
  explicit Job(const std::vector<std::string>& arguments) : Job(arguments, Options{}) {}
  Job(const std::vector<std::string>& arguments, const Options& options);
  ~Job();  // kills what is left
  Job(const Job&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal_number) const;

  // What came so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }  // empty with a terminal

  // Reads until `text` has been printed `count` times on stdout or stderr together; false at the deadline or the end.
  bool prints(const std::string& text, int count = 1);

  // The number printed after `label`, such as a worker's pid: waits for it. -1 at the deadline.
  long number_after(const std::string& label);

  // Types at the terminal.
  void type(const std::string& keys) const;
  void resize_terminal(int rows, int columns) const;
  void close_stdout();  // as a reader that has gone

  // Reads all and waits for the end. The exit code, or 1000 + signal, or -1 at the deadline.
  int wait();

  // Waits until ddprun has stopped (ctrl-z); false at the deadline.
  bool waits_stopped();

  // Processes of this job that exist now, ddprun included, found by a mark in their environment. With a token only root
  // finds ddprun, its guardian and ddp-rendezvous.
  std::vector<pid_t> processes() const;

  // Waits until none is left; false at the deadline.
  bool is_gone_within(std::chrono::milliseconds limit = kPatience) const;

 private:
  bool read_more(std::chrono::steady_clock::time_point deadline);

  std::chrono::milliseconds patience_;
  std::string mark_;
  pid_t pid_ = -1;    // ddprun's
  pid_t shell_ = -1;  // our child: ddprun itself, or the stand-in for a shell that has it as a foreground job
  int out_fd_ = -1, err_fd_ = -1, terminal_ = -1;
  std::string out_, err_;
  int wait_status_ = 0;
  bool reaped_ = false;
};

// The state letter of /proc/<pid>/stat, 0 where there is no such process.
char process_state(pid_t pid);

// A shell script that stays for ever and ends at any signal.
inline const std::string kStay = "exec tail -f /dev/null";
// Is killed in a round in which it has kept something, as libddp says it: no pause follows.
inline const std::string kCommitAndDie =
    "exec bash -c 'for c in 0 1; do printf \"$0\" $c >&${DDPRUN_AGENT_SOCKET%%:*}; done; kill -KILL $$' "
    "'{\"type\":\"progress\",\"round\":'${DDPRUN_ROUND_ID##*-}',\"has_stepped\":true,\"commits\":%d}'";

// The same for a shell with traps. It is always between two commands, where it looks for signals: one that meets a
// shell just before it blocks in `read` or `wait`, or its child between fork and exec, is seen late or never.
inline const std::string kWaitForSignals = "while :; do :; done";

// The command line of workers that run a shell script on one node.
std::vector<std::string> shell(int workers, const std::string& script, std::vector<std::string> options = {});

// ddprun's options on a node of an elastic job over loopback; node 0 serves the rendezvous. The first round begins when
// all nodes have come, and waits for the last one for up to 60 s; so does a later round that may grow.
std::vector<std::string> elastic_node(const std::string& nodes, int rank, const std::string& port, int workers);

// Asks again and again, as nothing tells when another's process changes state, until it is so or the limit is over.
bool becomes_true(const std::function<bool()>& condition, std::chrono::milliseconds limit = kPatience);

// The pid of the worker of this rank, which runs `program`; -1 if there is none.
pid_t worker_of(const Job& job, const std::string& program, int rank);

// The path of a built program; an absolute one stays as it is.
std::string built(const std::string& program);

}  // namespace ddp::test
