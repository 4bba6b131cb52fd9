#include "launcher/command_line/slurm_defaults.hpp"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>

#include "base/address.hpp"
#include "base/host_and_port.hpp"
#include "base/loopback.hpp"
#include "ddp/error.hpp"
#include "launcher/command_line/machine.hpp"
#include "launcher/command_line/option_values.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kKillWait{30};  // Slurm's default
constexpr std::chrono::seconds kGraceMargin{5}, kGraceMin{1};
constexpr const char* kSlurmConf = "/etc/slurm/slurm.conf";

// An empty endpoint or id is none, as everywhere.
const GivenOption* find_filled(const GivenOptions& given, std::string_view name) {
  const auto* option = given.find(name);
  return option == nullptr || option->value.empty() ? nullptr : option;
}

// PET_<NAME>, which may be left over from another job.
bool is_torchruns_default(const GivenOption& option) { return option.from == GivenOption::From::torchrun_variable; }

bool says_where_to_meet(const GivenOptions& given) {
  return given.is_on("standalone") || find_filled(given, "rdzv-endpoint") != nullptr ||
         given.find("master-addr") != nullptr;
}

bool is_here_only(const GivenOptions& given) {
  const auto* endpoint = find_filled(given, "rdzv-endpoint");
  const auto* address = given.find("master-addr");
  return (endpoint != nullptr && base::is_loopback_host(endpoint_of(*endpoint).host)) ||
         (address != nullptr && base::is_loopback_host(host_of(*address)));
}

std::string nodes_text(std::size_t count) { return std::to_string(count) + (count == 1 ? " node" : " nodes"); }

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

class SlurmRendezvousReader {
 public:
  SlurmRendezvousReader(const slurm::Step& step, const GivenOptions& given, std::vector<std::string>& notices,
                        SlurmFacts& facts)
      : step_(step), notices_(notices), facts_(facts) {
    out_.options = given;
  }

  SlurmRendezvous take() {
    const auto* asked = given().find("nnodes");
    nodes_max_ = asked == nullptr ? static_cast<int>(nodes()) : node_counts_of(*asked).second;
    check_left_over();
    if (given().is_on("standalone") || ((asked == nullptr || nodes_max_ == 1) && is_here_only(given()))) {
      say_alone(why_alone());
      return out_;
    }
    check_tasks();
    if (nodes() > 1 && asked == nullptr) {
      set("nnodes", std::to_string(nodes()), "SLURM_STEP_NODELIST");
      fact(nodes_text(nodes()), "SLURM_STEP_NODELIST");
    }
    if (nodes_max_ > 1) {
      is_static() ? meet_static() : meet_dynamic();
    } else {
      if (asked != nullptr) say_alone(asked->where);
      if (!says_where_to_meet(given()) && given().find("master-port") == nullptr && !are_tasks_parted()) give_id();
    }
    return out_;
  }

 private:
  const GivenOptions& given() const { return out_.options; }
  std::size_t nodes() const { return step_.nodes.size(); }
  // Else nodes of other steps take part, each of which counts its own from 0.
  bool is_job_of_step() const { return nodes() > 1 && static_cast<std::size_t>(nodes_max_) <= nodes(); }

  void set(std::string_view name, std::string value, const std::string& from) {
    auto where = from + (value == "c10d" ? "" : ", which gives --" + std::string(name) + "=" + value);
    out_.options.set({find_option(name), std::move(value), std::move(where), GivenOption::From::slurm});
  }

  void fact(const std::string& what, const std::string& from) { facts_.push_back(what + " (" + from + ")"); }

  bool is_task_per_node() const { return static_cast<std::size_t>(step_.tasks) == nodes(); }

