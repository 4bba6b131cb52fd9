// What every call of the fake NCCL has in common, and the calls of a group: what is called between ncclGroupStart() and
// ncclGroupEnd() begins at its end.
//
// Threads: any; a group is its thread's.
#pragma once

#include "tests/fake_gpu/cudart_call.hpp"
#include "tests/fake_gpu/ledger.hpp"
#include "tests/fake_gpu/nccl_handles.hpp"

#define FAKE_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace ddp::fake_gpu {

// Leaves the text for ncclGetLastError().
Result refuse(Result result, const std::string& text);

// Counts the call; body(fault) is called unless its fault is to return a code.
template <class Body>
Result nccl_call(const char* name, const Body& body) {
  const Fault fault = enter(name);
  if (fault.kind == Fault::Kind::return_code) return refuse(static_cast<Result>(fault.number), "a fault of the test");
  return body(fault);
}

// The same for a call that begins nothing that could hang or be late.
template <class Body>
Result short_nccl_call(const char* name, const Body& body) {
  return nccl_call(name, [&](const Fault& fault) {
    suffer(fault);
    return body();
  });
}

void group_start();
Result group_end();

// A collective, begun now or, inside a group, at its end.
Result collective(const char* name, const Request& request, abi::Comm comm, abi::Stream stream);

}  // namespace ddp::fake_gpu
