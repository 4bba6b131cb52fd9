// One ddprun: the real cores of the agent (NodeCore, MeetingCore, Session, and Membership where it serves the job) with
// virtual connections, workers and guardian. It performs those of their actions that a virtual world has, as
// launcher/agent does.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/node/meeting_core.hpp"
#include "launcher/node/node_core.hpp"
#include "rendezvous/link/given_up.hpp"
#include "rendezvous/link/session.hpp"
#include "tests/simulation/server.hpp"
#include "tests/simulation/workers.hpp"

namespace ddp::simulation {

class World;

class Node {
 public:
  // in_place_of: whose host name and port it takes over; null for a name and a port of its own.
  Node(World& world, int number, int host, int workers, bool serves, const Node* in_place_of);

  void start();
  void kill();           // its guardian ends the workers and says so
  void kill_guardian();  // alone: the agent ends the rest
  void kill_both();
  void lose();  // with its host
  // All processes of its host are killed. Others notice at once only if they are told that its connections have ended.
  void crash(bool is_told);
  void stop(int signal_number);
  void warn(int signal_number);
  void slow_files_until(TimePoint time) { files_are_slow_until_ = time; }
  bool are_files_slow() const { return are_files_slow({}); }
  // Its connection to membership ends, and it comes again. False where it has none.
  bool close_in_order(double jitter);

  bool is_alive() const { return process_.is_alive; }
  bool runs() const { return process_.runs(); }
  bool is_told_to_stop() const { return is_told_to_stop_; }
  bool has_finished() const { return exit_code_.has_value(); }
  // It was never told anything that lets it leave a job that goes on without it.
  bool has_to_stop_job() const { return is_told_to_stop_ && !may_leave_; }
  std::optional<int> exit_code() const { return exit_code_; }
  const std::optional<rendezvous::FinishJob>& verdict() const { return verdict_; }
  int host() const { return process_.host; }
  const std::string& name() const { return process_.name; }
  const std::string& key() const { return hello_.node_key; }
  const std::string& host_name() const { return hello_.host_name; }
  const rendezvous::StartRound& round() const { return core_.round(); }
  const Workers& workers() const { return workers_; }
  Workers& workers() { return workers_; }
  Process& process() { return process_; }
  const Process& process() const { return process_; }
  Process& guardian() { return guardian_; }
  Process& tree() { return tree_; }
  bool tree_runs() const { return tree_.is_alive; }
  const Server* server() const { return server_.get(); }
  bool serves() const { return server_ != nullptr; }
  const rendezvous::Session& session() const { return session_; }
  std::chrono::milliseconds job_time() const;
  // What a later ddprun on this host finds, if this one is dead.
  const std::optional<rendezvous::EndedNode>& left_record() const { return left_record_; }
  std::optional<TimePoint> unheard_at;  // when the daemon could not reach it, the last time that it mattered

 private:
  using Event = rendezvous::Session::Event;

  void host_membership(rendezvous::MembershipOptions options);
  void visit(Channel& channel);
  void visitor_says(Channel& channel, const Message& message);
  void close_channel();
  Channel& let_go_of_channel();
  void give_up(Channel& channel);

  // --- what the session decides ---
  void session_step(const Event& event);
  void perform(const rendezvous::Session::Actions& actions);
  void perform(const rendezvous::Session::Connect& action);
  void perform(const rendezvous::Session::HangUp& action);
  void perform(const rendezvous::Session::Send& action);
  void perform(const rendezvous::Session::HandOn& action);
  void perform(const rendezvous::Session::Serve& action);
  void perform(const rendezvous::Session::Call& action);
  void hang_up_call();
  void perform(const rendezvous::Session::StopOrphans& action);
  void perform(const rendezvous::Session::GiveUp& action);
  void say(const rendezvous::ToMembership& message);

  // --- what the meeting core decides ---
  void meet(const launcher::MeetingCore::Event& event);
  void perform(const launcher::MeetingCore::Actions& actions);
  void perform(const launcher::MeetingCore::LookUp&);
  void perform(const launcher::MeetingCore::GiveUpLookUp&) { ++look_ups_; }
  void perform(const launcher::MeetingCore::OpenEndpoint&);
  void perform(const launcher::MeetingCore::Join&);
  void perform(const launcher::MeetingCore::StartHosting& action);
  void perform(const launcher::MeetingCore::StopHosting& action);
  void perform(const launcher::MeetingCore::TellHost& action);
  void perform(const launcher::MeetingCore::HandOn& action);
  void perform(const launcher::MeetingCore::Print&) {}
  void perform(const launcher::MeetingCore::Lose& action);
  launcher::MeetingCore::LookedUp look_up();
  bool is_name_known() const { return world_now() >= name_known_at_; }
  TimePoint world_now() const;
  TimePoint now() const { return world_now() + clock_ahead_; }  // on this node's clock
  std::optional<TimePoint> in_world(std::optional<TimePoint> own) const;
  void begin_session_anew();

