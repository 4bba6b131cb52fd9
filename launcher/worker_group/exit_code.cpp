#include "launcher/worker_group/exit_code.hpp"

#include <sys/wait.h>

namespace ddp::launcher {

Ending ending_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {Ending::Kind::killed, WTERMSIG(wait_status), WCOREDUMP(wait_status) != 0};
  return {Ending::Kind::exited, WEXITSTATUS(wait_status), false};
}

}  // namespace ddp::launcher