  // Each a job of its own, and with a number of workers, so that none takes all of its node.
  bool are_tasks_parted() const {
    const auto* asked = given().find("nnodes");
    const auto* workers = given().find("nproc-per-node");
    const auto is_meant = [](const GivenOption* option) { return option != nullptr && !is_torchruns_default(*option); };
    return !is_task_per_node() && nodes_max_ == 1 && is_meant(asked) && is_meant(workers) &&
           whole_number(workers->value, 1, kWorkersMax);
  }

  void say_alone(const std::string& why) {
    if (step_.tasks == 1) return;
    notices_.push_back("each of the step's " +
                       (is_task_per_node() ? nodes_text(nodes()) : std::to_string(step_.tasks) + " tasks") +
                       " runs a job of its own: " + why);
  }

  // --rdzv-conf says it too.
  bool is_rank_given() const {
    if (given().find("node-rank") != nullptr) return true;
    const auto* conf = find_filled(given(), "rdzv-conf");
    if (conf == nullptr) return false;
    const auto settings = key_values_of(*conf);
    return std::any_of(settings.begin(), settings.end(), [](const KeyValue& setting) { return setting.key == "rank"; });
  }

  // The node that a static meeting names serves it, which is what node 0 does. Whose an address is can't be told here.
  int index_of_node_0() const {
    if (nodes_max_ == 1 || !is_static()) return 0;
    const auto* endpoint = find_filled(given(), "rdzv-endpoint");
    const auto* address = given().find("master-addr");
    if (endpoint == nullptr && address == nullptr) return 0;
    const auto host = endpoint != nullptr ? endpoint_of(*endpoint).host : host_of(*address);
    const auto& all = step_.nodes;
    auto found = std::find(all.begin(), all.end(), host);
    if (found == all.end() && !base::parse_address(host))
      found = std::find_if(all.begin(), all.end(),
                           [&host](const std::string& node) { return first_label(node) == first_label(host); });
    return found == all.end() ? 0 : static_cast<int>(found - all.begin());
  }

  int rank_here() const {
    const int count = static_cast<int>(nodes());
    return (step_.node_index - index_of_node_0() + count) % count;
  }

  std::string counted_from() const {
    const int first = index_of_node_0();
    return first == 0 ? "" : ", counted from " + step_.nodes[static_cast<std::size_t>(first)];
  }

  std::string why_alone() const {
    for (const auto* name : {"standalone", "rdzv-endpoint", "master-addr"})
      if (const auto* option = find_filled(given(), name)) return option->where;
    return {};
  }

  // --- what does not fit ---

  [[noreturn]] void refuse_left_over(const GivenOption& option, const std::string& says, const std::string& slurm) {
    throw UsageError(option.variable + "=" + option.value + " says " + says + ", and Slurm " + slurm, option.where,
                     "`unset " + option.variable +
                         "`, if it is left over from elsewhere; or say on the command line what is meant: `--" +
                         std::string(option.option->name) +
                         (option.option->value_name.empty() ? "`" : "=" + option.value + "`"));
  }

  void check_left_over() {
    const auto slurm_nodes = "that the step has " + nodes_text(nodes()) + " (SLURM_STEP_NODELIST)";
    if (const auto* option = given().find("nnodes");
        option != nullptr && is_torchruns_default(*option) && !given().is_on("standalone") && !is_here_only(given())) {
      const auto [low, high] = node_counts_of(*option);
      const bool may_be_more = says_where_to_meet(given());  // with nodes of other steps
      if ((static_cast<std::size_t>(low) > nodes() && !may_be_more) || static_cast<std::size_t>(high) < nodes())
        refuse_left_over(*option,
                         "that the job has " + (low == high ? "" : std::to_string(low) + " to ") +
                             nodes_text(static_cast<std::size_t>(high)),
                         slurm_nodes);
    }
    if (!is_job_of_step() || !is_task_per_node()) return;
    const auto* rank = given().find("node-rank");
    if (rank != nullptr && is_torchruns_default(*rank) && number_of(*rank, 0, kNodesMax - 1) != rank_here())
      refuse_left_over(*rank, "that this is node " + rank->value,
                       "that it is node " + std::to_string(rank_here()) + " of " + std::to_string(nodes()) +
                           " (SLURM_NODEID=" + std::to_string(step_.node_index) + counted_from() + ")");
    for (const auto* name : {"standalone", "rdzv-endpoint", "master-addr"})
      if (const auto* option = find_filled(given(), name);
          option != nullptr && is_torchruns_default(*option) && (given().is_on(name) || is_here_only(given())))
        refuse_left_over(*option, "that the job has this node only", slurm_nodes);
  }