  // --- what the node core decides ---
  void decide(const launcher::NodeCore::Event& event);
  launcher::NodeCore::Facts facts() const;
  void perform(const launcher::NodeCore::Actions& actions);
  void perform(const launcher::NodeCore::Print&) {}
  void perform(const launcher::NodeCore::PrintText&) {}
  void perform(const launcher::NodeCore::PrintError&) {}
  void perform(const launcher::NodeCore::PrintLogFolder&) {}
  void perform(const launcher::NodeCore::Send& action) { say(action.message); }
  void perform(const launcher::NodeCore::SendRoundEnded& action);
  void perform(const launcher::NodeCore::SendToWorker& action);
  void perform(const launcher::NodeCore::SendToWorkers& action);
  void perform(const launcher::NodeCore::OpenOutput& action);
  void perform(const launcher::NodeCore::Spawn& action);
  void perform(const launcher::NodeCore::Rethrow&);
  void perform(const launcher::NodeCore::Seat& action);
  void perform(const launcher::SignalWorker& action) {
    workers_.signal_worker(action.local_rank, action.signal_number);
  }
  void perform(const launcher::KillWorker& action);
  void perform(const launcher::SignalTree& action) { workers_.signal_tree(action.signal_number, action.spared); }
  void perform(const launcher::KillOrphans&) { workers_.kill_orphans(); }
  void perform(const launcher::KillTree&) { workers_.kill_tree(); }
  void perform(const launcher::NodeCore::ForwardSignal&) {}
  void perform(const launcher::NodeCore::SuspendProcess&) {}
  void perform(const launcher::NodeCore::ForgetTree&) {}
  void perform(const launcher::NodeCore::ReadReasons& action);
  void perform(const launcher::NodeCore::BeginStore& action);
  void perform(const launcher::NodeCore::CloseOutput&) { close_output(); }
  void perform(const launcher::NodeCore::SetFarewell& action);
  void perform(const launcher::NodeCore::TryLinks& action);
  void perform(const launcher::NodeCore::WriteRecord&);
  void perform(const launcher::NodeCore::TellCaller&) {}
  void perform(const launcher::NodeCore::Finish& action);
  void perform(const launcher::NodeCore::Quit&) { end_process(); }

  // What is done with files of one kind, by a thread of its own. Only the last question to it is answered.
  struct FileWork {
    TimePoint ends_at{};
    std::uint64_t questions = 0;
  };
  bool are_files_slow(const FileWork& work) const;
  void answer_late(FileWork& work, const launcher::NodeCore::Event& event);
  void close_output();
  void note_killed(const std::vector<launcher::WorkerGroupEvent>& events);
  std::vector<bool> have_exited(const std::vector<int>& local_ranks) const;
  void begin_round();
  void let_spawn_fail(const std::vector<int>& local_ranks);
  void end_process();
  void guardian_takes_over();

  World& world_;
  Process process_, guardian_, tree_;
  rendezvous::Hello hello_;
  const Duration clock_ahead_;  // clocks of hosts have nothing in common
  const bool serves_first_;
  const RoundId term_;  // of the membership that it begins at the endpoint
  rendezvous::Session session_;
  launcher::MeetingCore meeting_;
  launcher::NodeCore core_;
  Workers workers_;
  Timer session_timer_, core_timer_, meeting_timer_;
  std::optional<TimePoint> session_waits_, core_waits_;
  TimePoint files_are_slow_until_{};
  FileWork opening_, closing_, reading_;
  std::unique_ptr<Server> server_;
  std::vector<std::unique_ptr<Server>> former_servers_;
  Channel* channel_ = nullptr;
  Channel* called_ = nullptr;               // of the last call
  rendezvous::GivenUp<Channel*> given_up_;  // their sockets are open, as far as this side goes
  std::uint64_t attempts_ = 0, look_ups_ = 0;
  TimePoint name_known_at_{};
  std::string slurm_address_;  // of the endpoint, as this node's client was told
  bool has_session_begun_ = false;
  rendezvous::Session::Target target_;
  std::vector<rendezvous::Session::Target> farewell_to_;  // as the guardian was told
  std::optional<rendezvous::EndedNode> record_, left_record_;
  int killed_by_ = 0;
  std::set<int> killed_ranks_;  // local ranks of workers that ended last by a signal
  bool is_told_to_stop_ = false, may_leave_ = false, has_told_of_survivors_ = false;
  std::optional<int> exit_code_;
  std::optional<rendezvous::FinishJob> verdict_;
};

}  // namespace ddp::simulation
