#include "launcher/command_line/option_table.hpp"

#include <algorithm>

namespace ddp::launcher {

const std::vector<Option>& option_table() {
  constexpr bool kTorchruns = true, kOurs = false, kList = true;
  using Group = OptionGroup;
  static const std::vector<Option> table{
      {"nproc-per-node", 0, "N|gpu|cpu|auto|xpu", Group::job, kTorchruns,
       "Number of workers on this node: a number, one per GPU (gpu), one per CPU (cpu), or one per GPU if there are "
       "GPUs, else one per CPU (auto). Default: one per GPU, or 1 without GPUs"},
      {"nnodes", 0, "N|MIN:MAX", Group::job, kTorchruns,
       "Number of nodes, or a range. Default: 1; in a Slurm step all nodes of the step"},
      {"node-rank", 0, "N", Group::job, kTorchruns,
       "Rank of this node, from 0; with c10d the rank that the node asks for. Default: 0 (static), by host name "
       "(c10d)"},
      {"standalone", 0, "", Group::job, kTorchruns,
       "One node without an address. This is the default if no address is given"},

      {"hosts", 0, "HOST[:N],..", Group::hosts, kOurs,
       "Start the job on these hosts by ssh, with N workers each: a,b:8,user@[fe80::1]:4,n[01-16]"},
      {"hostfile", 0, "FILE", Group::hosts, kOurs, "The same, with one `[user@]host [slots=N]` in each line"},
      {"export", 'x', "NAME[=VALUE]", Group::hosts, kOurs,
       "Environment variable for the workers on all hosts, this machine's or a new one. `-x 'NCCL_*'` takes all that "
       "begin so. May be given several times",
       kList},
      {"ssh-args", 0, "ARGS", Group::hosts, kOurs, "More arguments for ssh: --ssh-args='-p 2222 -i key'"},

      {"master-addr", 0, "HOST", Group::rendezvous, kTorchruns, "Address of node 0 (static). Default: 127.0.0.1"},
      {"master-port", 0, "PORT", Group::rendezvous, kTorchruns, "Port on node 0 (static). Default: 29500"},
      {"rdzv-backend", 0, "static|c10d", Group::rendezvous, kTorchruns,
       "static: each node knows its rank, and node 0 is at the address. c10d: nodes get their ranks when they meet. "
       "Default: static"},
      {"rdzv-endpoint", 0, "HOST[:PORT]", Group::rendezvous, kTorchruns,
       "Address where the nodes meet: that of one of the nodes, the same on all nodes. Default port: 29400 (c10d), "
       "29500 (static). Default in a Slurm step: its first node"},
      {"rdzv-id", 0, "ID", Group::rendezvous, kTorchruns,
       "Name of the job, the same on all nodes. The log folder has it too"},
      {"rdzv-conf", 0, "KEY=VALUE,..", Group::rendezvous, kTorchruns,
       "join_timeout, last_call_timeout and heartbeat_timeout (the silence after which a node counts as dead) in "
       "seconds; is_host; store_memory in MiB"},
      {"local-addr", 0, "HOST", Group::rendezvous, kTorchruns,
       "Address of this node for the other nodes. Default: that of the interface that leads to them"},
      {"port-range", 0, "A-B", Group::rendezvous, kOurs,
       "Ports for everything else that listens. Default: any free ports"},
      {"token-file", 0, "PATH", Group::rendezvous, kOurs,
       "File with the secret of the job's nodes, of mode 0600. Default: DDPRUN_TOKEN, else ~/.config/ddprun/token. "
       "Without a token, everybody who reaches the endpoint can join"},
      {"store-allow", 0, "CIDR,..|any", Group::rendezvous, kOurs,
       "Who may connect to the store, besides the job's nodes and this user's processes"},

      {"module", 'm', "", Group::workers, kTorchruns, "The program is a Python module, run by `python -m`"},
      {"no-python", 0, "", Group::workers, kTorchruns, "Run the program itself, even if its name ends in .py"},
      {"run-path", 0, "", Group::workers, kTorchruns, "Run the program with Python, whatever its name"},
      {"wdir", 0, "DIR", Group::workers, kOurs,
       "Directory in which workers start, and to which the program's path is relative. Default: ddprun's own"},
      {"role", 0, "NAME", Group::workers, kTorchruns, "ROLE_NAME of the workers. Default: default"},
      {"virtual-local-rank", 0, "", Group::workers, kTorchruns, "Each worker has LOCAL_RANK=0 and sees one GPU"},
      {"start-method", 0, "spawn|fork|forkserver", Group::workers, kTorchruns,
       "No effect: every worker is a new program"},

      {"log-dir", 0, "DIR", Group::logs, kTorchruns,
       "Folder of the log files: DIR/<start>_<id>/round_<n>/rank_<r>/, and DIR/latest"},
      {"redirects", 'r', "MASK", Group::logs, kTorchruns,
       "Write streams to files: 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,4-7:1. Default: 0"},
      {"tee", 't', "MASK", Group::logs, kTorchruns, "Write streams to files and show them. Default: 0"},
      {"log-line-prefix-template", 0, "TEMPLATE", Group::logs, kTorchruns,
       "Text before each line that is shown. It may have ${role_name}, ${local_rank}, ${rank}, ${hostname} and "
       "${time}. Default: [${role_name}${local_rank}]: for a stream of --tee"},
      {"local-ranks-filter", 0, "LIST", Group::logs, kTorchruns, "Show only these local ranks: 0,2-3"},
      {"ranks-filter", 0, "LIST", Group::logs, kOurs, "Show only these global ranks: 0,8-15"},
      {"duplicate-stdout-filters", 0, "TEXT,..", Group::logs, kTorchruns,
       "Copy lines of stdout that contain one of these texts to one file, filtered_stdout.log. Two commas mean one "
       "comma"},
      {"duplicate-stderr-filters", 0, "TEXT,..", Group::logs, kTorchruns, "The same for stderr"},
      {"no-prefix", 0, "", Group::logs, kOurs,
       "Show lines without the rank. By default a file has it if several workers can print there, a terminal once a "
       "second worker prints"},
      {"merge-equal-lines", 0, "", Group::logs, kOurs, "Show a line that several ranks print once, with these ranks"},
      {"quiet", 'q', "", Group::logs, kOurs,
       "Show only what the program prints, and errors: no line of ddprun's that begins with `ddprun:`"},
      {"report", 0, "FILE", Group::logs, kOurs,
       "Write a report of the run as JSON: each round, what ended it, and where the time between two rounds went"},
      {"log-level", 0, "debug|info|warning|error|off", Group::logs, kOurs,
       "Show ddprun's own events of this level and above on stderr, as lines for operators. Default: off"},
      {"logs-specs", 0, "default", Group::logs, kTorchruns, "No effect: there are no log plug-ins"},
      {"event-log-handler", 0, "NAME", Group::logs, kTorchruns, "No effect: events are plain lines on stderr"},

      {"max-restarts", 0, "N", Group::failures, kTorchruns,
       "How many times all workers of the job start again after a failure. Default: 0"},
      {"timeout", 0, "SECONDS", Group::failures, kOurs,
       "End the job after this time with exit code 124. Workers get SIGTERM, then the grace. Default: no limit"},
      {"restart-window", 0, "SECONDS", Group::failures, kOurs,
       "Count only the restarts in this time before a failure, and only those since the newest commit or checkpoint "
       "of libddp. Default: count all restarts"},
      {"orphan-limit", 0, "SECONDS", Group::failures, kOurs,
       "Stop this node's workers after this time without an answer from any other part of the job. Default: 60"},
      {"shutdown-timeout", 0, "SECONDS", Group::failures, kTorchruns,
       "The grace: time between a stop signal and SIGKILL, whatever causes the stop. Default: "
       "TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30; under Slurm its KillWait less 5"},
      {"signals-to-handle", 0, "SIGNAL,..", Group::failures, kTorchruns,
       "Signals that stop the job. Workers get them first. Default: SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"forward-signals", 0, "SIGNAL,..", Group::failures, kOurs,
       "Signals that are passed on to workers that handle them. They warn workers that call should_stop(). Default: "
       "none; in a Slurm step SIGUSR1"},
      {"on-node-stop", 0, "leave|stop", Group::failures, kOurs,
       "What SIGTERM or a warning signal to this ddprun does if enough other nodes remain: this node leaves the "
       "job, or the whole job stops. Default: leave; under Slurm stop"},
      {"monitor-interval", 0, "SECONDS", Group::failures, kTorchruns, "No effect: ddprun does not poll"},

      {"numa-binding", 0, "node|socket|exclusive|core-complex", Group::binding, kTorchruns,
       "Bind each worker to cores near its GPU"},
      {"display-binding", 0, "", Group::binding, kOurs, "Show which worker is bound to what"},

      {"dry-run", 0, "", Group::other, kOurs, "Show what would be started, with every variable, and start nothing"},
      {"print-completion", 0, "bash|zsh|fish", Group::other, kTorchruns, "Print a completion script for this shell"},
      {"help", 'h', "", Group::other, kTorchruns, "Show this text"},
      {"version", 0, "", Group::other, kOurs, "Show the version"},
      {"print-man-page", 0, "", Group::hidden, kOurs, "Print the man page, for the build"},
  };
  return table;
}

const Option* find_option(std::string_view name) {
  const auto& table = option_table();
  const auto found = std::find_if(table.begin(), table.end(), [name](const Option& its) { return its.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::string_view title(OptionGroup group) {
  switch (group) {
    case OptionGroup::job: return "job";
    case OptionGroup::hosts: return "hosts";
    case OptionGroup::rendezvous: return "rendezvous";
    case OptionGroup::workers: return "workers";
    case OptionGroup::logs: return "logs";
    case OptionGroup::failures: return "failures and signals";
    case OptionGroup::binding: return "binding";
    case OptionGroup::other: return "other";
    case OptionGroup::hidden: break;
  }
  return {};
}

std::vector<std::string_view> literal_values(const Option& option) {
  std::vector<std::string_view> out;
  for (auto rest = option.value_name; !rest.empty();) {
    const auto word = rest.substr(0, rest.find('|'));
    if (std::none_of(word.begin(), word.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) out.push_back(word);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return out;
}

}  // namespace ddp::launcher