  void check_tasks() const {
    if (is_task_per_node() || are_tasks_parted() || says_where_to_meet(given())) return;
    throw UsageError("srun started " + std::to_string(step_.tasks) + " ddprun on " + nodes_text(nodes()) + ", " +
                         std::to_string(step_.local_tasks) + " of them here: each would start all workers of its node",
                     "SLURM_STEP_TASKS_PER_NODE",
                     "`srun --ntasks-per-node=1 ddprun ...`; or let srun start the program itself, one task per rank "
                     "(docs/without_ddprun.md); or `--standalone`, where each is to be a job of its own");
  }

  // Its nodes have their ranks from the beginning, so that nobody can step in.
  void check_no_spares() const {
    const auto count = static_cast<std::size_t>(nodes_max_);
    if (!is_job_of_step() || count == nodes() || is_rank_given()) return;
    const auto* asked = given().find("nnodes");
    throw UsageError(
        asked->where + " leaves out " + std::to_string(nodes() - count) + " of the step's " + nodes_text(nodes()) +
            ", and nodes of a static meeting have no spares",
        asked->where,
        "`--rdzv-backend=c10d`, where the others stand by; or `srun --nodes=" + std::to_string(count) + "`");
  }

  // --- what is added ---

  bool is_static() const {
    if (const auto* backend = given().find("rdzv-backend")) return backend->value == "static";
    return find_filled(given(), "rdzv-endpoint") != nullptr || given().find("master-addr") != nullptr ||
           given().find("master-port") != nullptr;
  }

  void meet_static() {
    check_no_spares();
    if (!says_where_to_meet(given())) {
      set("master-addr", step_.nodes.front(), "SLURM_STEP_NODELIST");
      fact("the nodes meet at " + step_.nodes.front(), "SLURM_STEP_NODELIST");
    }
    if (!is_job_of_step()) return;
    give_rank();
    give_id();
  }

  void meet_dynamic() {
    if (find_filled(given(), "rdzv-endpoint") == nullptr)
      give_endpoint();
    else
      take_host_of_endpoint();
    if (is_job_of_step() && step_.node_index < nodes_max_) give_rank();
    if (is_job_of_step() || out_.gives_endpoint) give_id();
  }

  void give_endpoint() {
    const auto ports = slurm::ports_of(step_);
    const auto& host = step_.nodes.front();
    if (given().find("rdzv-backend") == nullptr) set("rdzv-backend", "c10d", "a step of Slurm");
    set("rdzv-endpoint", base::host_and_port(host, ports.first), "SLURM_STEP_NODELIST");
    fact("the nodes meet at " + host + ", on the first free port of " + std::to_string(ports.first) + " to " +
             std::to_string(ports.first + ports.count - 1),
         "SLURM_STEP_NODELIST, SLURM_JOB_ID, SLURM_STEP_ID");
    out_.gives_endpoint = true;
    out_.is_host = step_.node_index == 0;
    if (static_cast<std::size_t>(nodes_max_) > nodes())
      notices_.push_back("the step has " + nodes_text(nodes()) + ", and " + given().find("nnodes")->where +
                         " asks for more, which no other step can bring (--rdzv-endpoint)");
  }

