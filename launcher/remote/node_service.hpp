// A host's side of --hosts: what ssh starts there. It starts the host's ddprun, and connects it with the front.
//
// stdin and stdout speak frames (frames.hpp). If the front's side closes, or says nothing for a minute, the host's
// ddprun is stopped as by SIGTERM: a lost connection ends the node.
#pragma once

namespace ddp::launcher {

// The only argument that begins this.
inline constexpr const char* kNodeServiceOption = "--remote-node";

// Returns the exit code, which says only whether the front was told how ddprun ended.
int serve_remote_node();

}  // namespace ddp::launcher
