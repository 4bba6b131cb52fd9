#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "ddp/bootstrap.hpp"
#include "ddp/process_group.hpp"
#include "worker_runtime/agent_link/process_link.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/core/bootstrap/bootstrap.hpp"
#include "worker_runtime/core/bootstrap/environment.hpp"
#include "worker_runtime/core/bootstrap/rank0_store.hpp"
#include "worker_runtime/core/bootstrap/starter.hpp"
#include "worker_runtime/core/failure/departure.hpp"
#include "worker_runtime/core/failure/verdict.hpp"
#include "worker_runtime/core/registry.hpp"
#include "worker_runtime/files/process_log.hpp"
#include "worker_runtime/flight_recorder/failure_files.hpp"
#include "worker_runtime/flight_recorder/recorder.hpp"
#include "worker_runtime/process_group/backend_choice.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/make_group.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/process_group/two_backends.hpp"
#include "worker_runtime/trace/tracer.hpp"

namespace ddp {

namespace {

using core::Launch;
using process_group::GroupMember;

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

// What this process is to tell of itself, at a failure or all the time, and as whom. A group that the program makes
// beside the launcher's has other ranks. It says who the process is only if no group has said that before.
void open_diagnostics(const Launch& launch) {
  static std::atomic<bool> is_open{false};
  if (is_open.exchange(true) && !launch.is_of_launcher()) return;
  flight_recorder::set_place(flight_recorder::place_from(variable));
  flight_recorder::process_recorder().begin_round(launch.round ? to_string(*launch.round) : "");
  trace::set_rank(launch.rank);
  process_log::set_rank(launch.rank);
  if (const auto prefix = variable("DDP_TRACE"); prefix && !prefix->empty()) trace::begin_default(*prefix, launch.rank);
}

process_group::BackendChoice chosen(const InitOptions& options) {
  return process_group::backend_choice(options.backend, core::registered_backends());
}

void check_options(const InitOptions& options) {
  static_cast<void>(chosen(options));
  if (options.device && *options.device < 0) {
    throw InvalidArgument("init_process_group: device " + std::to_string(*options.device) +
                          "\ntry:   a number from 0 on, or none, so that LOCAL_RANK says which");
  }
  if (options.timeout.count() <= 0) {
    throw InvalidArgument("init_process_group: a timeout of " + std::to_string(options.timeout.count()) +
                          " ms\ntry:   a number above 0");
  }
}

// All ranks meet in the same way, whatever they compute on.
std::unique_ptr<process_group::Backend> join(const Launch& launch, const InitOptions& options, GroupMember& member,
                                             base::Deadline& deadline) {
  const process_group::BackendChoice choice = chosen(options);
  const core::MakeSharedFile make_shared_file = choice.host ? choice.host->make_shared_file : nullptr;
  core::Bootstrap bootstrap =
      core::meet_ranks(launch, make_shared_file, variable("DDPRUN_STORE_ALLOW").value_or(""), deadline);
  member = bootstrap.who;
  std::unique_ptr<process_group::Backend> host;
  std::unique_ptr<process_group::Backend> device;
  if (choice.host != nullptr) host = choice.host->make(bootstrap, options, deadline);
  if (choice.device != nullptr) device = choice.device->make(bootstrap, options, deadline);
  core::leave_store(launch, bootstrap, deadline);
  if (!device) return host;
  return host ? process_group::make_two_backends(std::move(host), std::move(device)) : std::move(device);
}

void log_failure(const std::exception_ptr& failure) {
  if (!failure) return;  // the end of a thread
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    process_log::log({"process_group_not_made", base::LogFields().add("why", text.substr(0, text.find('\n'))),
                      base::LogLevel::error});
  } catch (...) {  // none of ours
  }
}

// Of ranks that did not come to the meeting, or ended in it.
void tell_agent(const Launch& launch, const std::exception_ptr& failure) {
  if (!launch.round || !failure) return;
  core::FailedGroup group;
  group.who.rank = launch.rank;
  group.who.round = *launch.round;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const auto verdict = core::verdict_of(error);
    if (!verdict.ranks.empty()) core::tell_failure(group, verdict);
  } catch (...) {  // none of ours
  }
}

// The same. A rank 0 that serves the store stays, after a failure, until those who have come know of it too: its
// process may end next.
std::unique_ptr<process_group::Backend> join_or_tell(const Launch& launch, const InitOptions& options,
                                                     GroupMember& member, base::Deadline& deadline) {
  try {
    return join(launch, options, member, deadline);
  } catch (const AbortedError&) {
    throw;
  } catch (...) {
    tell_agent(launch, std::current_exception());
    log_failure(std::current_exception());
    if (launch.own_store && launch.rank == 0) core::wait_for_the_others_to_leave();
    throw;
  }
}

}  // namespace

Store::~Store() = default;

void Store::remove(const std::string&, TimePoint) {}

ProcessGroup DDP_ABI::init_process_group(const InitOptions& options) {
  check_options(options);
  return ProcessGroup(process_group::make_group(process_group::present_launch(), options, nullptr));
}

ProcessGroup DDP_ABI::init_process_group(const BootstrapOptions& bootstrap, const InitOptions& options) {
  check_options(options);
  return ProcessGroup(process_group::make_group(core::launch_from(bootstrap), options, nullptr));
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

std::shared_ptr<ProcessGroup::Impl> make_group(const Launch& launch, const InitOptions& options, base::Cut* cut) {
  check_options(options);
  agent_link::open_process_link();
  open_diagnostics(launch);
  base::Deadline deadline = deadline_after(options.timeout);
  deadline.cut_by(cut);
  GroupMember member;
  const auto began = std::chrono::steady_clock::now();
  auto backend = join_or_tell(launch, options, member, deadline);
  process_log::log({"process_group_made",
                    base::LogFields()
                        .add("size", member.size)
                        .add("backend", options.backend.empty() ? "cpu" : options.backend)
                        .add("round", to_string(member.round))
                        .add("took", std::chrono::duration_cast<std::chrono::milliseconds>(
                                         std::chrono::steady_clock::now() - began)),
                    base::LogLevel::info});
  if (launch.is_of_launcher()) agent_link::begin_round(member.round.number);
  return std::make_shared<ProcessGroup::Impl>(member, options.timeout, std::move(backend), launch.is_of_launcher());
}

}  // namespace process_group

}  // namespace ddp
