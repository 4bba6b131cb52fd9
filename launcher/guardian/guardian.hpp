// The process between ddprun and its workers: their parent, and what ends them when ddprun dies.
//
// It is one fork of ddprun, made before ddprun has a thread or an event loop: subreaper, in a session of its own so
// that no terminal reaches it, deaf to all signals but SIGKILL. It starts workers on request, reports how each ended,
// and when ddprun is gone, by whatever signal, it kills every descendant until `waitpid` says that there are none, and
// ends. Workers die with it (PR_SET_PDEATHSIG); what they leave then becomes ddprun's, a subreaper too.
//
// If ddprun and guardian are both killed at one instant, workers die even then, but their descendants do not. If the
// guardian has a cgroup (cgroup.hpp), the next ddprun ends these.
//
// Threads: start_guardian is called from the main thread, before any other exists.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"
#include "launcher/binding/binding.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "rendezvous/security/tls.hpp"

namespace ddp::launcher::guardian {

struct GuardianOptions {
  Command command;                       // what every worker runs, with ${local_rank} in its arguments
  std::vector<std::string> environment;  // "NAME=value" that all workers share
  sigset_t worker_signal_mask;           // what ddprun was started with, as is the next one
  rlimit worker_descriptor_limit;
  std::vector<Binding> bindings;                         // of each worker, by local rank; empty: none is bound
  std::string scratch_directory;                         // removed if ddprun dies before it could do so
  std::vector<int> ignored_signals{};                    // by workers, until they say otherwise
  std::optional<rlimit> worker_core_limit{};             // where it is not the guardian's own
  std::shared_ptr<const security::Security> security{};  // of the farewell; none: it is plain
  std::string worker_directory{};                        // in which workers start; empty: ddprun's own
  std::string cgroup{};                                  // of the guardian and all below it; empty: ddprun's
  int report_pipe = -1;                                  // ddprun's own descriptor, closed in the guardian; -1: none
};

struct GuardianHandle {
  pid_t pid = 0;
  base::UniqueFd socket;  // protocol.hpp
};

// Throws std::system_error.
GuardianHandle start_guardian(const GuardianOptions& options);

}  // namespace ddp::launcher::guardian
