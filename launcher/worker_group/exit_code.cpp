#include "launcher/worker_group/exit_code.hpp"

#include <sys/wait.h>

namespace ddp::launcher {

Ending ending_of(int wait_status, std::optional<bool> out_of_memory) {
  if (WIFSIGNALED(wait_status))
    return {Ending::Kind::killed, WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0, out_of_memory};
  return {Ending::Kind::exited, WEXITSTATUS(wait_status), false};
}

}  // namespace ddp::launcher
