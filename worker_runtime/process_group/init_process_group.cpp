#include <cstdlib>
#include <mutex>
#include <utility>

#include "ddp/process_group.hpp"
#include "rendezvous/round/term.hpp"
#include "rendezvous/store/client.hpp"
#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/cpu_backend/cpu_backend.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/environment.hpp"
#include "worker_runtime/process_group/make_group.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {

namespace {

using process_group::Launch;
using process_group::Membership;

// What this process was told since it began.
struct LaunchVariables {
  std::mutex mutex;
  std::map<std::string, std::string> values;  // guarded by mutex
};

LaunchVariables& launch_variables() {
  static LaunchVariables variables;
  return variables;
}

std::optional<std::string> variable(const char* name) {
  {
    auto& told = launch_variables();
    const std::lock_guard lock(told.mutex);
    if (const auto found = told.values.find(name); found != told.values.end()) return found->second;
  }
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

void check(const InitOptions& options) {
  if (options.backend == "nccl") {
    throw InvalidArgument("this build of libddp has no backend 'nccl'\ntry:   the backend 'cpu'");
  }
  if (options.backend != "cpu") {
    throw InvalidArgument("there is no backend '" + options.backend + "'\ntry:   the backend 'cpu'");
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

// The n-th group of this process in a round meets the n-th of the others: their keys are their own.
std::string next_key_prefix(const Launch& launch) {
  static std::mutex mutex;
  static std::string round;
  static unsigned group_count = 0;
  const std::lock_guard lock(mutex);
  if (auto prefix = process_group::store_key_prefix(launch); prefix != round) {
    round = std::move(prefix);
    group_count = 0;
  }
  return round + "group_" + std::to_string(group_count++) + "/";
}

std::unique_ptr<process_group::Backend> join(const Launch& launch, Membership& membership, io::Deadline& deadline) {
  if (!launch.store) {
    membership.round = launch.round ? *launch.round : rendezvous::begin_term();
    return cpu_backend::make_cpu_backend(membership, cpu_backend::meet_alone(), deadline);
  }
  const std::string key_prefix = next_key_prefix(launch);  // first, so that one who fails here counts as the others do
  auto store = store::Client::connect({.host = launch.store->host,
                                       .port = launch.store->port,
                                       .deadline = deadline.end(),
                                       .cut = deadline.cut()});
  RoundAgreement agreement(launch, store, key_prefix, deadline);
  const cpu_backend::NetworkOptions network{launch.interface, launch.ports.min, launch.ports.max, store.descriptor()};
  auto meeting = cpu_backend::meet(membership, {store, key_prefix, network}, deadline);
  membership.round = agreement.after_meeting();
  return cpu_backend::make_cpu_backend(membership, std::move(meeting), deadline);
}

}  // namespace

ProcessGroup init_process_group(const InitOptions& options) {
  check(options);
  return ProcessGroup(process_group::make_group(process_group::present_launch(), options, nullptr));
}

namespace process_group {

void set_launch_variables(std::map<std::string, std::string> variables) {
  auto& told = launch_variables();
  const std::lock_guard lock(told.mutex);
  told.values = std::move(variables);
}

Launch present_launch() { return launch_from(variable); }

std::shared_ptr<ProcessGroup::Impl> make_group(const Launch& launch, const InitOptions& options, io::Cut* cut) {
  check(options);
  agent_link::open_process_link();
  io::Deadline deadline = deadline_after(options.timeout);
  deadline.cut_by(cut);
  Membership membership{launch.rank, launch.size, launch.local_rank, launch.local_size, {}};
  auto backend = join(launch, membership, deadline);
  agent_link::begin_round(membership.round.number);
  return std::make_shared<ProcessGroup::Impl>(membership, options.timeout, std::move(backend));
}

}  // namespace process_group

}  // namespace ddp
