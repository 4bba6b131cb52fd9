// Several hosts on one machine, for tests: each has a name, addresses, processes and an /etc/hosts of its own, and a
// cable to a switch that all share. What a test starts there, it starts through this.
//
// A host is a network, a process, a mount and a UTS namespace, the switch a bridge in a network namespace of its own.
// Nothing of it has a name outside, and no file is made: each namespace lives as long as its first process, which ends
// with the test however that ends, and takes every process of its host along. Files are shared, as on a cluster's
// common file system, and so are the clock and the boot id.
//
// Threads: the test's main thread only, and no other may run while a process is started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "tests/multihost/frame_relay.hpp"

namespace ddp::test {

// This machine can't have several hosts: not root, no `ip`, or a kernel that refuses. A test skips with what it says.
class NoHosts : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HostProcess;

class Hosts {
 public:
  struct Options {
    int count = 2;                                    // hosts, 1 to 200
    int interfaces = 1;                               // of each: eth0, eth1, ..., each kind with a switch of its own
    std::function<std::string(int)> alias = nullptr;  // of a host: a name that all know it by beside name(host)
  };

  // Returns when every host can reach every other. Throws NoHosts, and std::runtime_error for what should work.
  explicit Hosts(Options options);
  ~Hosts();  // kills every process of every host; children of this process there were best waited for before
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  int count() const;
  static std::string name(int host);                     // "node0"; every host knows it, with the addresses of eth0
  static std::string ipv4(int host, int interface = 0);  // "10.77.0.1"
  static std::string ipv6(int host, int interface = 0);  // "fd77::1"

  // Starts a program there, `argv[0]` searched for along PATH, with the test's environment and "NAME=value" of
  // `environment`. Its stdin is empty, its output goes to the returned object.
  HostProcess run(int host, const std::vector<std::string>& argv, const std::vector<std::string>& environment = {});

  // fork(2), with the child on a host. The child is this process's own, to be waited for by it; its pid there is
  // another. It is killed when this process ends.
  pid_t fork_on(int host);

  // Silence in both directions, on one interface or all: nothing is reset or refused, links stay up. And its end.
  void cut(int host, int interface = kAll);
  void heal(int host, int interface = kAll);
  static constexpr int kAll = -1;

  // Silence one way: what `from` sends to `to` is lost, on all interfaces. And its end.
  void cut_way(int from, int to);
  void heal_way(int from, int to);

  // A host on which no program runs, with the same addresses, stands in for one that is cut: it resets connections and
  // refuses new ones, as a firewall may. And its end, after which the host is still cut.
  void stand_in_for(int host);
  void end_stand_in(int host);

  // What a host sends over an interface, which is not cut, is delayed or lost from now on: {} ends both. Throws NoHosts
  // where this machine has no such means.
  void disturb(int host, const Disturbance& disturbance, int interface = 0);

  // The interface goes down at the host itself, as by `ip link set eth0 down` there: it loses its routes.
  void take_down(int host, int interface = 0);

  // Kills every process of a host at once, as a loss of power does; but the kernel closes its connections. Nothing can
  // be started there any more.
  void crash(int host);

 private:
  // A first process, and descriptors of what it lives in.
  struct Namespaces {
    pid_t first = 0;
    base::UniqueFd network, processes, mounts, name;
    base::UniqueFd life;  // the first process ends when no process has this open any more
  };

  Namespaces start(const std::function<void()>& set_up);
  void wire(const Options& options);
  bool take_out_relay(int host, int interface);
  std::string port(int host, int interface) const;

  std::vector<Namespaces> hosts_;
  std::vector<Namespaces> switch_;               // one, made first
  std::map<std::pair<int, int>, pid_t> relays_;  // by host and interface
  std::map<int, Namespaces> stand_ins_;          // by host
  int interfaces_ = 1;
};

inline int Hosts::count() const { return static_cast<int>(hosts_.size()); }

// A program on a host. Every wait has a deadline.
class HostProcess {
 public:
  HostProcess(pid_t pid, base::UniqueFd out, base::UniqueFd err);
  HostProcess(HostProcess&& other) noexcept;
  ~HostProcess();  // kills it

  pid_t pid() const { return pid_; }  // as this process sees it
  void kill(int signal_number) const;

  // What came so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Reads until `text` has been printed `count` times on stdout or stderr together; false at the deadline or the end.
  bool prints(const std::string& text, int count = 1);

  // Reads all and waits for the end. The exit code, or 1000 + signal, or -1 at the deadline.
  int wait();

 private:
  bool read_more(std::chrono::steady_clock::time_point deadline);

  pid_t pid_;               // 0 once it was waited for
  base::UniqueFd process_;  // readable once it has ended
  base::UniqueFd out_fd_, err_fd_;
  std::string out_, err_;
};

}  // namespace ddp::test
