#include "tests/multihost/hosts.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/pidfd.hpp"
#include "base/throw_errno.hpp"
#include "tests/text.hpp"

namespace ddp::test {

namespace {

using ddp::test::occurrences;

using Clock = std::chrono::steady_clock;

// Only a failing test waits as long. It is a little less than the timeout of a test in ctest, so that the test can
// still say what it saw.
constexpr std::chrono::seconds kPatience{110};
constexpr std::chrono::seconds kLastWait{5};  // for processes that someone started on a host and has not waited for
constexpr const char* kSearch = "/usr/sbin:/usr/bin:/sbin:/bin";
constexpr int kFailed = 125;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<decltype(left)>(left, 0));
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) base::throw_errno("pipe2");
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
  base::UniqueFd reading, writing;
};

void write_all(int fd, const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = ::write(fd, text.data() + at, text.size() - at);
    if (count < 0) base::throw_errno("write");
    at += static_cast<std::size_t>(count);
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = ::read(fd, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

// The end of the process, or its kill at the deadline.
int wait_status_of(pid_t pid) {
  const base::UniqueFd process = base::open_pidfd(pid);
  pollfd polled{process.get(), POLLIN, 0};
  if (::poll(&polled, 1, milliseconds_until(Clock::now() + kPatience)) != 1) ::kill(pid, SIGKILL);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

void kill_and_wait(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

// fork(2); an exception of `body` becomes text for the parent to throw. The child ends with `body`.
pid_t fork_and(const std::function<void()>& body, int report) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    body();
    ::_exit(0);
  } catch (const std::exception& error) {
    [[maybe_unused]] const auto written = ::write(report, error.what(), std::strlen(error.what()));
  }
  ::_exit(kFailed);
}

void enter(const base::UniqueFd& network) {
  if (::setns(network.get(), CLONE_NEWNET) != 0) base::throw_errno("setns");
}

// Runs `ip -batch` on the lines, in a network.
void ip(const base::UniqueFd& network, const std::string& lines) {
  Pipe input;
  Pipe output;
  const pid_t child = fork_and(
      [&] {
        enter(network);
        ::dup2(input.reading.get(), STDIN_FILENO);
        ::dup2(output.writing.get(), STDERR_FILENO);
        ::setenv("PATH", kSearch, 1);
        ::execlp("ip", "ip", "-batch", "-", nullptr);
        base::throw_errno("ip (package iproute2)");
      },
      output.writing.get());
  if (child < 0) base::throw_errno("fork");
  output.writing.reset();
  write_all(input.writing.get(), lines);
  input.writing.reset();
  const std::string said = read_all(output.reading.get());
  if (wait_status_of(child) == 0) return;
  const bool is_lacking = said.find("not supported") != std::string::npos ||
                          said.find("Unknown device type") != std::string::npos ||
                          said.find("No such file") != std::string::npos;
  if (is_lacking) throw NoHosts("this machine can't have a bridge of its own: " + said);
  throw std::runtime_error("ip: " + said + "in:\n" + lines);
}

std::string cable(int host, int interface) { return "h" + std::to_string(host) + "e" + std::to_string(interface); }

// The ends of the cable from a relay to the switch.
std::string relay_end(int host, int interface) { return cable(host, interface) + "r"; }

std::string relay_port(int host, int interface) { return cable(host, interface) + "p"; }

std::string bridge(int interface) { return "br" + std::to_string(interface); }

// Lines for `ip` on the host itself.
std::string interface_lines(int host, int interfaces) {
  std::string lines = "link set lo up\n";
  for (int interface = 0; interface < interfaces; ++interface) {
    std::array<char, 32> ethernet{};
    std::snprintf(ethernet.data(), ethernet.size(), "02:77:00:00:%02x:%02x", static_cast<unsigned>(interface),
                  static_cast<unsigned>(host + 1));
    const std::string device = " dev eth" + std::to_string(interface);
    lines += "link set eth" + std::to_string(interface) + " address " + ethernet.data() + "\naddr add " +
             Hosts::ipv4(host, interface) + "/24" + device + "\naddr add " + Hosts::ipv6(host, interface) + "/64" +
             device + " nodad\nlink set eth" + std::to_string(interface) + " up\n";
  }
  return lines;
}

std::string hosts_file(const Hosts::Options& options) {
  std::string text = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n";
  for (int host = 0; host < options.count; ++host) {
    const std::string names = " " + Hosts::name(host) + (options.alias ? " " + options.alias(host) : "") + "\n";
    text += Hosts::ipv4(host) + names + Hosts::ipv6(host) + names;
  }
  return text;
}

// Lines for `ip` about the addresses of `to`, as its neighbours know them.
std::string neighbour_lines(const std::string& command, int to, int interfaces, const std::string& more) {
  std::string lines;
  for (int interface = 0; interface < interfaces; ++interface) {
    for (const std::string& address : {Hosts::ipv4(to, interface), Hosts::ipv6(to, interface)}) {
      lines += "neigh " + command + " " + address + more + " dev eth" + std::to_string(interface) + "\n";
    }
  }
  return lines;
}

void mount_or_fail(const char* source, const char* target, const char* type, unsigned long flags) {
  if (::mount(source, target, type, flags, nullptr) != 0) base::throw_errno(std::string("mount ") + target);
}

// A name, and the files that differ: /etc/hosts, which lives on a file system without a place, and /proc.
void move_in(int host, const Hosts::Options& options) {
  const std::string name = Hosts::name(host);
  if (::sethostname(name.data(), name.size()) != 0) base::throw_errno("sethostname");
  mount_or_fail(nullptr, "/", nullptr, MS_REC | MS_PRIVATE);
  mount_or_fail("tmpfs", "/proc", "tmpfs", 0);
  {
    const base::UniqueFd file(::open("/proc/hosts", O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (!file) base::throw_errno("/proc/hosts");
    write_all(file.get(), hosts_file(options));
  }
  mount_or_fail("/proc/hosts", "/etc/hosts", nullptr, MS_BIND);
  if (::umount2("/proc", MNT_DETACH) != 0) base::throw_errno("umount");
  mount_or_fail("proc", "/proc", "proc", 0);
}

base::UniqueFd open_namespace(const std::string& process, const std::string& kind) {
  base::UniqueFd fd(::open(("/proc/" + process + "/ns/" + kind).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) base::throw_errno("/proc/" + process + "/ns/" + kind);
  return fd;
}

}  // namespace

std::string Hosts::name(int host) { return "node" + std::to_string(host); }

std::string Hosts::ipv4(int host, int interface) {
  return "10.77." + std::to_string(interface) + "." + std::to_string(host + 1);
}

std::string Hosts::ipv6(int host, int interface) {
  std::array<char, 32> text{};
  if (interface == 0) {
    std::snprintf(text.data(), text.size(), "fd77::%x", static_cast<unsigned>(host + 1));
  } else {
    std::snprintf(text.data(), text.size(), "fd77:0:0:%x::%x", static_cast<unsigned>(interface),
                  static_cast<unsigned>(host + 1));
  }
  return text.data();
}

Hosts::Hosts(Options options) : interfaces_(options.interfaces) {
  if (::geteuid() != 0) throw NoHosts("only root can make network namespaces");
  switch_.push_back(start([] {}));
  for (int host = 0; host < options.count; ++host) {
    hosts_.push_back(start([&] { move_in(host, options); }));
  }
  wire(options);
}

Hosts::~Hosts() {
  for (const auto& [place, pid] : relays_) kill_and_wait(pid);
  for (const auto& [host, there] : stand_ins_) kill_and_wait(there.first);
  const auto deadline = Clock::now() + kLastWait;
  for (std::vector<Namespaces>* all : {&hosts_, &switch_}) {
    for (const Namespaces& each : *all) ::kill(each.first, SIGKILL);
  }
  for (std::vector<Namespaces>* all : {&hosts_, &switch_}) {
    for (const Namespaces& each : *all) {
      const base::UniqueFd process = base::open_pidfd(each.first);
      pollfd polled{process.get(), POLLIN, 0};
      if (::poll(&polled, 1, milliseconds_until(deadline)) == 1) ::waitpid(each.first, nullptr, 0);
    }
  }
}

// A first process in namespaces of its own. It sleeps until this process ends.
Hosts::Namespaces Hosts::start(const std::function<void()>& set_up) {
  Pipe report;
  Pipe life;  // its other end closes with this process
  const base::UniqueFd own_processes = open_namespace("self", "pid");
  if (::unshare(CLONE_NEWPID) != 0) throw NoHosts(std::string("no namespaces here: ") + std::strerror(errno));
  const pid_t first = fork_and(
      [&] {
        life.writing.reset();
        if (::unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) != 0) base::throw_errno("unshare");
        ::signal(SIGCHLD, SIG_IGN);  // orphans of this host come here and are reaped
        set_up();
        report.writing.reset();
        char byte = 0;
        while (::read(life.reading.get(), &byte, 1) != 0) continue;
      },
      report.writing.get());
  const int fork_error = errno;
  const int restored = ::setns(own_processes.get(), CLONE_NEWPID);
  if (first < 0) throw std::system_error(fork_error, std::generic_category(), "fork");
  if (restored != 0) base::throw_errno("setns");

  Namespaces made;
  made.first = first;
  report.writing.reset();
  const std::string said = read_all(report.reading.get());
  if (!said.empty()) {
    ::waitpid(first, nullptr, 0);
    throw NoHosts("no namespaces here: " + said);
  }
  const std::string process = std::to_string(first);
  made.network = open_namespace(process, "net");
  made.processes = open_namespace(process, "pid");
  made.mounts = open_namespace(process, "mnt");
  made.name = open_namespace(process, "uts");
  made.life = std::move(life.writing);
  return made;
}

void Hosts::wire(const Options& options) {
  std::string lines;
  for (int interface = 0; interface < options.interfaces; ++interface) {
    lines += "link add " + bridge(interface) + " type bridge mcast_snooping 0\nlink set " + bridge(interface) + " up\n";
    for (int host = 0; host < count(); ++host) {
      const std::string pid = std::to_string(hosts_[static_cast<std::size_t>(host)].first);
      lines += "link add " + cable(host, interface) + " type veth peer name eth" + std::to_string(interface) +
               " netns " + pid + "\nlink set " + cable(host, interface) + " master " + bridge(interface) + " up\n";
    }
  }
  ip(switch_[0].network, lines);
  for (int host = 0; host < count(); ++host) {
    ip(hosts_[static_cast<std::size_t>(host)].network, interface_lines(host, interfaces_));
  }
}

pid_t Hosts::fork_on(int host) {
  const Namespaces& there = hosts_.at(static_cast<std::size_t>(host));
  const base::UniqueFd own_processes = open_namespace("self", "pid");
  if (::setns(there.processes.get(), CLONE_NEWPID) != 0) base::throw_errno("setns");
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool is_there = ::setns(there.network.get(), CLONE_NEWNET) == 0 &&
                          ::setns(there.name.get(), CLONE_NEWUTS) == 0 && ::setns(there.mounts.get(), CLONE_NEWNS) == 0;
    if (!is_there) ::_exit(kFailed);
    return 0;
  }
  const int fork_error = errno;
  if (::setns(own_processes.get(), CLONE_NEWPID) != 0) base::throw_errno("setns");
  if (pid < 0) throw std::system_error(fork_error, std::generic_category(), "fork on " + name(host));
  return pid;
}

HostProcess Hosts::run(int host, const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  std::vector<std::string> words = argv;
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::array<char, 4096> here{};
  if (::getcwd(here.data(), here.size()) == nullptr) base::throw_errno("getcwd");

  Pipe out;
  Pipe err;
  const pid_t pid = fork_on(host);
  if (pid == 0) {
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    ::dup2(out.writing.get(), STDOUT_FILENO);
    ::dup2(err.writing.get(), STDERR_FILENO);
    for (const std::string& variable : environment) {
      const auto equals = variable.find('=');
      ::setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
    }
    if (::chdir(here.data()) == 0) ::execvp(pointers[0], pointers.data());  // setns() had moved it to the root
    std::fprintf(stderr, "%s: %s\n", pointers[0], std::strerror(errno));
    ::_exit(127);
  }
  return {pid, std::move(out.reading), std::move(err.reading)};
}

void Hosts::cut(int host, int interface) {
  std::string lines;
  for (int each = 0; each < interfaces_; ++each) {
    if (interface == kAll || interface == each) lines += "link set " + port(host, each) + " nomaster\n";
  }
  ip(switch_[0].network, lines);
}

void Hosts::heal(int host, int interface) {
  std::string lines;
  for (int each = 0; each < interfaces_; ++each) {
    if (interface == kAll || interface == each) {
      lines += "link set " + port(host, each) + " master " + bridge(each) + "\n";
    }
  }
  ip(switch_[0].network, lines);
}

void Hosts::stand_in_for(int host) {
  Namespaces& there = stand_ins_.insert_or_assign(host, start([] {})).first->second;
  std::string lines;
  for (int interface = 0; interface < interfaces_; ++interface) {
    const std::string port = "s" + cable(host, interface);
    lines += "link add " + port + " type veth peer name eth" + std::to_string(interface) + " netns " +
             std::to_string(there.first) + "\nlink set " + port + " master " + bridge(interface) + " up\n";
  }
  ip(switch_[0].network, lines);
  ip(there.network, interface_lines(host, interfaces_));
}

void Hosts::end_stand_in(int host) {
  std::string lines;
  for (int interface = 0; interface < interfaces_; ++interface) lines += "link del s" + cable(host, interface) + "\n";
  ip(switch_[0].network, lines);
  kill_and_wait(stand_ins_.at(host).first);
  stand_ins_.erase(host);
}

// `from` believes that `to` has an Ethernet address that nobody has.
void Hosts::cut_way(int from, int to) {
  ip(hosts_.at(static_cast<std::size_t>(from)).network,
     neighbour_lines("replace", to, interfaces_, " lladdr 02:00:00:00:00:00 nud permanent"));
}

void Hosts::heal_way(int from, int to) {
  ip(hosts_.at(static_cast<std::size_t>(from)).network, neighbour_lines("del", to, interfaces_, ""));
}

// The interface's cable ends at a relay from now on, and another goes from there to the switch.
void Hosts::disturb(int host, const Disturbance& disturbance, int interface) {
  if (!can_relay_frames()) throw NoHosts("this machine can't delay or lose what is sent: it has no packet sockets");
  const Namespaces& there = hosts_.at(static_cast<std::size_t>(host));
  const base::UniqueFd& at_switch = switch_[0].network;
  const std::string from = cable(host, interface);
  const std::string to = relay_end(host, interface);
  const std::string out = relay_port(host, interface);
  if (!take_out_relay(host, interface)) {
    ip(at_switch, "link set " + from + " nomaster\nlink add " + to + " type veth peer name " + out + "\nlink set " +
                      to + " up\nlink set " + out + " master " + bridge(interface) + " up\n");
  }
  Pipe report;
  const pid_t pid = fork_and(
      [&] {
        enter(there.network);
        finish_frames_in_software("eth" + std::to_string(interface));
        enter(at_switch);
        for (const std::string& each : {from, to, out}) finish_frames_in_software(each);
        FrameRelay relay({.from = from, .to = to, .disturbance = disturbance, .seed = static_cast<unsigned>(host)});
        report.writing.reset();
        relay.run();
      },
      report.writing.get());
  if (pid < 0) base::throw_errno("fork");
  relays_[{host, interface}] = pid;
  report.writing.reset();
  const std::string said = read_all(report.reading.get());
  if (!said.empty()) throw std::runtime_error("relay of " + name(host) + ": " + said);
}

// Ends the relay in a cable, which stays cut in two. False where there is none.
bool Hosts::take_out_relay(int host, int interface) {
  const auto found = relays_.find({host, interface});
  if (found == relays_.end()) return false;
  kill_and_wait(found->second);
  relays_.erase(found);
  return true;
}

// What of a host's cable is in the switch.
std::string Hosts::port(int host, int interface) const {
  return relays_.contains({host, interface}) ? relay_port(host, interface) : cable(host, interface);
}

void Hosts::take_down(int host, int interface) {
  ip(hosts_.at(static_cast<std::size_t>(host)).network, "link set eth" + std::to_string(interface) + " down\n");
}

void Hosts::crash(int host) { ::kill(hosts_.at(static_cast<std::size_t>(host)).first, SIGKILL); }

HostProcess::HostProcess(pid_t pid, base::UniqueFd out, base::UniqueFd err)
    : pid_(pid), process_(base::open_pidfd(pid)), out_fd_(std::move(out)), err_fd_(std::move(err)) {
  if (!process_) base::throw_errno("pidfd_open");
}

HostProcess::HostProcess(HostProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)),
      process_(std::move(other.process_)),
      out_fd_(std::move(other.out_fd_)),
      err_fd_(std::move(other.err_fd_)),
      out_(std::move(other.out_)),
      err_(std::move(other.err_)) {}

HostProcess::~HostProcess() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void HostProcess::kill(int signal_number) const {
  if (pid_ != 0) ::kill(pid_, signal_number);
}

// Whether something came. What a process has written before its end comes first, and what a descendant keeps open after
// it is nobody's to wait for.
bool HostProcess::read_more(Clock::time_point deadline) {
  std::array<pollfd, 3> polled{pollfd{out_fd_.get(), POLLIN, 0}, pollfd{err_fd_.get(), POLLIN, 0},
                               pollfd{process_.get(), POLLIN, 0}};
  if (::poll(polled.data(), polled.size(), milliseconds_until(deadline)) <= 0) return false;
  const auto read_one = [](const pollfd& ready, base::UniqueFd& fd, std::string& text) {
    if (!fd || ready.revents == 0) return false;
    std::array<char, 65536> buffer;
    const ssize_t count = ::read(fd.get(), buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count <= 0) fd.reset();
    return true;
  };
  const bool out_came = read_one(polled[0], out_fd_, out_);
  const bool err_came = read_one(polled[1], err_fd_, err_);
  return out_came || err_came;
}

bool HostProcess::prints(const std::string& text, int count) {
  const auto deadline = Clock::now() + kPatience;
  while (occurrences(out_, text) + occurrences(err_, text) < count) {
    if (!read_more(deadline)) return false;
  }
  return true;
}

int HostProcess::wait() {
  const auto deadline = Clock::now() + kPatience;
  while (read_more(deadline)) continue;
  pollfd polled{process_.get(), POLLIN, 0};
  if (pid_ == 0 || ::poll(&polled, 1, milliseconds_until(deadline)) != 1) return -1;
  int status = 0;
  ::waitpid(std::exchange(pid_, 0), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace ddp::test
