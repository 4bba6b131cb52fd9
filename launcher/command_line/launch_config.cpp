#include "launcher/command_line/launch_config.hpp"

#include <algorithm>
#include <csignal>

#include "base/loopback.hpp"
#include "ddp/error.hpp"
#include "launcher/command_line/option_table.hpp"
#include "launcher/command_line/option_values.hpp"
#include "launcher/command_line/other_launchers.hpp"
#include "launcher/command_line/quoted_word.hpp"
#include "launcher/command_line/rendezvous_options.hpp"
#include "launcher/command_line/slurm_defaults.hpp"
#include "rendezvous/store/access_control.hpp"

namespace ddp::launcher {
namespace {

constexpr int kRestartsMax = 1'000'000;
constexpr int kTimeLimitMax = 366 * 24 * 3600;  // seconds

int worker_count(const GivenOption& given, const Machine& machine) {
  const auto all_of = [&given](int count, const std::string& what, const std::string& look) {
    if (count > 0) return count;
    throw UsageError("--nproc-per-node=" + given.value + ", but no " + what + " can be used here", given.where,
                     "`--nproc-per-node=cpu` or a number; " + look);
  };
  if (given.value == "cpu") return machine.cpu_count;
  if (given.value == "auto") return machine.gpu_count > 0 ? machine.gpu_count : machine.cpu_count;
  if (given.value == "gpu")
    return all_of(machine.gpu_count, "GPU", "`nvidia-smi -L` and CUDA_VISIBLE_DEVICES tell what is visible");
  if (given.value == "xpu")
    return all_of(machine.xpu_count, "GPU of Intel's", "`ls /sys/class/drm` tells what there is");
  if (const auto value = whole_number(given.value, 1, kWorkersMax)) return *value;
  throw_wrong_value(given, "a number from 1 to " + std::to_string(kWorkersMax) + ", gpu, cpu, auto or xpu", "1");
}

std::vector<std::string> store_allow_of(const GivenOption& given) {
  auto blocks = split(given.value, ',');
  try {
    store::AllowList::parse(blocks);
  } catch (const InvalidArgument& error) {
    throw UsageError(error.what(), given.where, "`--store-allow=10.0.0.0/8`, a list of such blocks, or `any`");
  }
  return blocks;
}

std::chrono::milliseconds grace_of(const GivenOptions& given, const EnvironmentLookup& environment,
                                   const Machine& machine, bool in_slurm_job, SlurmFacts& facts) {
  if (const auto* option = given.find("shutdown-timeout"))
    return std::chrono::seconds(number_of(*option, 0, kSecondsMax));
  const auto text = environment("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  if (!text && in_slurm_job) return slurm_grace(environment, machine, facts);
  if (!text) return std::chrono::seconds(30);
  const auto value = whole_number(*text, 0, kSecondsMax);
  if (!value)
    throw UsageError("a whole number of seconds is wanted, not '" + *text + "'",
                     "environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "`--shutdown-timeout=30`");
  return std::chrono::seconds(*value);
}

OutputOptions output_of(const GivenOptions& given, const EnvironmentLookup& environment) {
  OutputOptions output;
  if (const auto* option = given.find("log-dir")) {
    if (option->value.empty()) throw_wrong_value(*option, "a folder", "logs");
    output.log_directory = option->value;
  }
  if (const auto* option = given.find("redirects")) output.redirects = stream_mask_of(*option);
  if (const auto* option = given.find("tee")) output.tee = stream_mask_of(*option);
  if (const auto* option = given.find("local-ranks-filter")) output.local_ranks_shown = rank_ranges_of(*option);
  if (const auto* option = given.find("ranks-filter")) output.ranks_shown = rank_ranges_of(*option);
  if (const auto* option = given.find("duplicate-stdout-filters")) output.stdout_duplicates = filters_of(*option);
  if (const auto* option = given.find("duplicate-stderr-filters")) output.stderr_duplicates = filters_of(*option);
  if (const auto* option = given.find("log-line-prefix-template")) output.prefix_template = option->value;
  if (output.prefix_template.empty())
    output.prefix_template = environment("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("");
  output.is_quiet = given.is_on("quiet");
  output.prefix_lines = !given.is_on("no-prefix");
  output.merge_equal_lines = given.is_on("merge-equal-lines");
  return output;
}

BindingOptions binding_of(const GivenOptions& given) {
  using Mode = BindingOptions::Mode;
  BindingOptions binding;
  binding.display = given.is_on("display-binding");
  const auto* option = given.find("numa-binding");
  if (option == nullptr) return binding;
  const auto word = word_of(*option);
  binding.mode = word == "node"        ? Mode::node
                 : word == "socket"    ? Mode::socket
                 : word == "exclusive" ? Mode::exclusive
                                       : Mode::core_complex;
  return binding;
}

void read_signals(const GivenOptions& given, LaunchConfig& config) {
  config.stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  if (const auto* option = given.find("signals-to-handle")) {
    config.stop_signals = signals_of(*option);
    if (config.stop_signals.empty()) throw_wrong_value(*option, "at least one signal", "SIGTERM,SIGINT");
  }
  const auto has = [](const std::vector<int>& signals, int number) {
    return std::find(signals.begin(), signals.end(), number) != signals.end();
  };
  if (const auto* option = given.find("forward-signals")) {
    config.forward_signals = signals_of(*option);
    for (const int number : config.forward_signals)
      if (has(config.stop_signals, number))
        throw UsageError("--forward-signals has a signal that stops the job: " + option->value, option->where,
                         "drop it here, or name the stopping ones without it: `--signals-to-handle=SIGTERM,SIGINT`");
  }
  // ddprun gets it too, as every process of a step does, and is not to die of it.
  if (!config.in_slurm_step || has(config.stop_signals, SIGUSR1) || has(config.forward_signals, SIGUSR1)) return;
  config.forward_signals.push_back(SIGUSR1);
  config.slurm_facts.emplace_back("SIGUSR1 says that time is short (a step of Slurm)");
}

void check_what_has_no_effect(const GivenOptions& given, std::vector<std::string>& notices) {
  const auto say = [&notices](const GivenOption& option, const char* why) {
    notices.push_back("without effect: " + option.where + ": " + why);
  };
  if (const auto* option = given.find("monitor-interval")) {
    if (!seconds(option->value)) throw_wrong_value(*option, "seconds above 0 and up to a week", "0.1");
    say(*option, "nothing polls");
  }
  if (const auto* option = given.find("start-method")) {
    word_of(*option);
    say(*option, "every worker is a new program");
  }
  if (const auto* option = given.find("event-log-handler"))
    if (name_of(*option) != "null") say(*option, "there are no handlers of events");
  if (const auto* option = given.find("logs-specs")) word_of(*option);
  if (const auto* option = given.find("restart-window"); option != nullptr && given.find("max-restarts") == nullptr)
    say(*option, "there are no restarts without --max-restarts");
}

// Names that scripts often have themselves. Behind the program they are not pointed out, nor is a single letter.
constexpr std::string_view kNamesOfScripts[] = {"dry-run",      "export",  "help",       "log-dir", "log-level",
                                                "module",       "quiet",   "report",     "role",    "run-path",
                                                "start-method", "timeout", "token-file", "version", "wdir"};

// What another launcher calls it, and no script by chance: `--gpus` and `--env`, for example, are not among them.
constexpr std::string_view kNamesOfLaunchers[] = {"np",           "num-processes",   "ntasks-per-node",
                                                  "npernode",     "machinefile",     "machine-rank",
                                                  "num-machines", "main-process-ip", "main-process-port"};

// A word behind the program that is meant for ddprun, or was in another launcher.
struct Misplaced {
  std::string words;      // with its value
  std::string instead{};  // of another launcher's: what to write
};

std::optional<Misplaced> misplaced_at(const std::vector<std::string>& program, std::size_t at) {
  const auto& word = program[at];
  const auto dashes = word.find_first_not_of('-');
  if (dashes == 0 || dashes > 2) return {};  // also of a word without anything else
  auto name = word.substr(dashes, std::min(word.find('='), word.size()) - dashes);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto is_one_of = [&name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const auto* option = find_option(name);
  const bool is_ours =
      dashes == 2 && option != nullptr && option->group != OptionGroup::hidden && !is_one_of(kNamesOfScripts);
  if (!is_ours && !is_one_of(kNamesOfLaunchers)) return {};
  const bool takes_value = !is_ours || !option->value_name.empty();
  const bool is_next_value =
      takes_value && word.find('=') == word.npos && at + 1 < program.size() && !program[at + 1].starts_with('-');
  Misplaced out{is_next_value ? word + " " + quoted_word(program[at + 1]) : quoted_word(word)};
  if (is_ours) return out;
  out.instead = instead_of(name).value_or("`ddprun --help`");
  const auto value = is_next_value ? program[at + 1] : word.substr(std::min(word.find('='), word.size() - 1) + 1);
  for (const std::string_view place : {"=N`", "=HOST`", "=PORT`", "=FILE`"})
    if (const auto found = out.instead.rfind(place); found != std::string::npos && !value.empty())
      out.instead.replace(found, place.size(), "=" + quoted_word(value) + "`");
  return out;
}

// They are the program's, as with torchrun.
void say_what_is_behind_the_program(const std::vector<std::string>& program, std::vector<std::string>& notices) {
  const auto is_script = [](const std::string& word) { return word.ends_with(".py"); };
  for (std::size_t at = 1; at < program.size(); ++at) {
    const auto found = misplaced_at(program, at);
    if (!found) continue;
    const auto end = program.begin() + static_cast<std::ptrdiff_t>(at);
    const auto script = std::find_if(program.begin(), end, is_script);
    const auto& its = script == end ? program.front() : *script;
    notices.push_back(found->words + " goes to " + its + ", because it stands behind it; for ddprun write before " +
                      quoted_word(program.front()) + ": " +
                      (found->instead.empty() ? "`" + found->words + "`" : found->instead));
  }
}

// One node has no control channel.
void find_tokens(const GivenOptions& given, const Machine& machine, LaunchConfig& config) {
  const auto* option = given.find("token-file");
  if (config.rendezvous.nodes_max == 1) {
    if (option != nullptr) config.notices.push_back("without effect: " + option->where + ": there is one node");
    return;
  }
  if (option != nullptr && option->value.empty()) throw_wrong_value(*option, "a file", "/run/secrets/ddprun");
  if (machine.find_tokens)
    config.rendezvous.tokens = machine.find_tokens(option != nullptr ? std::optional(option->value) : std::nullopt);
  if (!config.rendezvous.tokens)
    config.notices.push_back("the job is open: whoever reaches its endpoint and knows its id can join (--token-file)");
}

std::string one_core_text(const std::optional<slurm::Step>& step, int workers) {
  if (step) return slurm_one_core_text(*step, workers);
  return "all " + std::to_string(workers) +
         " workers share one core, as ddprun was given no more of this machine; under Slurm `srun --cpus-per-task=N` "
         "gives more";
}

// What no option can say.
void take_slurm_rendezvous(const slurm::Step& step, const SlurmRendezvous& meeting, LaunchConfig& config) {
  auto& rendezvous = config.rendezvous;
  if (rendezvous.mode == RendezvousConfig::Mode::local) return;
  if (meeting.gives_endpoint) {
    rendezvous.port_count = slurm::ports_of(step).count;
    rendezvous.slurm_run = slurm::run_id_of(step);
  }
  if (!rendezvous.is_host && rendezvous.mode == RendezvousConfig::Mode::dynamic) {
    rendezvous.is_host = meeting.is_host;
    rendezvous.may_have_daemon = meeting.is_host == true && !meeting.gives_endpoint;
  }
  rendezvous.may_be_slurm_node = !base::is_loopback_host(rendezvous.host);
}

std::string worker_directory_of(const GivenOption& given, const Machine& machine) {
  if (given.value.empty()) throw_wrong_value(given, "a folder", "/data/run1");
  const auto kind = machine.file_kind(given.value);
  if (kind == FileKind::directory && machine.file_kind(given.value + "/.") == FileKind::directory) return given.value;
  if (kind == FileKind::directory)
    throw UsageError("the working directory " + given.value + " may not be entered", given.where,
                     "`ls -ld " + quoted_word(given.value) + "`, or another path");
  throw UsageError(
      "the working directory " + given.value + (kind == FileKind::missing ? " does not exist" : " is no directory"),
      given.where, "`mkdir -p " + quoted_word(given.value) + "`, or another path");
}

// Workers start there, so the program is looked for there.
FileLookup lookup_from(const std::string& directory, const FileLookup& file_kind) {
  if (directory.empty()) return file_kind;
  return [directory, file_kind](const std::string& path) {
    return file_kind(path.starts_with('/') ? path : directory + "/" + path);
  };
}

RunBy run_by(const GivenOptions& given) {
  if (given.is_on("module") && given.is_on("no-python"))
    throw UsageError("--module and --no-python exclude each other",
                     given.find("module")->where + " and " + given.find("no-python")->where, "drop one of them");
  if (given.is_on("module")) return RunBy::python_module;
  if (given.is_on("run-path")) return RunBy::python;
  return given.is_on("no-python") ? RunBy::itself : RunBy::name;
}

// What only shows something and needs no program; empty: a program is to be launched or planned.
std::optional<LaunchConfig> shown_only(const GivenOptions& given) {
  using Mode = LaunchConfig::Mode;
  LaunchConfig config;
  if (given.is_on("help")) {
    config.mode = Mode::show_help;
  } else if (given.is_on("version")) {
    config.mode = Mode::show_version;
  } else if (given.is_on("print-man-page")) {
    config.mode = Mode::show_man_page;
  } else if (const auto* shell = given.find("print-completion")) {
    config.mode = Mode::show_completion;
    config.completion_shell = word_of(*shell);
  } else {
    return {};
  }
  return config;
}

}  // namespace

LaunchConfig parse_command_line(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                const Machine& whole_machine) {
  auto [given, program] = read_options(arguments, environment);
  if (auto config = shown_only(given)) return *config;
  LaunchConfig config;
  const auto place = slurm_place(given, environment, config.notices);
  config.in_slurm_step = place.in_step;
  config.slurm_step = place.for_workers;
  SlurmRendezvous meeting;
  if (place.step) {
    meeting = slurm_rendezvous(*place.step, given, config.notices, config.slurm_facts);
    given = meeting.options;
  }
  const auto machine =
      place.step ? slurm_machine(*place.step, environment, whole_machine, config.slurm_facts) : whole_machine;
  config.mode = given.is_on("dry-run") ? LaunchConfig::Mode::show_plan : LaunchConfig::Mode::launch;
  config.workers = std::max(1, machine.gpu_count);
  if (const auto* option = given.find("nproc-per-node"))
    config.workers = worker_count(*option, machine);
  else
    config.notices.push_back(machine.gpu_count > 0 ? "starting " + std::to_string(config.workers) +
                                                         " workers, one per GPU (--nproc-per-node)"
                                                   : "starting 1 worker, as there is no GPU (--nproc-per-node)");
  if (machine.one_core && config.workers > 1) config.notices.push_back(one_core_text(place.step, config.workers));
  config.rendezvous = rendezvous_of(given, config.notices);
  if (place.step) take_slurm_rendezvous(*place.step, meeting, config);
  if (place.step)
    if (auto notice = slurm_kill_text(*place.step, config.rendezvous, environment); !notice.empty())
      config.notices.push_back(std::move(notice));
  find_tokens(given, machine, config);
  if (const auto* option = given.find("store-allow")) config.store_allow = store_allow_of(*option);
  if (const auto* option = given.find("role")) config.role = name_of(*option);
  config.virtual_local_rank = given.is_on("virtual-local-rank");
  config.output = output_of(given, environment);
  if (const auto* option = given.find("report")) {
    if (option->value.empty()) throw_wrong_value(*option, "a file", "report.json");
    config.report_file = option->value;
  }
  if (const auto* option = given.find("log-level")) config.log_level = *base::log_level_of(word_of(*option));
  if (const auto* option = given.find("max-restarts")) config.restarts_max = number_of(*option, 0, kRestartsMax);
  if (const auto* option = given.find("restart-window"))
    config.restart_window = std::chrono::seconds(number_of(*option, 1, kSecondsMax));
  if (const auto* option = given.find("timeout"))
    config.time_limit = std::chrono::seconds(number_of(*option, 1, kTimeLimitMax));
  config.grace = grace_of(given, environment, machine, place.in_job, config.slurm_facts);
  read_signals(given, config);
  // `scancel` signals all nodes of a job, one after the other.
  const auto* on_stop = given.find("on-node-stop");
  config.leaves_when_stopped = on_stop != nullptr ? word_of(*on_stop) == "leave" : !place.in_job;
  config.binding = binding_of(given);
  check_what_has_no_effect(given, config.notices);
  const auto how = run_by(given);
  if (program.empty() || program.front().empty())
    throw UsageError("no program given", "the end of ddprun's command line",
                     "`ddprun --nproc-per-node=2 train.py`; `ddprun --help` shows more");
  say_what_is_behind_the_program(program, config.notices);
  config.program = program.front();
  if (const auto* option = given.find("wdir")) config.worker_directory = worker_directory_of(*option, machine);
  config.command = command_of(program, how, environment, lookup_from(config.worker_directory, machine.file_kind));
  return config;
}

}  // namespace ddp::launcher
