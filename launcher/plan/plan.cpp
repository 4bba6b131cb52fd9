#include "launcher/plan/plan.hpp"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/host_and_port.hpp"
#include "base/loopback.hpp"
#include "launcher/command_line/option_values.hpp"
#include "launcher/command_line/quoted_word.hpp"
#include "launcher/environment/worker_environment.hpp"
#include "launcher/worker_group/exit_code.hpp"
#include "rendezvous/membership/failure.hpp"

namespace ddp::launcher {
namespace {

using Mode = RendezvousConfig::Mode;
using rendezvous::counted;

constexpr const char* kAtTheMeeting = "<given at the meeting>";

std::string range(int low, int high, const char* between) {
  return low == high ? std::to_string(low) : std::to_string(low) + between + std::to_string(high);
}

std::string quoted(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + quoted_word(word);
  return out;
}

std::string names(const std::vector<int>& signals) {
  std::string out;
  for (const int number : signals) out += (out.empty() ? "" : ", ") + signal_name(number);
  return out;
}

std::string endpoint(const RendezvousConfig& meeting) {
  if (meeting.port == 0) return base::host_and_port(meeting.host, "<a free port>");
  return base::host_and_port(meeting.host, range(meeting.port, meeting.port + meeting.port_count - 1, "-"));
}

std::string streams(const StreamMask& mask) {
  const auto name = [](int streams) {
    return streams == 1 ? "stdout" : streams == 2 ? "stderr" : streams == 3 ? "stdout and stderr" : "nothing";
  };
  std::string out = mask.by_local_rank.empty() ? name(mask.all) : "";
  for (auto it = mask.by_local_rank.begin(); it != mask.by_local_rank.end();) {
    const auto first = it;
    int last = first->first;
    while (++it != mask.by_local_rank.end() && it->first == last + 1 && it->second == first->second) last = it->first;
    out += (out.empty() ? "" : ", ") + std::string(name(first->second)) + " of local rank " +
           range(first->first, last, " to ");
  }
  return out;
}

std::string ranks(const std::vector<RankRange>& ranges) {
  std::string out;
  for (const auto& r : ranges) out += (out.empty() ? "" : ",") + range(r.first, r.last, "-");
  return out;
}

std::string binding(const BindingOptions& options) {
  switch (options.mode) {
    case BindingOptions::Mode::none: return "none";
    case BindingOptions::Mode::node: return "to the NUMA node of the worker's GPU";
    case BindingOptions::Mode::socket: return "to the socket of the worker's GPU";
    case BindingOptions::Mode::exclusive: return "to cores of the GPU's NUMA node that no other worker has";
    case BindingOptions::Mode::core_complex: return "to cores of the GPU's NUMA node that share a cache";
  }
  return {};
}

class Plan {
 public:
  Plan(const LaunchConfig& config, const std::vector<std::string>& environment, const std::vector<Binding>& bindings)
      : config_(config), meeting_(config.rendezvous), environment_(environment), bindings_(bindings) {}

  std::string text() {
    out_ << "ddprun starts nothing now; this is what it would do\n\n";
    say_meeting();
    for (const auto& fact : config_.slurm_facts) line(&fact == &config_.slurm_facts.front() ? "Slurm" : "", fact);
    line("workers", std::to_string(config_.workers) + " on this node, role " + config_.role + "; rank " + rank_range());
    line("program", quoted(config_.command.arguments));
    if (config_.command.path != config_.command.arguments.front()) line("", "executes " + config_.command.path);
    if (!config_.worker_directory.empty()) line("", "starts in " + config_.worker_directory);
    line("failures", config_.restarts_max == 0
                         ? "end the job"
                         : "all workers of the job start again, " + counted(config_.restarts_max, "time") + " at most" +
                               (config_.restart_window.count() == 0
                                    ? ""
                                    : " within " + rendezvous::describe_duration(config_.restart_window)));
    if (config_.time_limit.count() > 0)
      line("", "the job ends after " + rendezvous::describe_duration(config_.time_limit));
    line("signals", names(config_.stop_signals) + ": stop the job, with SIGKILL after " +
                        rendezvous::describe_duration(config_.grace));
    if (!config_.forward_signals.empty()) line("", names(config_.forward_signals) + ": passed on to the workers");
    say_output();
    line("binding", binding(config_.binding));
    for (std::size_t i = 0; i < bindings_.size(); ++i)
      line("", "worker " + std::to_string(i) + ": " + describe(bindings_[i]));
    for (const auto& notice : config_.notices) line("notice", notice);
    say_workers();
    return out_.str();
  }

