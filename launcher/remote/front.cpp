#include "launcher/remote/front.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "base/host_name.hpp"
#include "base/printable.hpp"
#include "launcher/agent/own_process.hpp"
#include "launcher/command_line/quoted_word.hpp"
#include "launcher/command_line/usage_error.hpp"
#include "launcher/output/console.hpp"
#include "launcher/remote/front_input.hpp"
#include "launcher/remote/host_link.hpp"
#include "launcher/remote/host_reports.hpp"
#include "launcher/remote/hosts_core.hpp"
#include "launcher/remote/node_service.hpp"
#include "launcher/remote/ssh_command.hpp"
#include "rendezvous/membership/failure.hpp"
#include "rendezvous/membership/outcome.hpp"

namespace ddp::launcher {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kConnectLimit{60};       // a login shell may be slow; ssh waits 10 s for a connection
constexpr std::chrono::seconds kConfigurationLimit{5};  // for `ssh -G`, which connects nowhere
constexpr std::chrono::seconds kAliveInterval{10};
constexpr std::chrono::seconds kReportDelay{10};  // of a report, if the job goes on at other hosts
constexpr std::size_t kConnectingMax = 32;  // at once: each login costs this machine some milliseconds of computing
constexpr std::size_t kWordBytesMax = 500;  // of ssh's own words, in a line

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::vector<std::string> command_for(const JobOnHosts& job, const RemoteHost& host, const std::string& program) {
  if (is_this_machine(host, base::host_name())) return {program, kNodeServiceOption};
  return ssh_command(host, job.ssh_arguments, program);
}

// Under which the other hosts reach the first one, as far as it is known without asking ssh.
std::string first_address_of(const JobOnHosts& job) {
  const auto own_name = base::host_name();
  const auto is_here = [&own_name](const RemoteHost& host) { return is_this_machine(host, own_name); };
  if (!is_here(job.hosts.front())) return job.hosts.front().name;
  return std::all_of(job.hosts.begin(), job.hosts.end(), is_here) ? "127.0.0.1" : own_name;
}

class Front {
 public:
  Front(const JobOnHosts& job, const std::vector<std::string>& environment)
      : job_(job),
        environment_(environment),
        taken_in_(signals_to_take_in(job.stop_signals, job.forward_signals, false)),
        signals_(io_, block_and_open(taken_in_)),
        console_(io_, console_options()),
        input_(io_, [this](std::string_view bytes) { pass_on_input(bytes); }),
        core_({job.hosts.size(), static_cast<std::size_t>(job.nodes_min), job.grace}),
        core_timer_(io_),
        alive_timer_(io_),
        ask_timer_(io_),
        report_timer_(io_),
        first_address_(first_address_of(job)) {
    ::prctl(PR_SET_DUMPABLE, 0);  // it has the token
    for (std::size_t i = 0; i < job.hosts.size(); ++i)
      links_.push_back(std::make_unique<HostLink>(
          io_, HostLink::Handlers{[this, i] { connected(i); },
                                  [this, i](int stream, std::string_view bytes) {
                                    console_.feed({static_cast<int>(i), stream}, bytes);
                                  },
                                  [this, i](std::string_view text) { take_report(i, text); },
                                  [this, i](std::string_view line) { note(name(i) + " (ssh): " + std::string(line)); },
                                  [this] { input_.want(); }, [this, i](const HostLink::End& end) { ended(i, end); }}));
    unreached_.resize(job.hosts.size());
  }

  int run() {
    for (const auto& notice : job_.notices) note("ddprun: " + notice);
    listen_for_signals();
    if (asks_for_address())
      ask_for_address();
    else
      connect_more();
    io_.run();
    return exit_code_;
  }

 private:
  static int block_and_open(const sigset_t& signals) {
    ::signal(SIGPIPE, SIG_IGN);
    ::signal(SIGCHLD, SIG_DFL);
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    return open_signalfd(signals);
  }

  Console::Options console_options() {
    Console::Options out;
    if (job_.prefixes_lines)
      out.prefix = [this](LineMerger::Source source, bool) {
        return name(static_cast<std::size_t>(source.rank)) + ": ";
      };
    out.reader_gone = [this] {
      core_.reader_gone();
      stop(SIGTERM);
    };
    return out;
  }

  const std::string& name(std::size_t host) const { return names_[host]; }
  // What --quiet hides.
  void note(const std::string& line) {
    if (!job_.is_quiet) print(line);
  }

  void print(const std::string& line) { console_.print(base::printable(line)); }