  // By its name, however it resolves.
  void take_host_of_endpoint() {
    const auto host = endpoint_of(*given().find("rdzv-endpoint")).host;
    const auto found = std::find(step_.nodes.begin(), step_.nodes.end(), host);
    if (!is_job_of_step() || found == step_.nodes.end() || !is_task_per_node()) return;
    out_.is_host = found - step_.nodes.begin() == step_.node_index;
    fact(host + (*out_.is_host ? " is this node" : " is another node of the step"),
         "SLURM_STEP_NODELIST, SLURM_NODEID");
  }

  void give_rank() {
    if (is_rank_given()) return;
    const auto rank = std::to_string(rank_here());
    set("node-rank", rank, "SLURM_NODEID");
    fact("this is node " + rank + counted_from(), "SLURM_NODEID");
  }

  void give_id() {
    if (find_filled(given(), "rdzv-id") != nullptr) return;
    const auto id = slurm::run_id_of(step_);
    const std::string from =
        std::string("SLURM_JOB_ID, SLURM_STEP_ID") + (step_.restart_count > 0 ? ", SLURM_RESTART_COUNT" : "");
    set("rdzv-id", id, from);
    fact("id " + id, from);
  }

  const slurm::Step& step_;
  std::vector<std::string>& notices_;
  SlurmFacts& facts_;
  SlurmRendezvous out_;
  int nodes_max_ = 1;
};

// The last value of a setting such as KillWait in slurm.conf; its names have no case.
std::optional<std::string> setting_of(const std::string& conf, std::string_view name) {
  std::optional<std::string> out;
  std::istringstream lines(conf);
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    const auto begin = line.find_first_not_of(" \t");
    const auto equals = line.find('=');
    if (begin == std::string::npos || equals == std::string::npos) continue;
    auto key = line.substr(begin, equals - begin);
    key.erase(key.find_last_not_of(" \t") + 1);
    const bool is_it = std::equal(key.begin(), key.end(), name.begin(), name.end(),
                                  [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); });
    if (!is_it) continue;
    const auto value = line.find_first_not_of(" \t", equals + 1);
    out = value == std::string::npos ? "" : line.substr(value, line.find_first_of(" \t\r", value) - value);
  }
  return out;
}

}  // namespace

SlurmPlace slurm_place(const GivenOptions& given, const EnvironmentLookup& environment,
                       std::vector<std::string>& notices) {
  SlurmPlace place;
  const auto job = environment("SLURM_JOB_ID");
  if (slurm::is_inherited(environment)) {
    place.in_step = place.in_job = true;
    place.for_workers = environment(slurm::kStepVariable).value_or("");
    notices.push_back("SLURM_* are those of the ddprun of step " + place.for_workers +
                      ", in a worker of which this one runs: they say nothing of its nodes here");
    return place;
  }
  try {
    place.step = slurm::step_of(environment);
    place.in_step = place.step.has_value();
  } catch (const InvalidArgument& error) {
    if (!says_where_to_meet(given)) throw;
    place.in_step = true;
    const std::string text = error.what();
    notices.push_back("the variables of Slurm's step are left alone: " + text.substr(0, text.find('\n')));
  }
  place.in_job = place.in_step || job;
  if (place.step)
    place.for_workers = slurm::name_of(*place.step);
  else if (job)
    place.for_workers = *job;  // a batch shell, whose workers may start steps
  if (place.in_step || !job || says_where_to_meet(given)) return place;
  const auto nodes = whole_number(environment("SLURM_JOB_NUM_NODES").value_or("1"), 1, kNodesMax);
  if (nodes.value_or(1) > 1)
    notices.push_back(
        "job " + *job + " has " + nodes_text(static_cast<std::size_t>(*nodes)) +
        ", and ddprun runs on this one only, as srun has not started it: `srun --ntasks-per-node=1 ddprun ...`");
  return place;
}

SlurmRendezvous slurm_rendezvous(const slurm::Step& step, const GivenOptions& given, std::vector<std::string>& notices,
                                 SlurmFacts& facts) {
  facts.push_back("job " + step.job + ", step " + step.step + " (SLURM_JOB_ID, SLURM_STEP_ID)");
  return SlurmRendezvousReader(step, given, notices, facts).take();
}

