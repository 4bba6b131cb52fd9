// A job in a virtual world: hosts, the daemon, nodes, and what can happen to them. The same seed gives the same
// history.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/daemon/job_table.hpp"
#include "tests/simulation/blame.hpp"
#include "tests/simulation/checks.hpp"
#include "tests/simulation/clock.hpp"
#include "tests/simulation/dice.hpp"
#include "tests/simulation/network.hpp"
#include "tests/simulation/node.hpp"
#include "tests/simulation/server.hpp"
#include "tests/simulation/switches.hpp"

namespace ddp::simulation {

constexpr const char* kRunId = "job";
constexpr const char* kEndpointName = "endpoint";
constexpr const char* kAddressOfNobody = "10.9.9.9";  // that the name may have, and that leads to the endpoint's host
constexpr int kEndpointPort = 29400, kStandbyPort = 29500;

// No node of the job, but somebody who speaks to its membership.
inline bool is_stranger(const std::string& node_key) { return node_key.front() != '0'; }

enum class PortHolder {
  nobody,
  other_job,  // its membership
  hangs_up,
  silent,      // takes no connection, and refuses none
  turns_away,  // another job's membership, which has another token
};

// How nodes find out which of them serves the endpoint, and at which address it is.
struct LookUps {
  enum class Kind {
    none,          // they are told
    by_address,    // the name has an address of the endpoint's host
    by_node_rank,  // the name has an address that no host knows as its own, and leads to node rank 0
    slurm,         // they are told who serves it, and the name need not resolve
  };
  Kind kind = Kind::none;
  Duration known_after_max{0};   // of a node's start: the name
  Duration answer_max = 50ms;    // of the resolver
  bool may_have_daemon = false;  // so that an endpoint which is taken is joined
};

struct Job {
  int hosts = 2;  // of nodes; host 0 is the endpoint's, or the daemon's where it is apart
  bool is_daemon_apart = false;
  bool is_endpoint_numeric = false;  // else a name, which may lead to another host later
  int nodes_min = 2, nodes_max = 2;
  int restarts_max = 0;
  bool leaves_when_stopped = false;  // a node, where the job can go on without it
  bool are_ends_proven = false;      // by a later ddprun on the same host, if ddprun and guardian were killed there
  std::chrono::milliseconds join_timeout{20'000}, last_call_timeout{2'000}, grace{2'000}, orphan_limit{20'000};
  NetworkOptions network;
  WorkerHabits workers;
  int workers_max = 2;
  bool is_signal_told = false;  // by the guardian; in histories with switches only, as the others are to stay the same
  std::chrono::milliseconds signal_window{0};                            // of agents under a scheduler
  Duration collective_timeout_min = 1ms, collective_timeout_max = 20ms;  // until a missing rank is noticed
  bool is_collective_endless = false;                                    // it is not
  std::vector<PortHolder> ports{PortHolder::nobody};  // those at which the endpoint may be, and who else is there
  bool has_token = false;                             // so that a refusal in the handshake proves nothing
  int endpoint_at = 0;                                // which of them it has
  LookUps look_ups;
  std::size_t jobs_max = rendezvous::kJobsMax;  // of the daemon
  std::array<bool, kFaults> settings{};         // that are switched on
  bool has(Fault setting) const { return settings[index_of(setting)]; }
  std::chrono::milliseconds restart_window{0}, time_limit{0};  // 0: none
  rendezvous::VersionRange daemon_versions, node_versions;     // those that start from now on
};

class World {
 private:
  struct Daemon {
    Process process{"daemon", 0};
    std::unique_ptr<rendezvous::JobTable<Server>> jobs;
    std::vector<std::unique_ptr<Server>> forgotten;  // events may still name them
  };

 public:
  World(std::uint64_t seed, bool traces);

  // What a history sets before anything happens.
  Job job;

