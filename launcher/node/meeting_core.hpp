// Decides where this node meets the others: whether it serves the endpoint or joins who does, and that it serves it
// next where its host is lost. launcher/agent/meeting performs that with sockets, tests/simulation with virtual ones.
//
// Pure: events and the time go in, actions come out.
//
// Threads: one caller at a time (the agent's event loop).
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/link/session.hpp"
#include "rendezvous/membership/messages.hpp"

namespace ddp::launcher {

// Whether the endpoint's host is this one: it is a loopback name, this host's own name, or resolves to an address of
// it. `resolved` and `own` are addresses as texts.
bool is_this_host(const std::string& endpoint_host, const std::vector<std::string>& resolved,
                  const std::vector<std::string>& own, const std::string& host_name);

// The endpoint's address, if it is numeric and one of this host's, and the endpoint has one port. Else empty: a name,
// or the address of a service, may lead to another host now than before. `own` is asked for numeric addresses alone.
std::string own_endpoint_address(const std::string& endpoint_host, int port_count,
                                 const std::function<std::vector<std::string>()>& own);

class MeetingCore {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Options {
    std::optional<bool> serves{};    // the endpoint, by the settings; empty: its addresses tell
    bool may_have_daemon = false;    // `serves` says only that the endpoint is on this host
    bool is_node_rank_0 = false;     // by the settings
    bool may_be_slurm_node = false;  // the endpoint's host, whose name need not resolve then
    std::string run_id{};            // of the job
    std::string endpoint_host{};     // as the user gave it
    std::string host_name{};         // of this host
    std::string local_address{};     // under which other nodes reach this one; empty: find out
    std::vector<std::string> own{};  // with may_be_slurm_node: addresses of this host's interfaces, as it begins
  };

  // Events.
  struct Begin {};
  struct LookedUp {  // the answer to LookUp
    std::vector<std::string> addresses{};
    std::vector<std::string> own{};      // of this host's interfaces
    std::string slurm_address{};         // of a name that does not resolve
    std::optional<std::string> error{};  // why there are none
  };
  struct EndpointOpened {};  // the answers to OpenEndpoint
  struct EndpointTaken {
    std::string what, try_this;
    bool is_in_use = false;  // another process has its port
  };
  struct Heard {  // from membership
    rendezvous::ToAgent message;
  };
  struct GuardianSaid {  // that this node has ended
    rendezvous::NodeEnded node;
    bool is_of_host = false;  // its ddprun served the job, and this node was joined to it
  };
  struct ToServe {  // the endpoint's host is lost, and this node is the next one
    rendezvous::LostHost lost;
  };
  using SteppedDown = rendezvous::Session::SteppedDown;  // the membership here may not go on
  using Event = std::variant<Begin, LookedUp, EndpointOpened, EndpointTaken, Heard, GuardianSaid, ToServe, SteppedDown>;

  // Actions.
  struct LookUp {};         // the endpoint's host; LookedUp is the answer, later
  struct GiveUpLookUp {};   // no answer is wanted any more
  struct OpenEndpoint {};   // its port, in place of a connection to another host; answered at once
  struct Join {};           // who serves it
  struct StartHosting {     // membership, here
    bool is_first = false;  // as the endpoint has been opened
    bool is_next = false;   // after another host, away from the endpoint
    rendezvous::LostHost lost{};
  };
  struct StopHosting {
    SteppedDown how;
  };
  struct TellHost {  // the membership here: this node has ended
    rendezvous::NodeEnded node;
  };
  struct HandOn {  // to the node core
    rendezvous::ToAgent message;
  };
  struct Print {
    std::string line;
  };
  struct Lose {  // this node cannot take part
    std::string what, try_this;
  };
  using Action =
      std::variant<LookUp, GiveUpLookUp, OpenEndpoint, Join, StartHosting, StopHosting, TellHost, HandOn, Print, Lose>;
  using Actions = std::vector<Action>;

  explicit MeetingCore(Options options) : options_(std::move(options)) {}

  [[nodiscard]] Actions step(const Event& event, TimePoint now);

  // Does what has fallen due; calling early or twice is harmless.
  [[nodiscard]] Actions tick(TimePoint now);

  [[nodiscard]] std::optional<TimePoint> next_deadline() const;

  // Waits for nothing any more: the job is over here.
  void finish() {
    deadline_.reset();
    open_again_at_.reset();
    is_looking_up_ = false;
  }

  bool serves() const { return serves_; }

  // Whom a node that comes to this one is led to. `joined`: the membership that this node is joined to.
  struct Here {};
  struct Nowhere {};  // nobody here knows of its job
  using Direction = std::variant<Here, rendezvous::Elsewhere, Nowhere>;
  Direction direct(const std::string& run_id, const std::optional<rendezvous::Session::Target>& joined) const;

  // The endpoint's host as workers of this node are to reach it; `of_connection`: where it was reached from here.
  std::string endpoint_host(const std::string& of_connection) const;

 private:
  // What deadline_ is the end of.
  enum class Wait { for_address, for_owner, before_look_up };

  void take(const Begin& event, TimePoint now);
  void take(const LookedUp& event, TimePoint now);
  void take(const EndpointOpened& event, TimePoint now);
  void take(const EndpointTaken& event, TimePoint now);
  void take(const Heard& event, TimePoint now);
  void take(const GuardianSaid& event, TimePoint now);
  void take(const ToServe& event, TimePoint now);
  void take(const SteppedDown& event, TimePoint now);

  void look_up();
  void wait(Wait wait, std::chrono::milliseconds limit, TimePoint now);
  void take_own_address(const LookedUp& answer);
  void open_endpoint(bool or_join);
  void give_up_look_up();
  void join();
  void host(StartHosting how);
  void hand_on_held_round();

  const Options options_;
  bool serves_ = false, holds_endpoint_ = false, is_next_host_ = false, has_joined_ = false;
  bool is_looking_up_ = false, is_joining_ = false, joins_else_ = false;
  Wait wait_{};
  std::optional<TimePoint> deadline_;
  std::optional<TimePoint> open_again_at_;               // the endpoint, whose port is in use ...
  std::optional<TimePoint> in_use_until_;                // ... by a process that may end until then
  std::string address_;                                  // of the endpoint's host, where its name does not resolve
  std::optional<rendezvous::StartRound> held_start_;     // until that is known
  std::optional<rendezvous::NodeEnded> early_farewell_;  // of the endpoint's host, before this node serves the job
  std::string standby_address_;                          // of this node, as membership saw it
  Actions out_;
};

}  // namespace ddp::launcher
