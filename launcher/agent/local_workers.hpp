// Performs what the node decides about its workers: opens their output, starts them or gives them the ranks of the next
// round, sends them messages and signals.
//
// The guardian is the parent of the workers. This class tells the guardian which worker to start, with which
// environment and descriptors.
//
// Threads: the event loop's only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/agent/guardian_link.hpp"
#include "launcher/agent/worker_links.hpp"
#include "launcher/binding/binding.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/node/node_core.hpp"
#include "launcher/output/output.hpp"

namespace ddp::launcher {

class LocalWorkers {
 public:
  struct Parts {
    const LaunchConfig& config;
    const std::vector<std::string>& inherited;  // ddprun's own environment, as "NAME=value"
    const std::vector<Binding>& bindings;       // of each worker; empty: none is bound
    const std::string& run_id;
    const NodeCore& core;  // which knows the round
    GuardianLink& guardian;
    WorkerLinks& links;
    Output& output;
  };
  struct Handlers {
    std::function<void(const NodeCore::Event& event)> event;  // never from within perform()
    std::function<void(const std::string& line)> print;
  };

  // All parts must outlive this object.
  LocalWorkers(boost::asio::io_context& io, const Parts& parts, Handlers handlers);
  LocalWorkers(const LocalWorkers&) = delete;

  void perform(const NodeCore::OpenOutput& action);
  void perform(const NodeCore::Spawn& action);
  void perform(const NodeCore::Rethrow&) { std::rethrow_exception(spawn_error_); }
  void perform(const NodeCore::Seat& action);
  void perform(const NodeCore::SendToWorker& action);
  void perform(const NodeCore::SendToWorkers& action);
  void perform(const NodeCore::ForwardSignal& action) { parts_.guardian.forward(action.signal_number); }
  void perform(const NodeCore::ForgetTree&) { parts_.guardian.give_up(); }
  void perform(const SignalWorker& action) { parts_.guardian.signal_worker(action.local_rank, action.signal_number); }
  void perform(const KillWorker& action) { parts_.guardian.kill_worker(action.local_rank); }
  void perform(const SignalTree& action) { parts_.guardian.signal_tree(action.signal_number, action.spared); }
  void perform(const KillOrphans&) { parts_.guardian.kill_orphans(); }
  void perform(const KillTree&) { parts_.guardian.kill_tree(); }

 private:
  void open_output(const std::vector<int>& kept, Output::Opened opened);
  void spawn(int local_rank);
  void show_bindings();
  std::vector<std::string> variables_of(int local_rank) const;
  std::vector<int> others_than(const std::vector<int>& local_ranks) const;

  boost::asio::io_context& io_;
  const Parts parts_;
  const Handlers handlers_;
  const bool has_terminal_;              // as stdin; asked once, because a file's disk may be asked, too
  std::exception_ptr spawn_error_;       // the last one
  std::optional<int> shown_rank_first_;  // by --display-binding
};

}  // namespace ddp::launcher
