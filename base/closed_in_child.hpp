// Descriptors that a forked child does not keep: one that did would hide its parent's death from who is at the other
// end, or hold its port.
//
// Threads: any.
#pragma once

namespace ddp::base {

// From now on, until keep_in_forked_children(). Throws std::system_error.
void close_in_forked_children(int fd);

// To be called before the descriptor is closed here. Harmless for one that is not known.
void keep_in_forked_children(int fd);

}  // namespace ddp::base
