// How far this process has come, for its agent. Whoever gets further says so here, at any rate and whether or not there
// is an agent: what reaches the agent is bounded (progress_news.hpp).
//
// Threads: any.
// Fork:    a forked child's progress is nobody's.
#pragma once

#include <cstdint>

namespace ddp::agent_link {

void begin_round(std::uint32_t round);  // this process has a group of it; not the first, perhaps

void tell_step();  // a step of the present round is finished
void tell_commits(std::uint64_t commits);
void tell_checkpoint_directory();  // there is one; it may be empty
void tell_checkpoint_saved(std::uint64_t step);

}  // namespace ddp::agent_link
