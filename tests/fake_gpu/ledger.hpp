// What this process has called and holds, and which fault is meant for a call.
//
// Threads: any.
#pragma once

#include "tests/fake_gpu/faults.hpp"

namespace ddp::fake_gpu {

// Counts a call and looks up its fault. A fault of the kind `die` happens here. A mistake in FAKE_GPU_FAULTS aborts.
Fault enter(const char* call);

// What a fault does to a call that begins nothing which could hang or be late in its place: the call itself does.
void suffer(const Fault& fault);

void count(const char* what);  // as a call, but without a fault
void made(const char* kind);
void gone(const char* kind);

unsigned long calls(const char* name);
unsigned long live(const char* kind);

// Whether the process that called first, since the last restart, was another: a parent. CUDA does not survive a fork.
bool in_forked_child();

[[noreturn]] void kill_this_process();
[[noreturn]] void hang_for_ever();

void restart_ledger();

}  // namespace ddp::fake_gpu