  // A report is the last thing that is shown, so it waits for the other hosts to end.
  void take_report(std::size_t host, std::string_view text) {
    const bool waits = reports_.has_new();
    reports_.add(host, text);
    if (waits || !reports_.has_new()) return;
    report_timer_.expires_after(kReportDelay);
    report_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) show_reports();
    });
  }

  void show_reports() {
    for (const auto& report : reports_.take_new()) {
      std::string text;
      const auto add = [&](std::string_view line) {
        text.append(job_.prefixes_lines ? name(report.host) + ": " : "").append(line) += '\n';
      };
      WholeLines lines;
      lines.feed(report.text, add);
      lines.end(add);
      console_.print(text);
    }
  }

  // --- the address of the first host ---

  // It may be a name that only ssh's configuration knows.
  bool asks_for_address() const {
    return job_.hosts.size() > 1 && !job_.has_endpoint && first_address_ == job_.hosts.front().name;
  }

  void ask_for_address() {
    PipedChild::Options options;
    options.command = ssh_configuration_command(job_.hosts.front(), job_.ssh_arguments);
    options.environment = environment_;
    options.own_session = true;
    try {
      question_ = PipedChild::start(io_, options,
                                    {[this](std::string_view bytes) { configuration_ += bytes; },
                                     [](std::string_view) {}, [this](int) { address_answered(); }});
    } catch (const std::system_error&) {
      return connect_more();  // which says what is wrong
    }
    question_->input().close();
    ask_timer_.expires_after(kConfigurationLimit);
    ask_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) question_->kill(SIGKILL);
    });
  }

  void address_answered() {
    ask_timer_.cancel();
    if (auto address = address_in_configuration(configuration_); !address.empty()) first_address_ = std::move(address);
    if (!is_finished_) connect_more();
  }

  // --- hosts come ---

  void connect_more() {
    while (next_ < links_.size() && connecting_ < kConnectingMax && !is_stopped_) {
      ++connecting_;
      const auto host = next_++;
      const auto command = command_for(job_, job_.hosts[host], program_);
      try {
        links_[host]->start(command, environment_, kConnectLimit);
      } catch (const std::system_error& error) {
        throw UsageError("host " + name(host) + " can't be connected: " + error.what(), "starting " + command[0],
                         "`command -v ssh`: the package openssh-client has it; `ulimit -u` is the limit of processes");
      }
    }
  }

  void connected(std::size_t) {
    --connecting_;
    connect_more();
    perform(core_.connected(Clock::now()));
  }

  void ended(std::size_t host, const HostLink::End& end) {
    if (!end.was_connected) {
      --connecting_;
      connect_more();
    }
    console_.end({static_cast<int>(host)});
    if (!core_.has_started()) {
      unreached_[host] = end.reason;
    } else if (!end.reason.empty()) {
      print((end.exit_code ? "ddprun: ddprun can't be started on host " : "ddprun: the connection to host ") +
            name(host) + (end.exit_code ? ": " : " is lost: ") + base::printable(end.reason, kWordBytesMax));
    }
    perform(core_.ended(end.exit_code, end.was_connected, Clock::now()));
  }

  // --- what the core decides ---

  void perform(const HostsCore::Actions& actions) {
    for (const auto& action : actions) std::visit([this](const auto& what) { perform(what); }, action);
    const auto deadline = core_.next_deadline();
    core_timer_.cancel();
    if (!deadline || is_finished_) return;
    core_timer_.expires_at(*deadline);
    core_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) perform(core_.tick(Clock::now()));
    });
  }

  void perform(const HostsCore::StartJob&) {
    tell_unreached("without host ");
    for (std::size_t i = 0; i < links_.size(); ++i) {
      auto& link = *links_[i];
      link.send(FrameKind::directory, directory_);
      for (const auto& variable : job_.variables) link.send(FrameKind::variable, variable);
      if (!job_.token.empty()) link.send(FrameKind::token, job_.token);
      for (const auto& argument : job_.arguments_of(i, first_address_)) link.send(FrameKind::argument, argument);
      link.send(FrameKind::report, "");
      link.send(FrameKind::start, std::to_string(job_.grace.count()));
      if (i > 0) link.send(FrameKind::input, "");
    }
    input_.want();
    say_alive();
  }

  void perform(const HostsCore::TooFewHosts&) {
    std::string text, first;
    std::size_t count = 0;
    for (std::size_t i = 0; i < unreached_.size(); ++i) {
      if (unreached_[i].empty()) continue;
      ++count;
      if (first.empty()) first = job_.hosts[i].target();
      text += "\n       host " + name(i) + ": " + base::printable(unreached_[i], kWordBytesMax);
    }
    console_.print("error: " + rendezvous::counted(static_cast<int>(count), "host") +
                   " can't be used, so the job has not started" + text + "\nwhere: connecting by ssh, from " +
                   base::host_name() + "\ntry:   `ssh -o BatchMode=yes " + quoted_word(first) +
                   " ddprun --version` must work without a question");
  }

  void perform(const HostsCore::StopHosts&) {
    note("ddprun: the job can't go on with the hosts that are left; stopping them");
    send_signal(SIGTERM);
  }

  void perform(const HostsCore::LeaveHosts&) {
    for (auto& link : links_) link->close("it did not end");
    for (auto left = links_.size() - std::exchange(next_, links_.size()); left > 0; --left)
      perform(core_.ended({}, false, Clock::now()));  // it was never begun
  }

  void perform(const HostsCore::Finish& action) {
    exit_code_ = action.exit_code;
    is_finished_ = true;
    input_.close();
    alive_timer_.cancel();
    report_timer_.cancel();
    show_reports();
    console_.when_drained([this] { io_.stop(); });
  }

  void tell_unreached(const std::string& start) {
    for (std::size_t i = 0; i < unreached_.size(); ++i)
      if (!unreached_[i].empty())
        note("ddprun: " + start + name(i) + ": " + base::printable(unreached_[i], kWordBytesMax));
  }

  // --- while the job runs ---

  void say_alive() {
    for (auto& link : links_) link->send(FrameKind::alive, "");
    alive_timer_.expires_after(kAliveInterval);
    alive_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) say_alive();
    });
  }

  void pass_on_input(std::string_view bytes) { links_.front()->send(FrameKind::input, bytes); }

  void send_signal(int number) {
    for (auto& link : links_) link->send(FrameKind::signal, std::to_string(number));
  }

  // --- signals ---

  void listen_for_signals() {
    signals_.async_wait(asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
      if (error) return;
      signalfd_siginfo info;
      while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info)
        take_signal(static_cast<int>(info.ssi_signo));
      listen_for_signals();
    });
  }

  void take_signal(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGWINCH) return console_.resized();
    if (number == SIGTSTP) return suspend();
    if (number == SIGCONT) return input_.continued();
    const auto& forwarded = job_.forward_signals;
    if (std::find(forwarded.begin(), forwarded.end(), number) != forwarded.end()) return send_signal(number);
    if (is_finished_) return io_.stop();  // nobody reads the output that is left
    stop(number);
  }

  void stop(int number) {
    is_stopped_ = true;
    if (!core_.has_started()) note("ddprun: " + rendezvous::signal_name(number) + ": nothing has started");
    send_signal(number);
    perform(core_.stopping(number, Clock::now()));
  }

  // The host first: a process that is stopped tells it nothing.
  void suspend() {
    if (links_.size() > 1)
      return note("ddprun: ctrl-z suspends no job of several hosts: they would take each other for dead");
    send_signal(SIGTSTP);
    suspend_this_process();
    send_signal(SIGCONT);
    input_.continued();
    console_.resized();
  }

  const JobOnHosts& job_;
  const std::vector<std::string>& environment_;
  const std::string program_ = own_program();
  const std::string directory_ = std::filesystem::current_path();
  const std::vector<std::string> names_ = [this] {
    std::vector<std::string> out;
    for (const auto& host : job_.hosts) out.push_back(host.target());
    return out;
  }();
  const sigset_t taken_in_;
  asio::io_context io_{1};
  asio::posix::stream_descriptor signals_;
  Console console_;
  FrontInput input_;
  HostReports reports_;
  HostsCore core_;
  asio::steady_timer core_timer_, alive_timer_, ask_timer_, report_timer_;
  std::string first_address_, configuration_;
  std::shared_ptr<PipedChild> question_;
  std::vector<std::unique_ptr<HostLink>> links_;
  std::vector<std::string> unreached_;  // why, by host; empty: it is reached
  std::size_t next_ = 0, connecting_ = 0;
  bool is_stopped_ = false, is_finished_ = false;
  int exit_code_ = rendezvous::exit_code_of(rendezvous::outcome::NotStarted{});
};

}  // namespace

int run_on_hosts(const JobOnHosts& job, const std::vector<std::string>& environment) {
  return Front(job, environment).run();
}

std::string hosts_plan_text(const JobOnHosts& job) {
  const auto address = first_address_of(job);
  std::string out = "ddprun starts nothing now; this is what it would do\n";
  for (std::size_t i = 0; i < job.hosts.size(); ++i) {
    out += "\nhost " + job.hosts[i].target() + ", node " + std::to_string(i) + "\n  by     ";
    for (const auto& word : command_for(job, job.hosts[i], own_program())) out += " " + quoted_word(word);
    out += "\n  ddprun ";
    for (const auto& argument : job.arguments_of(i, address)) out += " " + quoted_word(argument);
    out += '\n';
  }
  for (const auto& variable : job.variables) out += "\nvariable " + quoted_word(variable) + '\n';
  for (const auto& notice : job.notices) out += "\nnotice " + notice + '\n';
  return out;
}

}  // namespace ddp::launcher