 private:
  void line(const std::string& title, const std::string& text) {
    out_ << title << std::string(title.size() < 10 ? 10 - title.size() : 1, ' ') << text << '\n';
  }

  bool one_node() const { return meeting_.nodes_max == 1; }

  // Whether this node's place among the ranks is known before the nodes have met.
  bool ranks_are_known() const { return one_node() || (meeting_.mode == Mode::fixed && meeting_.node_rank == 0); }

  std::string rank_range() const {
    const auto from = [this](int first) { return range(first, first + config_.workers - 1, " to "); };
    if (ranks_are_known()) return from(0);
    if (meeting_.mode == Mode::dynamic) return kAtTheMeeting;
    return from(*meeting_.node_rank * config_.workers) + " if every node has " + counted(config_.workers, "worker");
  }

  void say_meeting() {
    const auto nodes = range(meeting_.nodes_min, meeting_.nodes_max, " to ");
    const auto ports =
        meeting_.port_last == 0 ? std::string() : " from " + range(meeting_.port_first, meeting_.port_last, " to ");
    const bool local = meeting_.mode == Mode::local;
    line("nodes", local ? "1, this one"
                        : nodes + (meeting_.node_rank ? ", this is node " + std::to_string(*meeting_.node_rank) : "") +
                              (meeting_.mode == Mode::dynamic && meeting_.node_rank ? " if it can be" : ""));
    if (local) {
      line("store", "127.0.0.1, a free port" + ports);
    } else {
      line("meeting", endpoint(meeting_) + ", job " + meeting_.run_id +
                          (meeting_.mode == Mode::fixed ? "; node 0 is there" : "; whose address this is serves it"));
      if (meeting_.is_host) line("", *meeting_.is_host ? "this node serves it" : "this node does not serve it");
      line("",
           "within " + rendezvous::describe_duration(meeting_.join_timeout) + "; " +
               (meeting_.nodes_min < meeting_.nodes_max
                    ? rendezvous::describe_duration(meeting_.last_call_timeout) + " more for the rest of the nodes; "
                    : "") +
               "silence of " + rendezvous::describe_duration(meeting_.heartbeat_timeout) + " counts as death");
      if (!meeting_.local_address.empty()) line("", "others reach this node at " + meeting_.local_address);
      if (!ports.empty()) line("", "ports" + ports + " for all else that listens");
    }
    if (!config_.store_allow.empty()) {
      std::string allowed;
      for (const auto& block : config_.store_allow) allowed += (allowed.empty() ? "" : ", ") + block;
      line("", "admits " + allowed);
    }
  }

  void say_output() {
    const auto& output = config_.output;
    const bool none = output.log_directory == "/dev/null";
    const auto id = meeting_.run_id.empty() ? "<id>" : meeting_.run_id;
    if (none)
      line("logs", "no files");
    else if (!output.log_directory.empty())
      line("logs", output.log_directory + "/<start>_" + id + "/round_<n>/rank_<r>/");
    else
      line("logs", output.redirects.is_empty() && output.tee.is_empty() ? "on the console only"
                                                                        : "in a folder for temporary files");
    if (!output.redirects.is_empty()) line("", "to a file: " + streams(output.redirects));
    if (!output.tee.is_empty()) line("", "to a file and shown: " + streams(output.tee));
    if (!output.prefix_lines)
      line("", "no prefix before lines");
    else if (!output.prefix_template.empty())
      line("", "lines begin with " + quoted_word(output.prefix_template));
    if (!output.local_ranks_shown.empty()) line("", "shown are local ranks " + ranks(output.local_ranks_shown));
    if (!output.ranks_shown.empty()) line("", "shown are ranks " + ranks(output.ranks_shown));
    for (const auto& [filters, stream] :
         {std::pair(output.stdout_duplicates, "stdout"), std::pair(output.stderr_duplicates, "stderr")})
      if (!filters.empty())
        line("",
             "lines of " + std::string(stream) + " with " + quoted(filters) + " also to filtered_" + stream + ".log");
  }

  Assignment assignment() const {
    Assignment out;
    out.workers = out.world_size = out.role_world_size = config_.workers;
    out.group_rank = meeting_.node_rank.value_or(0);
    out.group_world_size = meeting_.nodes_max;
    out.role = config_.role;
    out.restarts_max = config_.restarts_max;
    out.run_id = meeting_.run_id;
    out.master_address = meeting_.mode == Mode::local ? "127.0.0.1" : base::with_loopback_address(meeting_.host);
    out.master_port = meeting_.port;
    out.stop_signals = config_.stop_signals;
    out.virtual_local_rank = config_.virtual_local_rank;
    out.port_first = meeting_.port_first;
    out.port_last = meeting_.port_last;
    out.slurm_step = config_.slurm_step;
    return out;
  }

