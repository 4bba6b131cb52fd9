#include "worker_runtime/core/bootstrap/environment.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/address.hpp"
#include "base/fnv1a.hpp"
#include "rendezvous/slurm/step.hpp"

namespace ddp::core {

namespace {

constexpr std::array kNames{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};

// What ddprun makes for each worker, of what this library reads.
constexpr std::array<std::string_view, 12> kOfOneWorker{"RANK",
                                                        "WORLD_SIZE",
                                                        "LOCAL_RANK",
                                                        "LOCAL_WORLD_SIZE",
                                                        "MASTER_ADDR",
                                                        "MASTER_PORT",
                                                        "TORCHELASTIC_RESTART_COUNT",
                                                        "TORCHELASTIC_RUN_ID",
                                                        "TORCHELASTIC_USE_AGENT_STORE",
                                                        "DDPRUN_ROUND_ID",
                                                        "DDPRUN_ROUND_DIRECTORY",
                                                        "DDPRUN_AGENT_SOCKET"};

[[noreturn]] void refuse(const std::string& what, const std::string& advice) {
  throw InvalidArgument(what +
                        "\nwhere: the environment of this process, read by init_process_group()\ntry:   " + advice);
}

std::string names_that_are_set(const Lookup& variable) {
  std::string names;
  for (const char* name : kNames) {
    if (variable(name)) names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

std::string required(const Lookup& variable, const char* name) {
  if (auto value = variable(name)) return *value;
  refuse(std::string(name) +
             " is not set, but of the variables that go with it these are: " + names_that_are_set(variable),
         "start the program with ddprun or torchrun, which set all of them, or unset all for a single process");
}

struct Bounds {
  int min = 0;
  int max = 0;
};

int parse_decimal(const char* name, const std::string& text, Bounds bounds) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  const bool is_number = !text.empty() && text.front() != '-' && result.ec == std::errc{} && result.ptr == end;
  if (is_number && value >= bounds.min && value <= bounds.max) return value;
  refuse(std::string(name) + " is '" + text + "'",
         "a decimal number from " + std::to_string(bounds.min) + " to " + std::to_string(bounds.max));
}

int optional_decimal(const Lookup& variable, const char* name, Bounds bounds, int otherwise) {
  const auto text = variable(name);
  return text ? parse_decimal(name, *text, bounds) : otherwise;
}

StoreAddress store_from(const Lookup& variable) {
  StoreAddress store;
  store.host = required(variable, "MASTER_ADDR");
  if (store.host.empty()) refuse("MASTER_ADDR is empty", "the name or address of the host with the store");
  const Bounds ports{1, std::numeric_limits<std::uint16_t>::max()};
  store.port = static_cast<std::uint16_t>(parse_decimal("MASTER_PORT", required(variable, "MASTER_PORT"), ports));
  return store;
}

std::optional<RoundId> round_from(const Lookup& variable) {
  const auto text = variable("DDPRUN_ROUND_ID");
  if (!text) return std::nullopt;
  if (auto round = parse_round_id(*text)) return round;
  refuse("DDPRUN_ROUND_ID is '" + *text + "'",
         "leave it as ddprun set it, in the form 1763723112-9f3a17c2b4d8e6f0-3, or unset it");
}

// What a launcher calls the four.
struct Names {
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Names kTorchrun{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                         "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kHydra{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

void require_below(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank < size) return;
  refuse(std::string(rank_name) + " is " + std::to_string(rank) + ", but " + size_name + " is " + std::to_string(size),
         std::string(rank_name) + " counts from 0 to " + size_name + " - 1");
}

void require_sense(const Launch& launch, const Names& names) {
  require_below(names.rank, launch.rank, names.size, launch.size);
  require_below(names.local_rank, launch.local_rank, names.local_size, launch.local_size);
  if (launch.local_size <= launch.size) return;
  refuse(std::string(names.local_size) + " is " + std::to_string(launch.local_size) + ", but " + names.size + " is " +
             std::to_string(launch.size),
         std::string(names.local_size) + " counts the ranks of this host, " + names.size + " those of all hosts");
}

PortRange ports_from(const Lookup& variable) {
  const auto text = variable("DDPRUN_PORT_RANGE");
  if (!text) return {};
  const Bounds ports{1, std::numeric_limits<std::uint16_t>::max()};
  const auto dash = text->find('-');
  if (dash != std::string::npos) {
    const int min = parse_decimal("the first of DDPRUN_PORT_RANGE", text->substr(0, dash), ports);
    const int max = parse_decimal("the last of DDPRUN_PORT_RANGE", text->substr(dash + 1), ports);
    if (min <= max) return {static_cast<std::uint16_t>(min), static_cast<std::uint16_t>(max)};
  }
  refuse("DDPRUN_PORT_RANGE is '" + *text + "'", "two ports, as in 29500-29600");
}

bool is_set(const Lookup& variable, const char* name) { return variable(name).has_value(); }

bool is_set(const Lookup& variable, const std::array<const char*, 4>& names) {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return is_set(variable, name); });
}

bool has_names_of_open_mpi(const Lookup& variable) {
  return is_set(variable, {kOpenMpi.rank, kOpenMpi.size, kOpenMpi.local_rank, kOpenMpi.local_size});
}

bool has_pmi(const Lookup& variable) { return is_set(variable, kHydra.rank) || is_set(variable, kHydra.size); }

// srun sets PMI_RANK and PMI_SIZE too, for programs that use MPI; what Hydra has beside them is its own.
bool has_names_of_hydra(const Lookup& variable) { return has_pmi(variable) && is_set(variable, kHydra.local_size); }

// Refuses a rank of one that is a task among several of its node: `mpirun -np 1` started a driver, which called srun.
// Open MPI's own daemons, whose step its ranks inherit, are one on each node, and there it is left open which of the
// two is further in.
void require_no_larger_step(const Lookup& variable) {
  if (variable(kOpenMpi.size) != "1") return;
  std::optional<slurm::Step> step;
  try {
    step = slurm::step_of([&](const std::string& name) { return variable(name.c_str()); });
  } catch (const InvalidArgument&) {  // Open MPI has its own names: errors in those of Slurm do not matter
  }
  if (!step || step->tasks <= static_cast<int>(step->nodes.size())) return;
  refuse(std::string(kOpenMpi.size) + " is 1, but this is a task of " + std::to_string(step->tasks) + " in step " +
             slurm::name_of(*step) +
             " of Slurm (SLURM_STEP_NUM_TASKS): one of the two is left over from a launcher "
             "further out",
         "for the tasks of srun as ranks `env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u "
         "OMPI_COMM_WORLD_LOCAL_RANK -u OMPI_COMM_WORLD_LOCAL_SIZE srun ...`; for those of mpirun "
         "`env -u SLURM_STEP_ID mpirun ...`");
}

int decimal_of(const Lookup& variable, const char* name, Bounds bounds, const std::string& launcher) {
  if (const auto text = variable(name)) return parse_decimal(name, *text, bounds);
  refuse(std::string(name) + " is not set, but others of " + launcher + " are",
         "start the program with " + launcher + ", which sets all of them, or unset them for a single process");
}

Launch launched_by_mpirun(const Lookup& variable, const Names& names, const std::string& launcher) {
  Launch launch;
  launch.size = decimal_of(variable, names.size, {1, kSizeMax}, launcher);
  launch.rank = decimal_of(variable, names.rank, {0, kSizeMax - 1}, launcher);
  launch.local_size = decimal_of(variable, names.local_size, {1, kSizeMax}, launcher);
  launch.local_rank = decimal_of(variable, names.local_rank, {0, kSizeMax - 1}, launcher);
  require_sense(launch, names);
  return launch;
}

bool has_launchers_store(const Lookup& variable) { return variable("TORCHELASTIC_USE_AGENT_STORE") == "True"; }

bool is_this_host(const std::string& host) {
  const auto address = base::parse_address(host);
  return address ? address->is_loopback() : host == "localhost";
}

// Where all ranks look for the store: at the same ports.
void meet_at(const slurm::Ports& ports, const OwnStore& store, Launch& launch) {
  launch.own_store = store;
  launch.own_store->first_port = ports.first;
  launch.own_store->port_count = ports.count;
}

// As MASTER_ADDR and MASTER_PORT say it; false where neither is set.
bool meets_at_master(const Lookup& variable, OwnStore store, Launch& launch) {
  const bool has_address = is_set(variable, "MASTER_ADDR");
  const bool has_port = is_set(variable, "MASTER_PORT");
  if (!has_address && !has_port) return false;
  if (!has_address || !has_port) {
    refuse(std::string(has_address ? "MASTER_ADDR" : "MASTER_PORT") + " is set, but " +
               (has_address ? "MASTER_PORT" : "MASTER_ADDR") + " is not",
           "both for all ranks, where rank 0 is and a free port there, or neither");
  }
  const StoreAddress address = store_from(variable);
  if (has_launchers_store(variable)) {
    launch.store = address;
    return true;
  }
  const bool is_one_host = launch.local_size == launch.size;
  if (!is_one_host || !is_this_host(address.host)) store.host = address.host;
  meet_at({address.port, 1}, store, launch);
  return true;
}

Launch launched_by_torchrun(const Lookup& variable) {
  Launch launch;
  launch.size = parse_decimal("WORLD_SIZE", required(variable, "WORLD_SIZE"), {1, kSizeMax});
  launch.rank = parse_decimal("RANK", required(variable, "RANK"), {0, kSizeMax - 1});
  require_below("RANK", launch.rank, "WORLD_SIZE", launch.size);
  launch.local_size = optional_decimal(variable, "LOCAL_WORLD_SIZE", {1, kSizeMax}, 0);
  launch.local_rank = optional_decimal(variable, "LOCAL_RANK", {0, kSizeMax - 1}, -1);
  launch.restart_count =
      optional_decimal(variable, "TORCHELASTIC_RESTART_COUNT", {0, std::numeric_limits<int>::max()}, 0);
  const StoreAddress master = launch.size > 1 ? store_from(variable) : StoreAddress();
  // A launcher that serves the store on loopback starts all ranks on this host. A script may have MASTER_ADDR=localhost
  // on rank 0 alone.
  if (launch.size == 1 || (has_launchers_store(variable) && is_this_host(master.host))) {
    if (launch.local_rank < 0) launch.local_rank = launch.rank;
    if (launch.local_size == 0) launch.local_size = launch.size;
  }
  if (launch.local_rank < 0 || launch.local_size == 0) {
    launch.local_rank = -1;
    launch.local_size = 0;
  } else {
    require_sense(launch, kTorchrun);
  }
  if (launch.size == 1) return launch;
  OwnStore store;
  store.job = std::to_string(launch.size) + " ranks at port " + std::to_string(master.port);
  store.rank_name = "RANK";
  store.is_here = launch.rank == 0 || launch.local_size == launch.size;
  meets_at_master(variable, store, launch);
  return launch;
}

// What a batch system says of a job of its: its name, and its hosts, of which mpirun starts rank 0 on the first.
struct BatchJob {
  std::string name;
  std::vector<std::string> hosts;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Without hosts where there is no such job.
BatchJob batch_job_of(const Lookup& variable, const ReadFile& read_file) {
  const auto value = [&](const char* name) { return variable(name).value_or(""); };
  BatchJob job{"LSF " + value("LSB_JOBID") + "[" + value("LSB_JOBINDEX") + "]", {}};
  if (is_set(variable, "PBS_NODEFILE"))
    job = {"PBS " + value("PBS_JOBID"), words_of(read_file(value("PBS_NODEFILE")))};
  else if (is_set(variable, "LSB_DJOB_HOSTFILE"))
    job.hosts = words_of(read_file(value("LSB_DJOB_HOSTFILE")));
  if (job.hosts.empty()) {  // each with its slots: "n1 8 n2 8"
    const auto words = words_of(value("LSB_MCPU_HOSTS"));
    for (std::size_t i = 0; i < words.size(); i += 2) job.hosts.push_back(words[i]);
  }
  std::vector<std::string> hosts;  // each once, in their order
  for (const auto& host : job.hosts)
    if (base::is_host(host) && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  job.hosts = std::move(hosts);
  return job;
}

// `job`: as Open MPI names it. Hydra does not: empty.
void meet_as_of_mpirun(const Lookup& variable, const Names& names, const std::string& launcher, std::string job,
                       const NameOfStarter& name_of_starter, const ReadFile& read_file, Launch& launch) {
  const bool is_one_host = launch.local_size == launch.size;
  const bool has_master = is_set(variable, "MASTER_ADDR") || is_set(variable, "MASTER_PORT");
  const auto batch = is_one_host || has_master ? BatchJob() : batch_job_of(variable, read_file);
  const bool is_named = !job.empty();
  if (!is_named && !batch.hosts.empty()) job = batch.name + ", " + std::to_string(launch.size) + " ranks";
  if (job.empty()) job = is_one_host && !has_master ? name_of_starter() : std::to_string(launch.size) + " ranks";
  OwnStore store;
  store.job = launcher + " " + job;
  store.rank_name = names.rank;
  store.is_here = is_one_host || launch.rank == 0;
  if (meets_at_master(variable, store, launch)) return;
  if (!batch.hosts.empty()) {
    store.host = batch.hosts.front();
    store.nodes = batch.hosts;
  } else if (!is_one_host) {
    refuse("the ranks are on several hosts (" + std::string(names.local_size) + " is " +
               std::to_string(launch.local_size) + ", " + names.size + " is " + std::to_string(launch.size) +
               "), and nothing says where rank 0 is: MASTER_ADDR and MASTER_PORT are not set",
           "MASTER_ADDR=the name of rank 0's host, as the others reach it, and MASTER_PORT=a free port there, for all "
           "ranks: `mpirun -x MASTER_ADDR=node0 -x MASTER_PORT=29500` with Open MPI, `mpirun -genv MASTER_ADDR node0 "
           "-genv MASTER_PORT 29500` with MPICH");
  }
  auto ports = slurm::ports_of(base::fnv1a(store.job));  // where the ranks of a step meet, too
  // Two mpiruns of one batch job may have the same name: on one port they can't mix, as the second finds it taken.
  if (!is_named && !batch.hosts.empty()) ports.count = 1;
  meet_at(ports, store, launch);
}

// What Open MPI's runtime calls the job. The second is random, as the first is made of a process id; later versions
// have no such thing.
std::string job_of_open_mpi(const Lookup& variable) {
  const auto name = variable("PMIX_NAMESPACE");
  const auto random = variable("OMPI_MCA_orte_precondition_transports");
  return name ? *name + (random ? " " + *random : "") : "";
}

Launch launched_by_srun(const Lookup& variable, const slurm::Step& step) {
  Launch launch;
  launch.rank = step.task_rank;
  launch.size = step.tasks;
  launch.local_rank = step.local_rank;
  launch.local_size = step.local_tasks;
  if (launch.size == 1) return launch;
  OwnStore store;
  store.job = "slurm " + slurm::run_id_of(step);
  store.rank_name = "SLURM_PROCID";
  store.nodes = step.nodes;
  store.is_slurm = true;
  store.is_here = launch.rank == 0 || step.nodes.size() == 1;
  if (meets_at_master(variable, store, launch)) return launch;
  if (launch.rank == 0 && step.node_index != 0) {
    refuse("SLURM_PROCID is 0 on " + step.nodes[static_cast<std::size_t>(step.node_index)] +
               ", but the others look for rank 0 on the first node of SLURM_STEP_NODELIST, which is " + step.nodes[0],
           "another --distribution of srun, or MASTER_ADDR and MASTER_PORT of rank 0's host for all tasks");
  }
  store.is_here = step.node_index == 0;
  if (step.nodes.size() > 1) store.host = step.nodes[0];
  meet_at(slurm::ports_of(step), store, launch);
  return launch;
}

// ["algo-1", "algo-2"]: a JSON list of host names, in which nothing needs an escape. Empty for anything else.
std::vector<std::string> hosts_in_json(const std::string& text) {
  std::string plain;
  for (const char c : text)
    if (c != ' ') plain += c;
  if (plain.size() < 4 || plain.substr(0, 2) != "[\"" || plain.substr(plain.size() - 2) != "\"]") return {};
  plain = plain.substr(2, plain.size() - 4);
  std::vector<std::string> hosts;
  for (std::size_t begin = 0; begin <= plain.size();) {
    const auto end = std::min(plain.find("\",\"", begin), plain.size());
    hosts.push_back(plain.substr(begin, end - begin));
    if (!base::is_host(hosts.back())) return {};
    begin = end + 3;
  }
  return hosts;
}

// One process on each host, in the order of SM_HOSTS.
Launch launched_by_sagemaker(const Lookup& variable) {
  const auto text = variable("SM_HOSTS").value_or("");
  const auto hosts = hosts_in_json(text);
  const auto own = variable("SM_CURRENT_HOST").value_or("");
  const auto at = std::find(hosts.begin(), hosts.end(), own);
  if (at == hosts.end())
    refuse("SM_CURRENT_HOST is '" + own + "', which is none of SM_HOSTS, '" + text + "'",
           "leave both as SageMaker set them, or unset SM_HOSTS for a single process");
  Launch launch;
  launch.size = static_cast<int>(hosts.size());
  launch.rank = static_cast<int>(at - hosts.begin());
  if (launch.size == 1) return launch;
  OwnStore store;
  store.job = "SageMaker " + variable("TRAINING_JOB_NAME").value_or(text);
  store.rank_name = "SM_CURRENT_HOST";
  store.nodes = hosts;
  store.is_here = launch.rank == 0;
  if (meets_at_master(variable, store, launch)) return launch;
  store.host = hosts.front();
  meet_at(slurm::ports_of(base::fnv1a(store.job)), store, launch);
  return launch;
}

// Whatever started it; an unknown launcher gives a group of one.
Launch launched_by_whom(const Lookup& variable, const NameOfStarter& name_of_starter, const ReadFile& read_file) {
  const auto of_mpirun = [&](const Names& names, const std::string& launcher, const std::string& job) {
    Launch launch = launched_by_mpirun(variable, names, launcher);
    if (launch.size > 1) meet_as_of_mpirun(variable, names, launcher, job, name_of_starter, read_file, launch);
    return launch;
  };
  if (is_set(variable, {kTorchrun.rank, kTorchrun.size, kTorchrun.local_rank, kTorchrun.local_size}))
    return launched_by_torchrun(variable);
  if (has_names_of_open_mpi(variable)) {
    require_no_larger_step(variable);
    return of_mpirun(kOpenMpi, "Open MPI's mpirun", job_of_open_mpi(variable));
  }
  if (has_names_of_hydra(variable)) return of_mpirun(kHydra, "MPICH's mpirun", "");
  const auto step = slurm::step_of([&](const std::string& name) { return variable(name.c_str()); });
  if (step) return launched_by_srun(variable, *step);
  if (has_pmi(variable)) return of_mpirun(kHydra, "MPICH's mpirun", "");  // which names what is missing
  if (is_set(variable, "SM_HOSTS")) return launched_by_sagemaker(variable);
  if (names_that_are_set(variable).empty()) return {};
  return launched_by_torchrun(variable);  // which names what is missing
}

bool lets_any_read(const Lookup& variable) {
  const std::string value = variable("DDP_PTRACE").value_or("");
  if (value.empty() || value == "any") return value == "any";
  throw InvalidArgument(
      "DDP_PTRACE is '" + value +
      "'\ntry:   DDP_PTRACE=any, which lets every process of the same user read this one's memory and "
      "attach to it; or unset it");
}

}  // namespace

Lookup without_leftovers(Lookup variable) {
  const bool has_round = is_set(variable, "DDPRUN_ROUND_ID");
  const bool is_of_mpirun = has_round && (has_names_of_open_mpi(variable) || has_names_of_hydra(variable));
  if (!is_of_mpirun && !slurm::is_left_by_another_step([&](const std::string& name) { return variable(name.c_str()); }))
    return variable;
  return [variable = std::move(variable)](const char* name) -> std::optional<std::string> {
    const bool is_left = std::find(kOfOneWorker.begin(), kOfOneWorker.end(), name) != kOfOneWorker.end();
    return is_left ? std::nullopt : variable(name);
  };
}

Launch launch_from(const Lookup& all, const NameOfStarter& name_of_starter, const ReadFile& read_file) {
  const Lookup variable = without_leftovers(all);
  Launch launch = launched_by_whom(variable, name_of_starter, read_file);
  launch.round = round_from(variable);
  launch.lets_any_read = lets_any_read(variable);
  if (launch.local_size < launch.size) {
    launch.ports = ports_from(variable);
    launch.interface = variable("DDP_SOCKET_IFNAME").value_or("");
  }
  return launch;
}

}  // namespace ddp::core
