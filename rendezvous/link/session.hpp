// What an agent does to stay in touch with its job's membership: whom it connects to, how often, what it says again on
// a new connection, when it gives up, and when it is the one to serve membership next.
//
// Pure: events and the time go in, actions come out. No socket, no clock, no random numbers.
//
// The rules: before the first round the endpoint is tried until join_timeout. Where it may be at one of several ports,
// they are tried in turn without a pause between them; the one at which the job is found is the endpoint's from then
// on, and another job that is met is as good as nobody. A peer that refuses ends the search: at once where it is known
// to be the endpoint, else after refusal_limit(); with several ports once one of them refuses and all the others have
// answered for as long as the job may take to come. With a round, the end of a connection touches no worker: the
// endpoint is tried for as long as workers run, and once it answers again both sides say what they have. Refused and
// closed connections are an answer of the host; only where nobody answers at all for orphan_limit, or nobody who knows
// of this node's round, the workers are stopped. Where the endpoint lives in an agent and is lost, its successors stand
// in: the first of them begins to serve at once, each one after it if those before it have been out of reach for a
// further heartbeat limit; all others look for the one that serves. Who serves in place of another calls at the
// endpoint once a second: a ddprun that has come there since has no round, and joins. The node that holds the endpoint,
// and has stepped down, serves the job again unless somebody else welcomes it soon.
//
// Threads: one caller at a time (the event loop's thread).
// Protocol: docs/control_channel.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/host/host_core.hpp"
#include "rendezvous/link/job_clock.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {

class Session {
 public:
  using Milliseconds = std::chrono::milliseconds;