  // What stands in the place of values that are not known yet.
  std::map<std::string, std::string> unknown(int local_rank) const {
    std::map<std::string, std::string> out{{"DDPRUN_ROUND_ID", "<new in every round>"}};
    const auto sum = std::string(kAtTheMeeting) + " + " + std::to_string(local_rank);
    if (!ranks_are_known()) out["RANK"] = out["ROLE_RANK"] = sum;
    if (!one_node()) out["WORLD_SIZE"] = out["ROLE_WORLD_SIZE"] = "<workers of all nodes>";
    if (meeting_.mode == Mode::dynamic) {
      if (!one_node()) out["GROUP_RANK"] = kAtTheMeeting;
      if (meeting_.nodes_min != meeting_.nodes_max)
        out["GROUP_WORLD_SIZE"] = "<" + range(meeting_.nodes_min, meeting_.nodes_max, " to ") + ">";
      out["MASTER_ADDR"] = "<address of rank 0's node>";
      out["MASTER_PORT"] = kAtTheMeeting;
    } else if (meeting_.port == 0) {
      out["MASTER_PORT"] = "<a free port>";
    }
    if (meeting_.run_id.empty()) out["TORCHELASTIC_RUN_ID"] = "<made at the start>";
    if (config_.output.log_directory != "/dev/null") out["TORCHELASTIC_ERROR_FILE"] = "<a file of this worker>";
    return out;
  }

  // As DDPRUN_ROUND_DIRECTORY says it.
  std::string round_directory() const {
    const auto& output = config_.output;
    const auto& directory = output.log_directory;
    if (directory.empty())
      return output.redirects.is_empty() && output.tee.is_empty() ? "" : "<that of the round's log files>";
    if (directory == "/dev/null") return directory;
    return directory + "/<start>_" + (meeting_.run_id.empty() ? "<id>" : meeting_.run_id) + "/round_<n>";
  }

  std::vector<std::string> variables(int local_rank) const {
    const auto cores = bindings_.empty() ? std::nullopt : bindings_[static_cast<std::size_t>(local_rank)].core_share;
    auto out = worker_variables(assignment(), {local_rank, "", cores, round_directory()}, environment_);
    const auto open = unknown(local_rank);
    for (auto& variable : out)
      if (const auto found = open.find(name_of(variable)); found != open.end())
        variable = found->first + "=" + found->second;
    return out;
  }

  // What all workers have alike is said once.
  void say_workers() {
    const auto first = variables(0);
    auto shared = first;
    for (int rank = 1; rank < config_.workers; ++rank) {
      const auto others = variables(rank);
      std::erase_if(shared, [&others](const auto& variable) {
        return std::find(others.begin(), others.end(), variable) == others.end();
      });
    }
    out_ << "\nevery worker has ddprun's environment, and\n";
    for (const auto& variable : shared) out_ << "  " << variable << '\n';
    std::string withheld;
    for (const auto& variable : environment_)
      if (is_withheld(name_of(variable)) && std::none_of(first.begin(), first.end(), [&variable](const auto& own) {
            return name_of(own) == name_of(variable);
          }))
        withheld += " " + name_of(variable);
    if (!withheld.empty()) out_ << "but not, as they configure a launcher:" << withheld << '\n';
    for (int rank = 0; rank < config_.workers; ++rank) {
      std::string own;
      for (const auto& variable : variables(rank))
        if (std::find(shared.begin(), shared.end(), variable) == shared.end())
          own += (own.empty() ? "" : "  ") + variable;
      const auto arguments = worker_arguments(config_.command.arguments, rank);
      if (rank == 0) out_ << '\n';
      line("worker " + std::to_string(rank), own.empty() ? "nothing else" : own);
      if (arguments != config_.command.arguments) line("", quoted(arguments));
    }
  }

  const LaunchConfig& config_;
  const RendezvousConfig& meeting_;
  const std::vector<std::string>& environment_;
  const std::vector<Binding>& bindings_;
  std::ostringstream out_;
};

}  // namespace

std::string plan_text(const LaunchConfig& config, const std::vector<std::string>& environment,
                      const std::vector<Binding>& bindings) {
  return Plan(config, environment, bindings).text();
}

}  // namespace ddp::launcher
