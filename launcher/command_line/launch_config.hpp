// What one run of ddprun is to do: the command line, the environment and the machine's facts, made into values.
//
// Pure: what it must know of the machine comes in as `Machine`, so that a test can be any machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/event_log.hpp"
#include "launcher/binding/binding_options.hpp"
#include "launcher/command_line/program.hpp"
#include "launcher/output/output_options.hpp"
#include "rendezvous/security/token.hpp"
#include "rendezvous/store/memory_budget.hpp"

namespace ddp::launcher {

struct Machine {
  int gpu_count = 0;  // that the workers may use
  int xpu_count = 0;  // Intel's GPUs
  int cpu_count = 1;  // that this process may run on
  FileLookup file_kind;
  bool one_core = false;  // is all that this process may run on, although the machine has more
  // The token of this user, and where it is looked for first; may throw security::TokenError.
  std::function<std::optional<security::Tokens>(const std::optional<std::string>& file)> find_tokens{};
  // The text of a file of settings; empty where it can't be read.
  std::function<std::optional<std::string>(const std::string& path)> read_file{};
};

// Where the nodes of a job meet.
struct RendezvousConfig {
  enum class Mode {
    local,   // one node, a store of its own on a free port: --standalone, or one node and no address
    fixed,   // torchrun's `static`: node ranks are given, node rank 0 serves the endpoint
    dynamic  // torchrun's `c10d`: whoever owns the endpoint's address serves it, and gives out ranks
  };
  Mode mode = Mode::local;
  int nodes_min = 1, nodes_max = 1;
  std::string host;        // of the endpoint, as the user gave it, an IPv6 address without brackets; local: empty
  std::uint16_t port = 0;  // of the endpoint; 0 takes a free one, which only works with one node
  int port_count = 1;      // from there on, the first free one of which is the endpoint's
  bool may_be_slurm_node = false;  // the endpoint's host, whose name need not resolve then
  std::string slurm_run;           // the step and its run, where its ports are those of the endpoint; else empty
  std::string run_id;              // --rdzv-id; empty: one is made for this run
  std::optional<int> node_rank;    // --node-rank, where it was given; in fixed mode always
  std::optional<bool> is_host;     // --rdzv-conf is_host: serve the endpoint, or never; empty: find out
  bool may_have_daemon =
      false;                  // is_host says only that the endpoint is on this host, where ddp-rendezvous may have it
  std::string local_address;  // --local-addr: under which other nodes reach this one; empty: find out
  std::chrono::milliseconds orphan_limit{60'000};       // without any answer, after which workers are stopped
  std::uint16_t port_first = 0, port_last = 0;          // --port-range, for whatever else listens; 0: any free port
  std::chrono::milliseconds join_timeout{600'000};      // for the nodes to be complete
  std::chrono::milliseconds last_call_timeout{30'000};  // wait for more nodes between nodes_min and nodes_max
  std::chrono::milliseconds heartbeat_timeout{3'000};   // silence that counts as death
  int store_memory_mib = store::kMemoryMibDefault;      // of the store that this node serves
  std::optional<security::Tokens> tokens;               // that all nodes have; empty: whoever comes is taken in
};

struct LaunchConfig {
  enum class Mode { launch, show_plan, show_help, show_version, show_man_page, show_completion };
  Mode mode = Mode::launch;
  std::string completion_shell;                 // of show_completion: bash, zsh or fish
  int workers = 1;                              // on this node
  int restarts_max = 0;                         // of the whole job
  std::chrono::milliseconds restart_window{0};  // only restarts of that time count; 0: all do
  std::string role = "default";
  RendezvousConfig rendezvous;
  std::chrono::milliseconds grace{30'000};
  std::chrono::milliseconds time_limit{0};  // --timeout, from the start of this ddprun; 0: none
  std::vector<int> stop_signals;            // --signals-to-handle: end the job
  bool leaves_when_stopped = true;          // --on-node-stop: this node, and the job goes on if it can
  std::vector<int> forward_signals;         // --forward-signals: are passed on to the workers that handle them
  OutputOptions output;
  std::string report_file;                         // empty: none is wanted
  base::LogLevel log_level = base::LogLevel::off;  // of ddprun's own events
  BindingOptions binding;
  bool virtual_local_rank = false;
  std::vector<std::string> store_allow;
  std::string worker_directory;  // --wdir; empty: ddprun's own
  Command command;
  bool in_slurm_step = false;            // Slurm signals every process of the step, workers included
  std::string slurm_step;                // DDPRUN_SLURM_STEP of the workers; empty: they get none
  std::vector<std::string> slurm_facts;  // what was taken from Slurm, and from which variable
  std::string program;                   // as the user named it
  std::vector<std::string> notices;  // choices that the user left to ddprun, and settings without effect; to be said
};

// Throws UsageError, ProgramError, security::TokenError, or InvalidArgument in three lines for variables of Slurm's
// that contradict each other.
LaunchConfig parse_command_line(const std::vector<std::string>& arguments, const EnvironmentLookup& environment,
                                const Machine& machine);

}  // namespace ddp::launcher
