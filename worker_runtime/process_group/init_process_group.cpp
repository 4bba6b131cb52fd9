#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "ddp/process_group.hpp"
#include "rendezvous/io/host_and_port.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/backends/cpu/cpu_backend.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/backend_choice.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/core/bootstrap/environment.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/process_group/make_group.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/core/bootstrap/rank0_store.hpp"
#include "worker_runtime/core/bootstrap/starter.hpp"
#include "worker_runtime/process_group/two_backends.hpp"
#include "worker_runtime/trace/tracer.hpp"
#if DDP_HAVE_NCCL_BACKEND
#include "worker_runtime/backends/nccl/nccl_backend.hpp"
#endif

namespace ddp {

namespace {

using core::Launch;
using process_group::Membership;

#if DDP_HAVE_NCCL_BACKEND
constexpr bool kHasNccl = true;
#else
constexpr bool kHasNccl = false;
#endif

// What this process was told since it began.
struct LaunchVariables {
  std::mutex mutex;
  std::map<std::string, std::string> values;  // guarded by mutex
};

LaunchVariables& launch_variables() {
  static LaunchVariables variables;
  return variables;
}

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<std::string> variable(const char* name) {
  {
    auto& told = launch_variables();
    const std::lock_guard lock(told.mutex);
    if (const auto found = told.values.find(name); found != told.values.end()) return found->second;
  }
  return core::without_leftovers(environment_variable)(name);
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What this process is to tell of itself, at a failure or all the time, and as whom.
void open_diagnostics(const Launch& launch) {
  flight_recorder::set_place(flight_recorder::place_from(variable));
  flight_recorder::process_recorder().begin_round(launch.round ? to_string(*launch.round) : "");
  trace::set_rank(launch.rank);
  if (const auto prefix = variable("DDP_TRACE"); prefix && !prefix->empty()) trace::begin_default(*prefix, launch.rank);
}

void check(const InitOptions& options) {
  const process_group::BackendChoice choice = process_group::backend_choice(options.backend);
  if (choice.nccl && !kHasNccl) {
    throw InvalidArgument(
        "this build of libddp has no backend nccl: CMake found no CUDA toolkit\ntry:   a build with "
        "CUDA 12 or later (CUDAToolkit_ROOT says where it is), or the backend cpu");
  }
  if (options.device && *options.device < 0) {
    throw InvalidArgument("init_process_group: device " + std::to_string(*options.device) +
                          "\ntry:   a number from 0 on, or none, so that LOCAL_RANK says which");
  }
  if (options.timeout.count() <= 0) {
    throw InvalidArgument("init_process_group: a timeout of " + std::to_string(options.timeout.count()) +
                          " ms\ntry:   a number above 0");
  }
}

// Where nobody gave the ranks a round, rank 0 begins one before they meet, and the others read it after. The key stays:
// a later program's rank 0 writes its own over it before it lets anybody in.
class RoundAgreement {
 public:
  RoundAgreement(const Launch& launch, store::Client& store, const std::string& key_prefix,
                 const io::Deadline& deadline)
      : store_(store), key_(key_prefix + "round"), deadline_(deadline), round_(launch.round) {
    if (round_ || launch.rank != 0) return;
    round_ = rendezvous::begin_term();
    store_.set(key_, to_string(*round_), deadline_.end());
  }

  RoundId after_meeting() {
    if (round_) return *round_;
    const std::string text = store_.get(key_, deadline_.end());
    if (const auto round = parse_round_id(text)) return *round;
    throw StoreError("the key '" + key_ + "' of the store holds '" + text + "', which is no round id");
  }

 private:
  store::Client& store_;
  std::string key_;
  const io::Deadline& deadline_;
  std::optional<RoundId> round_;
};

// The n-th group of this process in a round meets the n-th of the others: name and keys are their own.
std::string next_group_name(const Launch& launch) {
  static std::mutex mutex;
  static std::string round;
  static unsigned group_count = 0;
  const std::lock_guard lock(mutex);
  if (auto prefix = core::store_key_prefix(launch); prefix != round) {
    round = std::move(prefix);
    group_count = 0;
  }
  return "group_" + std::to_string(group_count++);
}

// Requires a build with it. `store` is null for a process that is alone.
std::unique_ptr<process_group::Backend> make_nccl([[maybe_unused]] const InitOptions& options,
                                                  [[maybe_unused]] const Membership& membership,
                                                  [[maybe_unused]] store::Client* store,
                                                  [[maybe_unused]] const std::string& key_prefix,
                                                  [[maybe_unused]] io::Deadline& deadline) {
#if DDP_HAVE_NCCL_BACKEND
  return nccl_backend::make_nccl_backend(
      membership, store, key_prefix,
      {.device = options.device, .share_device = options.share_device, .communicators = options.nccl}, deadline);
#else
  return nullptr;
#endif
}

// The launcher's, or that of rank 0. Requires one of them.
store::Client connect_to_store(const Launch& launch, io::Deadline& deadline) {
  if (!launch.store) return core::connect_to_rank0(launch, variable("DDPRUN_STORE_ALLOW").value_or(""), deadline);
  const auto connect_until = [&](io::Deadline::TimePoint end) {
    return store::Client::connect(
        {.host = launch.store->host, .port = launch.store->port, .deadline = end, .cut = deadline.cut()});
  };
  core::LongWait wait(launch.rank, launch.size, deadline);
  try {
    return connect_until(wait.first_end());
  } catch (const TimeoutError& error) {
    if (wait.first_end() == deadline.end()) throw;
    wait.tell("the launcher's store at " + io::host_and_port(launch.store->host, std::to_string(launch.store->port)));
  }
  return connect_until(deadline.end());
}

core::NetworkOptions network_of(const Launch& launch, const store::Client& store) {
  return core::with_addresses_of(
      store.descriptor(), {.interface = launch.interface, .port_min = launch.ports.min, .port_max = launch.ports.max});
}

core::Meeting meet(const Membership& membership, const core::MeetingPlace& place, io::Deadline& deadline) {
  try {
    return core::meet(membership, place, deadline);
  } catch (const TimeoutError& error) {
    throw TimeoutError(error.what() + core::refusals_of_own_store(), error.ranks());
  }
}

// All ranks meet as those of the cpu backend do, whatever they compute on: a rank that is missing is named, the round
// is agreed on, and what NCCL's ranks tell each other has keys that nobody else has had.
std::unique_ptr<process_group::Backend> join(const Launch& launch, const InitOptions& options, Membership& membership,
                                             io::Deadline& deadline) {
  const process_group::BackendChoice choice = process_group::backend_choice(options.backend);
  std::optional<store::Client> store;
  std::string key_prefix;
  std::optional<core::Meeting> meeting;
  const core::MakeSharedFile make_shared_file =
      choice.cpu ? cpu_backend::SharedMemory::make_file : core::MakeSharedFile();
  if (choice.cpu && launch.lets_any_read) cpu_backend::let_any_process_read_this_one();
  membership.name = next_group_name(launch);  // first, so that one who fails here counts as the others do
  if (launch.store || launch.own_store) {
    key_prefix = core::store_key_prefix(launch) + membership.name + "/";
    store = connect_to_store(launch, deadline);
    RoundAgreement agreement(launch, *store, key_prefix, deadline);
    meeting = meet(membership, {*store, key_prefix, network_of(launch, *store), make_shared_file}, deadline);
    membership.round = agreement.after_meeting();
    if (membership.local_size == 0) {
      const auto& layout = meeting->layout;
      membership.local_rank = layout.index_of(membership.rank);
      membership.local_size = static_cast<int>(layout.ranks_of(layout.host_of(membership.rank)).size());
    }
  } else {
    membership.round = launch.round ? *launch.round : rendezvous::begin_term();
    if (choice.cpu) meeting = core::meet_alone(make_shared_file);
  }
  std::unique_ptr<process_group::Backend> cpu;
  std::unique_ptr<process_group::Backend> nccl;
  if (choice.cpu) cpu = cpu_backend::make_cpu_backend(membership, std::move(*meeting), deadline);
  if (choice.nccl) {
    nccl = make_nccl(options, membership, store ? &*store : nullptr,
                     key_prefix + "nccl_" + to_string(membership.round) + "/", deadline);
  }
  if (launch.own_store) core::leave_rank0(launch, *store, key_prefix, deadline);
  if (!nccl) return cpu;
  return cpu ? process_group::make_two_backends(std::move(cpu), std::move(nccl)) : std::move(nccl);
}

// The same. A rank 0 that serves the store stays, after a failure, until those who have come know of it too: its
// process may end next.
std::unique_ptr<process_group::Backend> join_or_tell(const Launch& launch, const InitOptions& options,
                                                     Membership& membership, io::Deadline& deadline) {
  try {
    return join(launch, options, membership, deadline);
  } catch (const AbortedError&) {
    throw;
  } catch (...) {
    if (launch.own_store && launch.rank == 0) core::wait_for_the_others_to_leave();
    throw;
  }
}

}  // namespace

ProcessGroup DDP_ABI::init_process_group(const InitOptions& options) {
  check(options);
  return ProcessGroup(process_group::make_group(process_group::present_launch(), options, nullptr));
}

namespace process_group {

void set_launch_variables(std::map<std::string, std::string> variables) {
  auto& told = launch_variables();
  const std::lock_guard lock(told.mutex);
  told.values = std::move(variables);
}

Launch present_launch() {
  return core::launch_from(
      variable, [] { return core::name_of_starter(environment_variable("PMI_FD")); }, contents_of);
}

std::shared_ptr<ProcessGroup::Impl> make_group(const Launch& launch, const InitOptions& options, io::Cut* cut) {
  check(options);
  agent_link::open_process_link();
  open_diagnostics(launch);
  io::Deadline deadline = deadline_after(options.timeout);
  deadline.cut_by(cut);
  Membership membership{launch.rank, launch.size, launch.local_rank, launch.local_size, {}, {}};
  auto backend = join_or_tell(launch, options, membership, deadline);
  agent_link::begin_round(membership.round.number);
  return std::make_shared<ProcessGroup::Impl>(membership, options.timeout, std::move(backend));
}

}  // namespace process_group

}  // namespace ddp