  // --- for the parts of the world ---
  Clock clock;
  Dice dice;
  Dice stop_dice;       // for all that belongs to stops at one step: the histories without any stay what they were
  Dice scheduler_dice;  // the same, for what a scheduler does
  Dice fault_dice;      // the same, for the faults that have a switch
  Dice seat_dice;       // the same, for workers that live on when their round is over
  Dice look_up_dice;    // the same, for names
  Dice setting_dice;    // the same, for the settings that have a switch
  std::unique_ptr<Network> network;
  Checks checks;
  Blame blame;
  std::size_t late_answers = 0;                                       // of slow files
  std::size_t seats_given = 0, killed_alone = 0, sockets_let_go = 0;  // see HistoryResult
  CallCounts failed_calls{};
  FaultCounts settings_used{};                          // how often each setting that has a switch made a difference
  std::size_t refused_new = 0, refused_with_round = 0;  // by a daemon that is full
  bool traces;
  template <typename... Parts>
  void trace(const Parts&... parts) {
    if (!traces) return;
    std::string line;
    ((line += text_of(parts)), ...);
    write(line);
  }
  void workers_changed();
  // Or left, or hangs: its peers may notice. hung_rank: which one of the world does.
  void worker_ended(const RoundId& round, bool is_success, std::optional<int> hung_rank = {});
  // As long as these hosts do not reach each other their workers find that at the deadline of each collective: those of
  // one host first.
  void miss_each_other(int a, int b);
  // Of the workers of a round once they have finished a step: one more than any of them had.
  std::uint64_t commits_of(const RoundId& round);
  void tells(const Server& server, const std::string& node_key, const rendezvous::ToAgent& message);
  Node& node_of(const std::string& node_key) const { return *nodes_.at(std::stoul(node_key, nullptr, 16)); }
  std::string name_of(const std::string& node_key) const;
  void node_ended(Node& node);
  // Whether this call of an agent is one that fails, which is then noted.
  bool does_fail(const Node& node, Call call);
  void let_fail(int host, Call call, TimePoint until) { fails_until_[{host, call}] = until; }
  void let_all_succeed() { fails_until_.clear(); }
  void trace_heard(const std::string& node_key, const rendezvous::ToMembership& message);
  RoundId begin_term();
  int stop_signal();    // of who is told to stop
  int deadly_signal();  // of a ddprun or a guardian that is killed
  launcher::Reasons reasons_of(const std::vector<bool>& have_exited);
  std::string address_of(int host) const { return "10.0.0." + std::to_string(host + 1); }
  int host_of(const std::string& address) const { return std::stoi(address.substr(7)) - 1; }
  // Where this leads to from that host: an address, or a name of the endpoint.
  int host_reached(const std::string& name, int from) const;
  std::string endpoint_name() const;  // as the user gave it
  rendezvous::MembershipOptions with_nonces(rendezvous::MembershipOptions options);
  std::function<void(const std::string& line)> out;

  // --- what happens ---
  void begin();
  Node& start_node(int host, const Node* in_place_of = nullptr);
  void start_daemon();
  void kill_daemon();
  bool is_daemon_alive() const { return daemon_ && daemon_->process.is_alive; }
  Process& daemon_process() { return daemon_->process; }
  void pause(Process& process, Duration time);
  void freeze(int host, Duration time);
  void lose_host(int host);
  // Agents and workers, in any order; SIGUSR1 is a warning to agents.
  void signal_every_process(int signal_number, Duration within);
  std::vector<Node*> nodes_alive() const;
  Node* node_on(int host) const;
  const std::deque<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  const rendezvous::Membership* membership_of_daemon() const;
  // All of its members are at work, run, and are in touch with each other and with their membership, and their clocks
  // differ by no more than this.
  bool is_round_undisturbed(const RoundId& round, std::chrono::milliseconds clocks_differ_by) const;
  int endpoint_port() const { return kEndpointPort + job.endpoint_at; }
  int endpoint_host() const { return job.is_daemon_apart ? job.hosts : 0; }
  int hosts() const { return job.hosts + (job.is_daemon_apart ? 1 : 0); }
  bool is_work_done = false;

 private:
  static std::string text_of(const std::string& text) { return text; }
  static std::string text_of(const char* text) { return text; }
  template <typename T>
  static std::string text_of(const T& number) {
    return std::to_string(number);
  }
  void write(const std::string& line);
  void trace_message(const std::string& name, const rendezvous::ToAgent& message);
  bool was_cut_off(Node& node);
  void miss(Node& one, const Node& other);
  bool is_told_to_stop(const Node& node) const;  // or another one of its round
  void start_stranger(int port, PortHolder holder);
  void direct(Daemon& daemon, Channel& channel, const rendezvous::Hello& hello);
  void go_on(Process& process, Duration paused);

  std::deque<std::unique_ptr<Node>> nodes_;
  std::vector<Node*> alive_;
  Process strangers_{kStrangers, 0};
  std::deque<std::unique_ptr<Daemon>> daemons_;
  Daemon* daemon_ = nullptr;
  std::map<RoundId, std::uint64_t> commits_;
  std::map<RoundId, int> gave_up_;  // the first rank that missed another host, and told the others
  std::map<std::pair<int, Call>, TimePoint> fails_until_;  // by host
  std::uint64_t terms_ = 0, nonces_ = 0;
  int nodes_started_ = 0;
};

}  // namespace ddp::simulation