  struct Options {
    Milliseconds join_timeout{600'000};
    Milliseconds heartbeat_timeout{3'000};
    Milliseconds orphan_limit{60'000};
    int endpoint_ports = 1;  // at one of which the endpoint is
  };

  // A numeric address; or where it is empty the endpoint as the user named it, whose ports `port` counts from 0.
  struct Target {
    std::string address;
    std::uint16_t port = 0;
    bool operator==(const Target&) const = default;
  };

  enum class How {
    refused,  // by its kernel: nobody listens there
    closed,   // by its kernel or by who listens there
    silent,   // no answer, or none any more
  };

  // Who was reached takes nobody in until the user has done something about it.
  struct Refusal {
    Refused words;
    bool can_be_forged = false;  // anybody on the way can say it, so it counts only if nothing else is heard
  };

  // Events. Connected and Ended are about the last Connect, or the connection that it led to.
  struct Begin {};      // as a client
  struct Hosting {};    // this process serves membership, and its agent is connected to it
  struct SteppedDown {  // it does no longer
    std::string why;
    std::optional<Target> other_host{};  // who serves the job instead, where that is known
    bool is_round_given_up = false;      // for that of the other host
    RoundId last_begun{};                // by the membership here, or taken over
  };
  struct Connected {
    Target peer;  // by its numeric address
  };
  struct Ended {
    How how = How::closed;
    double jitter = 0;             // 0 to 1, by chance: agents that lost one host come back one after another
    bool is_host_unknown = false;  // its name leads nowhere now, so that its other ports need no try
    std::optional<Refusal> refusal{};
  };
  struct Heard {
    ToAgent message;
  };
  struct Said {  // by this agent, for membership
    ToMembership message;
  };
  struct GuardianSaid {  // that nothing of the job is left on its node
    std::string node_key;
    int signal_number = 0;  // that killed its ddprun; 0: not known
  };
  using Event = std::variant<Begin, Hosting, SteppedDown, Connected, Ended, Heard, Said, GuardianSaid>;

  // Actions.
  struct Connect {
    Target to;
    Milliseconds limit{0};  // for the answer
  };
  struct HangUp {  // the connection or the attempt; no event comes of its end
    // Who is there counts nobody for a node of its job, and may see the end at once. Otherwise the other side is not to
    // see it as long as that can be helped: it would take it for the end of the node.
    bool is_end_told = false;
  };
  struct Send {  // on the connection
    ToMembership message;
  };
  struct HandOn {  // to this agent
    ToAgent message;
  };
  struct Serve {  // membership, as the next host: Hosting is the answer
    LostHost lost;
  };
  struct Call {  // the endpoint, on a connection of its own: say hello_of_call() once it is there, and wait for nothing
    Target to;
  };
  struct StopOrphans {  // the workers, as nobody who knows of their round is in reach
    std::string why;
    bool may_reseat = true;  // unless the round is given up for that of others
  };
  struct NobodyAnswers {};
  struct AllPortsRefuse {};  // or answer otherwise than the job would; at least one of them refuses
  struct GiveUp {
    std::variant<NobodyAnswers, AllPortsRefuse, Refused> why;
  };
  using Action = std::variant<Connect, HangUp, Send, HandOn, Serve, Call, StopOrphans, GiveUp>;
  using Actions = std::vector<Action>;

  static SteppedDown stepped_down(const HostCore::StepDown& how);

  // The wait for the job begins now. The hello is said on each connection, with what is held then.
  Session(Options options, Hello hello, TimePoint now);

  [[nodiscard]] Actions step(const Event& event, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  // When tick() next has work; empty while only an event can change anything.
  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // Counted in by a membership that can be spoken to now.
  bool is_joined() const { return state_ == State::joined; }
  Hello hello_of_call() const;  // of now, however long ago the call was begun
  bool had_round() const { return held_.has_value(); }

  // Whom to ask for the job, as far as is known here: the one that this agent is joined to, by its numeric address.
  std::optional<Target> whereabouts() const;

  // Whom the guardian of this node is to tell once nothing of the job is left here.
  std::vector<Target> farewell_targets() const;
  // The guardian with this node key speaks of the node that has the endpoint.
  bool knows_host(const std::string& node_key) const { return !host_key_.empty() && node_key == host_key_; }

  // Not where membership is in this process.
  const JobClock& clock() const { return clock_; }

  // For how long the endpoint is tried although it refuses, before the first round.
  Milliseconds refusal_limit() const;

  // Until when somebody must have been reached, unless workers run.
  TimePoint join_deadline() const { return join_deadline_; }

 private:
  enum class State { idle, pausing, connecting, greeting, joined, over };

  // One of those that may serve; not tried before `not_before`, as it did not answer the last time.
  struct Candidate {
    Target target;
    TimePoint not_before{};
  };

  void take(const Begin&, TimePoint now);
  void take(const Hosting&, TimePoint now);
  void take(const SteppedDown& event, TimePoint now);
  void take(const Connected&, TimePoint now);
  void take(const Ended& event, TimePoint now);
  void take(const Heard& event, TimePoint now);
  void take(const Said& event, TimePoint now);
  void take(const GuardianSaid& event, TimePoint now);
  void hear(const Welcome& message, TimePoint now);
  void hear(const Elsewhere& message, TimePoint now);
  void hear(const Refused& message, TimePoint now);
  void hear(const OpenStore& message, TimePoint now);
  void hear(const StartRound& message, TimePoint now);
  void hear(const RoundEstablished& message, TimePoint now);
  void hear(const PrepareStop& message, TimePoint now);
  void hear(const StopAt& message, TimePoint now);
  void hear(const StopRound& message, TimePoint now);
  void hear(const TimeTold& message, TimePoint now);
  void hear(const FinishJob& message, TimePoint now);
  void hear(const HostLeaves& message, TimePoint now);
  void hear(const CheckLinks& message, TimePoint now);

  void connect(const Target& target, TimePoint now);
  void connect_to_next(TimePoint now);
  void pause(double jitter, TimePoint now);
  std::optional<TimePoint> asks_for_time_at() const;
  void ask_for_time(TimePoint now);
  void greet(TimePoint now);
  void tell_end();
  void ask_to_stop(StopAsked stop, TimePoint now);
  void host_is_lost(TimePoint now);
  void seek(std::vector<Target> targets);
  void call_endpoint(TimePoint now);
  std::vector<Target> endpoint_elsewhere() const;
  void note_endpoint();
  bool has_next_port(TimePoint now) const;
  void note_answer_of_port(const Ended& event, TimePoint now);
  bool do_all_ports_refuse(TimePoint now) const;
  void give_up(const GiveUp& action);
  void serve(TimePoint now);
  std::vector<Successor> successors_left() const;
  LostHost lost_host() const;
  std::optional<TimePoint> orphan_deadline() const;
  Milliseconds pause_max() const;
  bool do_workers_run() const { return held_ && !ended_; }
  // Whoever was left behind states its round for the restarts that it knows of, but has nothing to say of it.
  bool has_ended_behind() const { return held_ && held_->is_left_behind && ended_; }
  bool is_in_touch() const { return state_ == State::joined || is_host_; }
  void send(const ToMembership& message) { out_.emplace_back(Send{message}); }

  Options options_;
  Hello hello_;
  JobClock clock_;
  TimePoint time_asked_at_{};  // last: a hello asks too
  std::uint32_t time_questions_ = 0;
  bool is_time_told_ = false;  // the last question was answered
  State state_ = State::idle;
  TimePoint join_deadline_;
  TimePoint joined_at_{}, pause_ends_{};
  Milliseconds pause_;
  std::vector<Target> endpoint_;       // its ports at which the job may be
  std::vector<Candidate> candidates_;  // in the order in which they are tried
  std::size_t next_ = 0;
  int detours_ = 0;             // that were followed since the last pause
  Target target_;               // of the last attempt
  Target peer_;                 // the numeric address that the last connection led to
  std::optional<Target> host_;  // that has welcomed this agent last
  Target host_address_;         // its numeric one
  bool is_host_ = false, has_served_ = false;
  bool is_host_lost_ = false;
  bool is_to_serve_ = false;          // Serve was the last word, and Hosting is to come
  bool holds_endpoint_ = false;       // this node has opened it
  bool has_begun_round_ = false;      // since it serves: the job goes on here
  std::optional<TimePoint> call_at_;  // the endpoint, as this node serves the job elsewhere
  std::size_t calls_ = 0;
  std::optional<TimePoint> serve_at_;        // unless one of those before is met
  std::optional<TimePoint> silent_since_;    // nobody has answered
  std::optional<TimePoint> disowned_since_;  // the nodes of the job that answer know nothing of this node's round
  bool is_orphan_ = false;                   // the workers were told to stop for that
  bool is_round_refused_ = false;            // it was left behind, has ended, and is not to be stated any more
  std::optional<TimePoint> refused_since_;   // by each answer
  struct PortAnswer {
    bool is_silent = false, refuses = false;
  };
  std::map<std::uint16_t, PortAnswer> port_answers_;  // the last ones, while it is not known which port is the job's
  std::optional<TimePoint> all_ports_refuse_since_;
  // Of the present round, or the last one:
  std::optional<Held> held_;
  TimePoint held_since_{};  // the ages of its restarts are of that time
  std::vector<Successor> successors_;
  std::optional<int> host_group_rank_;
  std::string host_key_;                                  // of that node; empty: not known
  std::set<int> ended_ranks_;                             // of nodes whose end is proven
  std::pair<std::optional<int>, HostLeaves> last_words_;  // of the host, or of its guardian, and its rank
  RoundId newest_{};                                      // of all that were started
  RoundId opening_{};                                     // a store was asked for it; it may never start
  // What was said of it, to be said again:
  std::optional<StoreOpened> opened_;
  std::optional<RoundStarted> started_;
  std::optional<FirstStep> first_step_;
  std::optional<RoundFailed> failed_;
  std::optional<RoundEnded> ended_;
  bool is_end_told_ = false;                // on this connection
  std::optional<TimePoint> stop_asked_at_;  // first, but for warnings
  std::optional<StopAsked> stop_asked_;     // until the job is over: a stop of the round may have had another cause
  Actions out_;
};

}  // namespace ddp::rendezvous
