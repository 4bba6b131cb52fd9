#include "tests/fake_gpu/nccl_call.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/fake_gpu/cudart_handles.hpp"
#include "tests/fake_gpu/nccl_log.hpp"

namespace ddp::fake_gpu {

namespace {

struct CallsOfOne {
  abi::Comm comm;
  std::vector<Call> calls;
};

struct Group {
  int depth = 0;
  Result error = Result::success;  // the first
  std::vector<CallsOfOne> comms;   // in the order of their first calls
};

thread_local Group group;

void add_to_group(abi::Comm comm, Call call) {
  auto found =
      std::find_if(group.comms.begin(), group.comms.end(), [&](const auto& each) { return each.comm == comm; });
  if (found == group.comms.end()) found = group.comms.insert(found, {comm, {}});
  found->calls.push_back(std::move(call));
}

Result launch(abi::Comm comm, const std::vector<Call>& calls) {
  const Use use(comm);
  if (!use) return Result::invalid_argument;
  const Result ready = use->readiness();
  return ready == Result::success ? use->begin_launch(calls) : ready;
}

Result begin_or_add(const Request& request, abi::Comm comm, abi::Stream stream_handle, const Fault& fault) {
  Call call{.request = request, .fault = fault, .stream = stream_of(stream_handle)};
  if (device_is_lost()) return refuse(Result::unhandled_cuda_error, "the device is lost");
  {
    const Use use(comm);
    if (!use) return Result::invalid_argument;
    if (const Result ready = use->readiness(); ready != Result::success) return ready;
    if (call.stream == nullptr) return refuse(Result::invalid_argument, "there is no such stream");
    if (device_of(*call.stream) != use->place().device)
      return refuse(Result::invalid_argument, "the stream is of another device than the communicator");
    if (const auto factor = use->factor_of(request.op, request.type)) {
      call.request.op = abi::RedOp::sum;
      call.request.factor = factor;
    }
    if (const std::string mistake = mistake_in(call.request, use->place()); !mistake.empty())
      return refuse(Result::invalid_argument, mistake);
  }
  if (group.depth == 0) return launch(comm, {std::move(call)});
  add_to_group(comm, std::move(call));
  return Result::success;
}

}  // namespace

Result refuse(Result result, const std::string& text) {
  set_last_error(text);
  return result;
}

void group_start() { ++group.depth; }

Result group_end() {
  if (group.depth == 0) return refuse(Result::invalid_usage, "ncclGroupEnd without an ncclGroupStart");
  if (--group.depth > 0) return Result::success;
  const Group ended = std::exchange(group, {});
  if (ended.error != Result::success) return ended.error;
  Result result = Result::success;
  for (const CallsOfOne& each : ended.comms) {
    const Result launched = launch(each.comm, each.calls);
    if (launched == Result::success) continue;
    if (launched != Result::in_progress) return launched;
    result = launched;
  }
  return result;
}

Result collective(const char* name, const Request& request, abi::Comm comm, abi::Stream stream) {
  const Result result = nccl_call(name, [&](const Fault& fault) { return begin_or_add(request, comm, stream, fault); });
  if (group.depth > 0 && group.error == Result::success) group.error = result;
  return result;
}

}  // namespace ddp::fake_gpu
