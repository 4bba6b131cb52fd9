// The agent's side of its guardian: requests to it, what it reports, and its end.
//
// Threads: the program's main thread. The constructor forks, so it comes before the event loop and any thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/agent/guardian_requests.hpp"
#include "launcher/guardian/guardian.hpp"
#include "launcher/guardian/protocol.hpp"
#include "launcher/worker_group/worker_group.hpp"

namespace ddp::launcher {

class GuardianLink {
 public:
  struct Handlers {
    std::function<void(const std::vector<WorkerGroupEvent>& events)> events;  // that happened at one instant
    std::function<void(int signal_number)> signalled;                         // a signal_tree() was carried out
    std::function<void(int workers)> forwarded;                               // a forward() was, to so many
    // The guardian has ended; is_tree_left: something that it left has not, so the destructor waits for it.
    std::function<void(const Ending& ending, pid_t pid, bool is_tree_left)> ended{};
  };

  // Forks the guardian. Throws std::system_error.
  GuardianLink(const guardian::GuardianOptions& options, int workers);

  // Whatever happened: nothing of the job outlives this object, but what does not end of SIGKILL within 30 s. The
  // guardian ends when its tree is empty.
  ~GuardianLink();
  GuardianLink(const GuardianLink&) = delete;

  // Goes before all that follows.
  void listen(boost::asio::io_context& io, Handlers handlers);

  void spawn(int local_rank, std::vector<std::string> variables, const std::array<int, 4>& descriptors);
  void signal_worker(int local_rank, int signal_number) {
    request({guardian::RequestKind::signal_worker, local_rank, signal_number, {}});
  }
  void kill_worker(int local_rank);
  void signal_tree(int signal_number, const std::vector<int>& spared_local_ranks);
  void forward(int signal_number) { request({guardian::RequestKind::forward_signal, 0, signal_number, {}}); }
  void kill_orphans() { request({guardian::RequestKind::kill_orphans, 0, 0, {}}); }
  void set_farewell(const guardian::Farewell& farewell);
  void kill_tree();  // even if the guardian itself hangs

  pid_t pid_of(int local_rank) const { return workers_[static_cast<std::size_t>(local_rank)].pid; }

  // Some child of this process has ended. If it was the guardian, all that it left is killed; `ended` is called once
  // nothing of that is left, or after a tenth of a second. Does not block.
  void child_ended();
  pid_t pid() const { return handle_.pid; }  // 0 once it has ended

  // Processes of the job are left that cannot be killed: they are not waited for any more.
  void give_up() { tree_survived_ = true; }

 private:
  struct SpawnedWorker {
    pid_t pid = 0;
    base::UniqueFd pidfd;  // while it runs
  };

  struct GuardianEnd {
    Ending ending;
    pid_t pid = 0;
  };

  void tell_end();
  void request(const guardian::Request& what, std::span<const int> descriptors = {});
  void wait();
  void take(const guardian::Report& report, base::UniqueFd pidfd, std::vector<WorkerGroupEvent>& events);

  const std::string cgroup_;          // the guardian's; empty: ddprun's
  std::set<pid_t> foreign_children_;  // of who was this process before; not ours to end
  guardian::GuardianHandle handle_;
  std::optional<boost::asio::posix::stream_descriptor> source_;
  std::optional<GuardianRequests> requests_;
  std::optional<boost::asio::steady_timer> kill_timer_;
  std::optional<GuardianEnd> end_;  // until it is told
  Handlers handlers_;
  std::vector<SpawnedWorker> workers_;
  bool tree_survived_ = false;
  bool is_tree_left_ = false;
};

}  // namespace ddp::launcher
