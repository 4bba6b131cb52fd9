#include "launcher/remote/job_on_hosts.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/host_and_port.hpp"
#include "launcher/command_line/option_values.hpp"
#include "launcher/output/line_prefix.hpp"
#include "launcher/remote/ssh_command.hpp"

namespace ddp::launcher {
namespace {

constexpr std::uint16_t kElasticPort = 29400;  // torchrun's for c10d

// What the front itself reads. The rest goes to the hosts as it is.
constexpr std::string_view kOfFront[] = {"hosts",      "hostfile", "export",    "ssh-args",   "token-file",
                                         "dry-run",    "nnodes",   "node-rank", "standalone", "rdzv-backend",
                                         "local-addr", "help",     "version"};

const GivenOption* find_filled(const GivenOptions& given, std::string_view name) {
  const auto* option = given.find(name);
  return option != nullptr && !option->value.empty() ? option : nullptr;
}

void refuse(const GivenOptions& given, std::string_view name, const std::string& what, const std::string& try_this) {
  const auto* option = given.find(name);
  if (option != nullptr && !option->is_from_variable()) throw UsageError(what, option->where, try_this);
}

// The list or the file; empty where neither is given.
std::vector<RemoteHost> hosts_of(const GivenOptions& given, const Machine& machine, std::vector<std::string>& notices) {
  const auto *list = given.find("hosts"), *file = given.find("hostfile");
  for (const auto** option : {&list, &file})
    if (*option != nullptr && (*option)->value.empty() && (*option)->is_from_variable()) *option = nullptr;
  if (list != nullptr && file != nullptr) {
    if (list->is_from_variable() == file->is_from_variable())
      throw UsageError("--hosts and --hostfile exclude each other", list->where + " and " + file->where,
                       "drop one of them");
    (list->is_from_variable() ? list : file) = nullptr;
  }
  if (list != nullptr) return hosts_of_list(list->value, list->where);
  if (file == nullptr) return {};
  const auto text = machine.read_file ? machine.read_file(file->value) : std::nullopt;
  if (!text) throw UsageError("the host file " + file->value + " can't be read", file->where, "check the path");
  return hosts_of_file(*text, file->value, notices);
}

void read_nodes(const GivenOptions& given, JobOnHosts& job) {
  const int count = static_cast<int>(job.hosts.size());
  job.nodes = std::to_string(count);
  job.nodes_min = count;
  if (const auto* option = given.find("nnodes")) {
    const auto [low, high] = node_counts_of(*option);
    if (count < low || count > high)
      throw UsageError("--nnodes=" + option->value + ", but there are " + std::to_string(count) + " hosts",
                       option->where, "drop it: each host is a node. `--nnodes=MIN:MAX` is for hosts that may fail");
    job.nodes_min = low;
    job.nodes = low == high ? job.nodes : option->value;
    job.is_elastic = low != high;
  }
  if (const auto* option = given.find("rdzv-backend")) job.is_elastic = job.is_elastic || word_of(*option) == "c10d";
  refuse(given, "node-rank", "--node-rank is for a ddprun of one node, and hosts are numbered in their order",
         "drop it, and name the host that is to be node 0 first");
  refuse(given, "local-addr", "--local-addr is for a ddprun of one node: it is an address of that node",
         "drop it, or start ddprun on each host");
  if (count > 1)
    refuse(given, "standalone", "--standalone is one node, and there are " + job.nodes + " hosts", "drop it");
}

std::vector<std::string> options_of(const GivenOptions& given, const EnvironmentLookup& environment) {
  std::vector<std::string> out;
  for (const auto& option : option_table()) {
    const auto* value = given.find(option.name);
    if (value == nullptr || std::find(std::begin(kOfFront), std::end(kOfFront), option.name) != std::end(kOfFront))
      continue;
    const auto name = "--" + std::string(option.name);
    if (!option.value_name.empty())
      out.push_back(name + "=" + value->value);
    else if (value->value == "1")
      out.push_back(name);
  }
  // These have variables of other names too, and a host has no variable of this machine.
  const auto add = [&](std::string_view name, const std::string& value) {
    if (given.find(name) == nullptr) out.push_back("--" + std::string(name) + "=" + value);
  };
  const auto prefix = environment("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  if (!given.is_on("no-prefix")) add("log-line-prefix-template", prefix.empty() ? kShortPrefix : prefix);
  if (const auto time = environment("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")) add("shutdown-timeout", *time);
  return out;
}

// An own token of the job. Whoever names an endpoint may have a daemon there, which has the usual one.
std::string token_of(const GivenOptions& given, const JobOnHosts& job, const Machine& machine,
                     const std::function<std::string()>& new_key) {
  const auto* file = find_filled(given, "token-file");
  if (job.hosts.size() == 1 && !job.has_endpoint) return {};
  if ((file != nullptr || job.has_endpoint) && machine.find_tokens) {
    std::string lines;
    if (const auto tokens = machine.find_tokens(file != nullptr ? std::optional(file->value) : std::nullopt))
      for (const auto& token : tokens->all()) lines += (lines.empty() ? "" : "\n") + std::string(token.text());
    if (!lines.empty()) return lines;
  }
  return new_key() + new_key();
}

bool is_of_a_launcher(std::string_view variable) {
  return variable.starts_with("DDPRUN_") || variable.starts_with("PET_");
}

bool is_slurms(std::string_view variable) { return variable.starts_with("SLURM_"); }

// Of a host about which nothing is known yet.
Machine any_machine() {
  Machine out;
  out.gpu_count = out.xpu_count = 1;
  out.file_kind = [](const std::string&) { return FileKind::executable; };
  return out;
}

bool is_variable_name(std::string_view name) {
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

}  // namespace

std::vector<std::string> JobOnHosts::arguments_of(std::size_t host, const std::string& first_address) const {
  auto out = options;
  if (const auto workers = hosts[host].workers) {
    std::erase_if(out, [](const std::string& option) { return option.starts_with("--nproc-per-node="); });
    out.push_back("--nproc-per-node=" + std::to_string(*workers));
  }
  if (hosts.size() == 1 && !has_endpoint) {
    out.emplace_back("--standalone");
  } else {
    out.push_back("--nnodes=" + nodes);
    out.push_back("--node-rank=" + std::to_string(host));
    out.push_back(is_elastic ? "--rdzv-backend=c10d" : "--rdzv-backend=static");
    if (!has_endpoint)
      out.push_back(is_elastic ? "--rdzv-endpoint=" + base::host_and_port(first_address, kElasticPort)
                               : "--master-addr=" + first_address);
  }
  out.emplace_back("--");
  out.insert(out.end(), program.begin(), program.end());
  return out;
}

std::vector<std::string> exported_variables(const GivenOption& given, const std::vector<std::string>& entries) {
  std::vector<std::string> out;
  for (const auto& each : split(given.value, kListSeparator)) {
    const auto equals = each.find('=');
    const bool is_start = equals == std::string::npos && each.ends_with('*');
    const auto name = is_start ? each.substr(0, each.size() - 1) : each.substr(0, equals);
    if (!is_variable_name(name) && !(is_start && name.empty()))
      throw UsageError("'" + name + "' is no name of an environment variable", given.where,
                       "`-x NAME`, `-x NAME=VALUE`, or `-x 'NCCL_*'` for all that begin so");
    if (is_of_a_launcher(name))
      throw UsageError(name + " gives options to ddprun, and hosts get these from this ddprun", given.where,
                       "the option itself");
    if (equals != std::string::npos) {
      out.push_back(each);
      continue;
    }
    const auto start = is_start ? name : name + "=";
    const auto before = out.size();
    std::copy_if(entries.begin(), entries.end(), std::back_inserter(out), [&](const std::string& entry) {
      return entry.starts_with(start) && !(is_start && (is_of_a_launcher(entry) || is_slurms(entry)));
    });
    if (out.size() == before && !is_start)
      throw UsageError("there is no environment variable " + name, given.where,
                       "`export " + name + "=VALUE` before ddprun, or `-x " + name + "=VALUE`");
  }
  return out;
}

std::optional<JobOnHosts> job_on_hosts(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                       const std::vector<std::string>& entries, const Machine& machine,
                                       const std::function<std::string()>& new_key) {
  auto [given, program] = read_options(arguments, environment);
  for (const auto* name : {"help", "version", "print-man-page"})
    if (given.is_on(name)) return {};
  if (given.find("print-completion") != nullptr) return {};
  JobOnHosts job;
  job.hosts = hosts_of(given, machine, job.notices);
  if (job.hosts.empty()) {
    for (const auto* name : {"export", "ssh-args"})
      refuse(given, name, "--" + std::string(name) + " needs --hosts or --hostfile",
             "`--hosts=node0,node1`; without it, workers inherit ddprun's own environment");
    return {};
  }
  read_nodes(given, job);
  job.has_endpoint = find_filled(given, "rdzv-endpoint") != nullptr || find_filled(given, "master-addr") != nullptr;
  job.options = options_of(given, environment);
  job.program = program;
  if (const auto* option = find_filled(given, "ssh-args")) job.ssh_arguments = words_of(option->value, option->where);
  if (const auto* option = find_filled(given, "export")) job.variables = exported_variables(*option, entries);
  job.only_shows = given.is_on("dry-run");
  job.is_quiet = given.is_on("quiet");
  job.prefixes_lines = !given.is_on("no-prefix");
  job.token = token_of(given, job, machine, new_key);
  if (given.find("rdzv-id") == nullptr && (job.hosts.size() > 1 || job.has_endpoint))
    job.options.push_back("--rdzv-id=hosts_" + new_key().substr(0, 8));
  // What is wrong is told here, once, and not by each host.
  const auto of_host = [&environment](const std::string& name) {
    return is_of_a_launcher(name) || is_slurms(name) ? std::nullopt : environment(name);
  };
  auto of_first = job.arguments_of(0, "node0");
  std::erase_if(of_first, [](const std::string& word) { return word.starts_with("--wdir="); });  // it is there or not
  const auto config = parse_command_line(of_first, of_host, any_machine());
  job.stop_signals = config.stop_signals;
  job.forward_signals = config.forward_signals;
  job.grace = config.grace;
  return job;
}

}  // namespace ddp::launcher
