#include "launcher/agent/guardian_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/pidfd.hpp"
#include "launcher/guardian/cgroup.hpp"
#include "launcher/guardian/process_tree.hpp"

namespace ddp::launcher {
namespace {

constexpr int kKillLimitMs = 30'000;
constexpr std::chrono::milliseconds kKillAtOnce{100};  // then the other nodes hear of the end all the same

}  // namespace

GuardianLink::GuardianLink(const guardian::GuardianOptions& options, int workers)
    : cgroup_(options.cgroup),
      foreign_children_(children_of_this_process()),
      handle_(guardian::start_guardian(options)),
      workers_(static_cast<std::size_t>(workers)) {}

GuardianLink::~GuardianLink() {
  const int limit_ms = tree_survived_ ? 0 : kKillLimitMs;
  if (handle_.pid == 0) {
    if (is_tree_left_) kill_all_children(foreign_children_, limit_ms);
    return;
  }
  ::kill(handle_.pid, SIGCONT);
  const base::UniqueFd ended = base::open_pidfd(handle_.pid);
  ::shutdown(handle_.socket.get(), ended ? SHUT_RDWR : SHUT_WR);
  // Without a pidfd its end of the socket tells, by POLLHUP.
  pollfd wait = ended ? pollfd{ended.get(), POLLIN, 0} : pollfd{handle_.socket.get(), 0, 0};
  if (::poll(&wait, 1, limit_ms) != 1) {
    ::kill(handle_.pid, SIGKILL);
    kill_all_children(foreign_children_, limit_ms);
  }
  ::waitpid(handle_.pid, nullptr, WNOHANG);
}

void GuardianLink::listen(boost::asio::io_context& io, Handlers handlers) {
  const int duplicate = ::fcntl(handle_.socket.get(), F_DUPFD_CLOEXEC, 3);
  if (duplicate < 0) throw std::system_error(errno, std::generic_category(), "the guardian's socket");
  source_.emplace(io, duplicate);
  kill_timer_.emplace(io);
  handlers_ = std::move(handlers);
  // Where it is gone or hangs, its end, and that of its workers, is reported as any other.
  requests_.emplace(io, handle_.socket.get(), [this] {
    if (handle_.pid != 0) ::kill(handle_.pid, SIGKILL);
  });
  wait();
}

void GuardianLink::wait() {
  source_->async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    bool closed = false;
    std::vector<WorkerGroupEvent> events;
    while (auto reports = guardian::receive_reports(source_->native_handle(), closed)) {
      auto pidfd = reports->descriptors.begin();
      for (const auto& report : reports->content) {
        const bool has_pidfd =
            report.kind == guardian::ReportKind::spawned && report.value == 1 && pidfd != reports->descriptors.end();
        take(report, has_pidfd ? std::move(*pidfd++) : base::UniqueFd(), events);
      }
    }
    if (!events.empty()) handlers_.events(events);
    if (!closed) wait();  // else SIGCHLD tells of its end
  });
}

void GuardianLink::take(const guardian::Report& report, base::UniqueFd pidfd, std::vector<WorkerGroupEvent>& events) {
  auto& worker = workers_.at(static_cast<std::size_t>(report.local_rank));
  switch (report.kind) {
    case guardian::ReportKind::spawned:
      worker = {report.pid, std::move(pidfd)};
      events.emplace_back(WorkerStarted{report.local_rank});
      break;
    case guardian::ReportKind::not_spawned:
      worker = {};
      events.emplace_back(WorkerEnded{report.local_rank, {Ending::Kind::not_started, report.value, false}});
      break;
    case guardian::ReportKind::ended:
      worker.pidfd.reset();
      events.emplace_back(
          WorkerEnded{report.local_rank, ending_of(report.value, report.out_of_memory), report.was_ending});
      break;
    case guardian::ReportKind::tree_empty: events.emplace_back(TreeEmpty{}); break;
    case guardian::ReportKind::orphans_gone: events.emplace_back(OrphansGone{}); break;
    case guardian::ReportKind::signalled:
      events.emplace_back(TreeSignalled{report.value});
      handlers_.signalled(report.value);
      break;
    case guardian::ReportKind::forwarded: handlers_.forwarded(report.value); break;
  }
}

void GuardianLink::spawn(int local_rank, std::vector<std::string> variables, const std::array<int, 4>& descriptors) {
  request({guardian::RequestKind::spawn, local_rank, 0, std::move(variables)}, descriptors);
}

void GuardianLink::kill_worker(int local_rank) { request({guardian::RequestKind::kill_worker, local_rank, 0, {}}); }

void GuardianLink::set_farewell(const guardian::Farewell& farewell) {
  std::vector<std::string> variables{farewell.node_key};
  for (const auto& target : farewell.to) {
    variables.push_back(target.address);
    variables.push_back(std::to_string(target.port));
  }
  request({guardian::RequestKind::set_farewell, 0, 0, std::move(variables)});
}

void GuardianLink::signal_tree(int signal_number, const std::vector<int>& spared_local_ranks) {
  std::vector<std::string> spared;
  for (const int local_rank : spared_local_ranks) spared.push_back(std::to_string(local_rank));
  request({guardian::RequestKind::signal_tree, 0, signal_number, std::move(spared)});
}

void GuardianLink::kill_tree() {
  request({guardian::RequestKind::kill_tree, 0, 0, {}});
  for (const auto& worker : workers_)
    if (worker.pidfd) ::syscall(SYS_pidfd_send_signal, worker.pidfd.get(), SIGKILL, nullptr, 0);
}

void GuardianLink::request(const guardian::Request& what, std::span<const int> descriptors) {
  if (handle_.pid != 0) requests_->send(what, descriptors);
}

void GuardianLink::child_ended() {
  int status = 0;
  if (handle_.pid != 0 && ::waitpid(handle_.pid, &status, WNOHANG) == handle_.pid) {
    end_ = GuardianEnd{ending_of(status), std::exchange(handle_.pid, 0)};
    if (!cgroup_.empty()) guardian::kill_cgroup(cgroup_);
    kill_timer_->expires_after(kKillAtOnce);
    kill_timer_->async_wait([this](boost::system::error_code error) {
      if (!error) tell_end();
    });
  }
  if (!end_) return;
  is_tree_left_ = !kill_children_once(foreign_children_);
  if (!is_tree_left_) tell_end();
}

void GuardianLink::tell_end() {
  kill_timer_->cancel();
  if (const auto end = std::exchange(end_, std::nullopt)) handlers_.ended(end->ending, end->pid, is_tree_left_);
}

}  // namespace ddp::launcher
