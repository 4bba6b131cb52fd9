#include "launcher/command_line/option_table.hpp"

#include <algorithm>

namespace ddp::launcher {

const std::vector<Option>& option_table() {
  constexpr bool kTorchruns = true, kOurs = false;
  using Group = OptionGroup;
  static const std::vector<Option> table{
      {"nproc-per-node", 0, "N|gpu|cpu|auto|xpu", Group::job, kTorchruns,
       "workers on this node: a number, one per GPU, per CPU, or per GPU if there are any and else per CPU. Default: "
       "one "
       "per GPU, or 1 without GPUs"},
      {"nnodes", 0, "N|MIN:MAX", Group::job, kTorchruns,
       "number of nodes, or a range of it. Default: 1; in a step of Slurm all of its nodes"},
      {"node-rank", 0, "N", Group::job, kTorchruns,
       "which of the nodes this one is, from 0; with c10d a wish. Default: 0 (static), by host name (c10d)"},
      {"standalone", 0, "", Group::job, kTorchruns,
       "one node without an address: what one node is anyway, unless an address is given"},

      {"master-addr", 0, "HOST", Group::rendezvous, kTorchruns, "address of node 0 (static). Default: 127.0.0.1"},
      {"master-port", 0, "PORT", Group::rendezvous, kTorchruns, "port on node 0 (static). Default: 29500"},
      {"rdzv-backend", 0, "static|c10d", Group::rendezvous, kTorchruns,
       "static: each node knows its rank, node 0 is at the address; c10d: nodes get their ranks when they meet. "
       "Default: static"},
      {"rdzv-endpoint", 0, "HOST[:PORT]", Group::rendezvous, kTorchruns,
       "where the nodes meet: an address of one of them, the same on all. Default port: 29400 (c10d), 29500 (static). "
       "Default in a step of Slurm: its first node"},
      {"rdzv-id", 0, "ID", Group::rendezvous, kTorchruns,
       "the job's name, the same on all nodes and in the log folder"},
      {"rdzv-conf", 0, "KEY=VALUE,..", Group::rendezvous, kTorchruns,
       "join_timeout, last_call_timeout, heartbeat_timeout (silence that counts as death) in seconds; is_host; "
       "store_memory in MiB"},
      {"local-addr", 0, "HOST", Group::rendezvous, kTorchruns,
       "address under which other nodes reach this one. Default: the one that leads to them"},
      {"port-range", 0, "A-B", Group::rendezvous, kOurs, "ports for all else that listens. Default: any free ones"},
      {"token-file", 0, "PATH", Group::rendezvous, kOurs,
       "the secret by which the nodes know each other, in a file of mode 0600. Default: DDPRUN_TOKEN, else "
       "~/.config/ddprun/token; without one whoever reaches the endpoint can join"},
      {"store-allow", 0, "CIDR,..|any", Group::rendezvous, kOurs,
       "who may connect to the store besides the job's nodes and this user's processes"},

      {"module", 'm', "", Group::workers, kTorchruns, "the program is a Python module, run by `python -m`"},
      {"no-python", 0, "", Group::workers, kTorchruns, "run the program itself even if its name ends in .py"},
      {"run-path", 0, "", Group::workers, kTorchruns, "run the program by Python whatever its name"},
      {"role", 0, "NAME", Group::workers, kTorchruns, "ROLE_NAME of the workers. Default: default"},
      {"virtual-local-rank", 0, "", Group::workers, kTorchruns, "each worker sees LOCAL_RANK=0 and one GPU"},
      {"start-method", 0, "spawn|fork|forkserver", Group::workers, kTorchruns,
       "no effect: every worker is a new program"},

      {"log-dir", 0, "DIR", Group::logs, kTorchruns,
       "where log files go: DIR/<start>_<id>/round_<n>/rank_<r>/, DIR/latest"},
      {"redirects", 'r', "MASK", Group::logs, kTorchruns,
       "write streams to files: 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,4-7:1. Default: 0"},
      {"tee", 't', "MASK", Group::logs, kTorchruns, "write streams to files and show them. Default: 0"},
      {"log-line-prefix-template", 0, "TEMPLATE", Group::logs, kTorchruns,
       "what stands before each line that is shown; knows ${role_name}, ${local_rank}, ${rank}, ${hostname}, ${time}. "
       "Default: [${role_name}${local_rank}]: for a stream of --tee"},
      {"local-ranks-filter", 0, "LIST", Group::logs, kTorchruns, "show only these local ranks: 0,2-3"},
      {"ranks-filter", 0, "LIST", Group::logs, kOurs, "show only these global ranks: 0,8-15"},
      {"duplicate-stdout-filters", 0, "TEXT,..", Group::logs, kTorchruns,
       "copy lines of stdout that contain one of these to one file, filtered_stdout.log; two commas are a comma"},
      {"duplicate-stderr-filters", 0, "TEXT,..", Group::logs, kTorchruns, "the same for stderr"},
      {"no-prefix", 0, "", Group::logs, kOurs,
       "no rank before lines that more than one worker prints to a terminal or a file"},
      {"merge-equal-lines", 0, "", Group::logs, kOurs, "show a line that several ranks print as one, with its ranks"},
      {"report", 0, "FILE", Group::logs, kOurs,
       "write a report of the run as JSON: each round, why it began, and where the time between two rounds went"},
      {"log-level", 0, "debug|info|warning|error|off", Group::logs, kOurs,
       "show ddprun's own events of this level and above on stderr, as lines for operators. Default: off"},
      {"logs-specs", 0, "default", Group::logs, kTorchruns, "no effect: there are no log plug-ins"},
      {"event-log-handler", 0, "NAME", Group::logs, kTorchruns, "no effect: events are plain lines on stderr"},

      {"max-restarts", 0, "N", Group::failures, kTorchruns,
       "times that all workers of the job are started again after a failure. Default: 0"},
      {"restart-window", 0, "SECONDS", Group::failures, kOurs,
       "count only the restarts of this time before the failure, and none from before newer commits or checkpoints of "
       "libddp. "
       "Default: all of them"},
      {"orphan-limit", 0, "SECONDS", Group::failures, kOurs,
       "stop this node's workers when nobody of the job has answered for so long. Default: 60"},
      {"shutdown-timeout", 0, "SECONDS", Group::failures, kTorchruns,
       "grace between a stop signal and SIGKILL, in every path. Default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30; "
       "under Slurm its KillWait less 5"},
      {"signals-to-handle", 0, "SIGNAL,..", Group::failures, kTorchruns,
       "signals that stop the job; workers get them first. Default: SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"forward-signals", 0, "SIGNAL,..", Group::failures, kOurs,
       "signals that are passed on to workers that handle them, and warn those that use should_stop(). Default: "
       "none; in a step of Slurm SIGUSR1"},
      {"on-node-stop", 0, "leave|stop", Group::failures, kOurs,
       "what SIGTERM or a warning signal to this ddprun does where enough other nodes are left: this node leaves the "
       "job, or the whole job stops. "
       "Default: leave; under Slurm stop"},
      {"monitor-interval", 0, "SECONDS", Group::failures, kTorchruns, "no effect: nothing polls"},

      {"numa-binding", 0, "node|socket|exclusive|core-complex", Group::binding, kTorchruns,
       "bind each worker to cores near its GPU"},
      {"display-binding", 0, "", Group::binding, kOurs, "say which worker is bound to what"},

      {"dry-run", 0, "", Group::other, kOurs, "show what would be started, with every variable, and start nothing"},
      {"print-completion", 0, "bash|zsh|fish", Group::other, kTorchruns, "print a completion script for this shell"},
      {"help", 'h', "", Group::other, kTorchruns, "show this text"},
      {"version", 0, "", Group::other, kOurs, "show the version"},
      {"print-man-page", 0, "", Group::hidden, kOurs, "print the man page, for the build"},
  };
  return table;
}

std::string_view title(OptionGroup group) {
  switch (group) {
    case OptionGroup::job: return "job";
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