Machine slurm_machine(const slurm::Step& step, const EnvironmentLookup& environment, Machine machine,
                      SlurmFacts& facts) {
  if (const int gpus = step.gpus_on_node.value_or(0); gpus > 0) {
    // GPUs of other makers are not counted here, and Slurm may name them by CUDA_VISIBLE_DEVICES too. Whoever names
    // none there wants none.
    const auto visible = environment("CUDA_VISIBLE_DEVICES");
    const int named = visible_gpu_count(kWorkersMax, visible);
    machine.gpu_count = std::min({gpus, named, machine.gpu_count > 0 ? machine.gpu_count : gpus});
    facts.push_back((machine.gpu_count == 0 ? "no" : std::to_string(machine.gpu_count)) +
                    (machine.gpu_count > 1 ? " GPUs" : " GPU") + " (SLURM_GPUS_ON_NODE=" + std::to_string(gpus) +
                    (machine.gpu_count < gpus && visible ? ", CUDA_VISIBLE_DEVICES='" + *visible + "')" : ")"));
  }
  const auto cpus = step.cpus_per_task ? step.cpus_per_task : step.cpus_on_node;
  if (cpus && *cpus > 0 && *cpus < machine.cpu_count) {
    machine.cpu_count = *cpus;
    facts.push_back(std::to_string(*cpus) + (*cpus == 1 ? " CPU" : " CPUs") + " for --nproc-per-node=cpu (" +
                    (step.cpus_per_task ? "SLURM_CPUS_PER_TASK" : "SLURM_CPUS_ON_NODE") + ")");
  }
  return machine;
}

std::chrono::seconds slurm_grace(const EnvironmentLookup& environment, const Machine& machine, SlurmFacts& facts) {
  const auto path = environment("SLURM_CONF").value_or(kSlurmConf);
  const auto conf = machine.read_file ? machine.read_file(path) : std::nullopt;
  const auto text = conf ? setting_of(*conf, "KillWait") : std::nullopt;
  const auto told = text ? whole_number(*text, 0, kSecondsMax) : std::nullopt;
  const auto grace = std::max(kGraceMin, (told ? std::chrono::seconds(*told) : kKillWait) - kGraceMargin);
  facts.push_back("grace " + std::to_string(grace.count()) + " s (" +
                  (told ? "KillWait=" + std::to_string(*told) + " in " + path
                        : "Slurm's KillWait, 30 s where nothing says another") +
                  ", less 5 s)");
  return grace;
}

std::string slurm_one_core_text(const slurm::Step& step, int workers) {
  const auto cpus = step.cpus_per_task.value_or(1);
  return "all " + std::to_string(workers) +
         " workers share one core, as srun gave this task no more: `srun --cpus-per-task=" +
         std::to_string(std::max(cpus, workers)) + "`" +
         (cpus > 1 ? " (SLURM_CPUS_PER_TASK=" + std::to_string(cpus) + " is sbatch's, which srun does not take over)"
                   : "");
}

std::string slurm_kill_text(const slurm::Step& step, const RendezvousConfig& rendezvous,
                            const EnvironmentLookup& environment) {
  const bool may_lose_nodes =
      rendezvous.nodes_min < rendezvous.nodes_max ||
      (rendezvous.nodes_max > 1 && static_cast<std::size_t>(rendezvous.nodes_max) < step.nodes.size());
  if (!may_lose_nodes || environment("SLURM_KILL_BAD_EXIT").value_or("0") != "1") return {};
  return "the job may go on without a node, but srun ends all of them when one ends with an error "
         "(SLURM_KILL_BAD_EXIT=1), unless "
         "it is told otherwise: `srun --no-kill --kill-on-bad-exit=0 --wait=0` (docs/slurm.md)";
}

}  // namespace ddp::launcher
