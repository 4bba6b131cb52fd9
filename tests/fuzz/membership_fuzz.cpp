// One hostile node against a job of three honest ones: the real messages, codec and membership, on a virtual clock.
//
// The hostile node says hello on up to four connections, says any message of any content that the codec lets through,
// answers as an agent does, hangs up, falls silent, and comes again with this key or another one. It knows what it was
// told, so no key of another node, and the nonces of its own rounds only. Honest workers fail now and then, and honest
// connections break. The first byte of the input chooses what the hostile node may become:
//
// - A spare: the round is full. The honest nodes hear exactly what they hear without the hostile node.
// - A stranger where the membership begins anew, with one claim of its own until all honest nodes have come again. The
//   same holds.
// - A member: there is room for one more. It can fail, leave, have the job stopped and use up the restarts. The honest
//   nodes keep their ranks and their variables, but for the numbers that tell of the other members.
// - Anything: it is there before the first round, which needs it.
//
// In each case the honest nodes understand what they are told, and once the hostile node has gone nothing is left of
// it: the honest nodes work again, unless the job was ended by a member, and no memory is kept.
#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
// Of the sanitizer's run-time library. Debian's GCC has no header for it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();
#else
#include <malloc.h>
#endif

#include "ddp/error.hpp"
#include "launcher/agent/assignment.hpp"
#include "rendezvous/membership/membership.hpp"
#include "rendezvous/wire/message_json.hpp"
#include "tests/fuzz/targets.hpp"

namespace {

using namespace ddp::rendezvous;
using namespace std::chrono_literals;
using ddp::fuzz::require;
using ddp::fuzz::take_byte;
using ddp::fuzz::take_text;
using std::chrono::milliseconds;

constexpr std::size_t kHonest = 3, kConnections = 4;
constexpr int kWorkers = 2;            // of an honest node
constexpr int kHonestFailuresMax = 2;  // a host that fails three times may be left out
constexpr const char* kHostileAddress = "10.9.9.9";
constexpr milliseconds kHeartbeat = 3s;

// Of the heap, in bytes.
std::size_t memory_in_use() {
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
  return ::__sanitizer_get_current_allocated_bytes();
#else
  return ::mallinfo2().uordblks;
#endif
}
constexpr std::size_t kMemoryMax = 8u << 20;        // of all that is kept while the hostile node is there
constexpr std::size_t kMemoryLeftMax = 512u << 10;  // of it once it has gone: texts of the report of 32 rounds

// 32 hexadecimal digits.
std::string secret(char kind, std::uint64_t number) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%c%031llx", kind, static_cast<unsigned long long>(number));
  return text.data();
}

enum class Role { spare, stranger, member, anything };

struct Mode {
  Role role = Role::spare;
  bool is_on_node = false;   // the endpoint is in the ddprun of the first honest node
  bool takes_stops = false;  // honest workers can stop at a step
};

// --- what the honest nodes do ---

struct HonestNode {
  NodeId connection{};
  Hello hello;
  std::string address;
  bool is_host = false;
  std::optional<StartRound> round;
  std::vector<std::string> nonces{};
  bool runs = false, was_stopped = false, is_established = false, is_told_the_end = false;
  std::string told{};                              // all that it was told, without what tells of other rounds
  std::map<std::string, std::string> variables{};  // of its first worker in its first round

  Hello hello_again() const {
    auto again = hello;
    again.was_welcomed = true;
    if (round)
      again.held =
          Held{round->round, round->group_rank, round->group_world_size, round->restart_count, is_established, false,
               nonces};
    return again;
  }
};

// --- one world: a membership and its nodes ---

class MembershipWorld {
 public:
  MembershipWorld(Mode mode, bool has_hostile) : mode_(mode), has_hostile_(has_hostile) {
    for (std::size_t i = 0; i < kHonest; ++i) {
      HonestNode node;
      node.hello.run_id = "job";
      node.hello.node_key = secret('a', i);
      node.hello.host_name = "h" + std::to_string(i);
      node.hello.nodes_min = mode.role == Role::anything ? 4 : 2;
      node.hello.nodes_max = mode.role == Role::spare || mode.role == Role::stranger ? 3 : 4;
      node.hello.workers = kWorkers;
      node.hello.restarts_max = 5;
      node.hello.standby_port = 29'500;
      node.hello.last_call_timeout = 10s;
      node.address = "10.0.0." + std::to_string(i + 1);
      node.is_host = mode.is_on_node && i == 0;
      if (node.is_host) node.address.clear();
      honest_.push_back(std::move(node));
    }
    begin_membership();
    if (mode.role == Role::anything) {
      for (auto& node : honest_) join(node);
      return;
    }
    for (auto& node : honest_) join(node);
    pass(11s);  // the last call
    for (const auto& node : honest_) require(node.runs && node.is_established, "the honest nodes work");
    if (mode.role != Role::stranger) return;
    begin_membership();
    come_again_anew();  // somebody comes before the hostile node does
  }

  // --- of the hostile node ---

  void connect(std::size_t slot, const std::string& hello_text) {
    if (!has_hostile_ || is_dissolved_) return;
    if (is_alone() && !sessions_.empty()) return;
    hang_up(slot);
    if (is_guessed(hello_text)) return;
    try {
      const auto message = to_membership_of(hello_text);
      const auto* hello = message ? std::get_if<Hello>(&*message) : nullptr;
      if (hello == nullptr) return;  // the reception closes the connection
      if (is_alone() && hello->node_key != secret('e', 0)) return;
      take_in(slot, *hello);
    } catch (const ddp::Error&) {
    }
  }

  void say(std::size_t slot, const std::string& text) {
    if (!has_hostile_ || sessions_.count(slot) == 0 || is_guessed(text)) return;
    const NodeId id = sessions_.at(slot).id;
    try {
      const auto message = to_membership_of(text);
      if (!message) return;
      if (std::holds_alternative<Hello>(*message)) throw ddp::Error("hello comes once");
      step(Heard{id, *message});
    } catch (const ddp::Error&) {
      sessions_.erase(slot);
      step(Left{id, "malformed", false});
    }
  }

  // Answers what it was told, as an agent does.
  void obey(std::size_t slot) {
    if (sessions_.count(slot) == 0) return;
    const auto told = std::exchange(sessions_.at(slot).told, {});
    for (const auto& message : told) {
      const auto answer = answer_to(message);
      if (answer) say(slot, to_json(*answer));
    }
  }

  void hang_up(std::size_t slot) {
    const auto found = sessions_.find(slot);
    if (found == sessions_.end()) return;
    const NodeId id = found->second.id;
    sessions_.erase(found);
    step(Disconnected{id, "reset"});
  }

  void fall_silent(std::size_t slot) {
    const auto found = sessions_.find(slot);
    if (found == sessions_.end()) return;
    const NodeId id = found->second.id;
    sessions_.erase(found);
    step(Left{id, "silent", false});
  }

  void farewell(const std::string& node_key) {
    if (has_hostile_ && !is_guessed(node_key) && membership_->knows(node_key)) step(NodeEnded{node_key});
  }

  void hostile_goes() {
    for (std::size_t slot = 0; slot < kConnections; ++slot) fall_silent(slot);
  }

  bool was_hostile_member() const { return was_hostile_member_; }
  const Hello& settings() const { return honest_[0].hello; }
  const std::set<std::string>& hostile_nonces() const { return hostile_nonces_; }
  ddp::RoundId round() const { return membership_->last_round(); }

  // --- of the honest nodes ---

  void worker_fails(std::size_t index) {
    auto& node = honest_[index];
    if (!node.runs || is_awaited(node) || honest_failures_ == kHonestFailuresMax) return;
    ++honest_failures_;
    node.runs = false;
    FailureReport failure;
    failure.rank = node.round->rank_first;
    failure.host = node.hello.host_name;
    failure.ending = {Ending::Kind::killed, SIGKILL, false};
    failure.job_time = job_time();
    const auto round = node.round->round.number;
    says(node, RoundFailed{round, "rank failed", {}, job_time()});
    says(node, RoundEnded{round, {failure}, kWorkers - 1, false});
  }

  // And it comes again at once.
  void connection_breaks(std::size_t index) {
    auto& node = honest_[index];
    if (node.is_host || node.is_told_the_end || is_awaited(node)) return;
    step(Disconnected{node.connection, "reset"});
    join(node);
    if (node.runs) says(node, RoundStarted{node.round->round.number});
  }

  // To a membership that begins anew, one after another.
  void come_again_anew() {
    if (awaited_.empty()) return;
    auto& node = honest_[*awaited_.begin()];
    awaited_.erase(awaited_.begin());
    join(node);
    if (node.runs) says(node, RoundStarted{node.round->round.number});
  }

  // --- of the time ---

  void pass(milliseconds time) {
    while (!awaited_.empty()) come_again_anew();
    const auto end = now_ + time;
    for (auto next = membership_->next_deadline(); next && *next < end; next = membership_->next_deadline()) {
      now_ = std::max(now_, *next);
      act(membership_->tick(now_));
    }
    now_ = end;
    act(membership_->tick(now_));
    check();
    if (time >= 1s) connections_in_this_second_ = 0;
  }

  // --- what must hold ---

  void check() const {
    require(is_over() || membership_->view().nodes.size() <= kHonest + nodes_kept_max(),
            "membership keeps connected nodes only");
    check_memory();
  }

  void require_same_as(const MembershipWorld& peaceful) const {
    for (std::size_t i = 0; i < kHonest; ++i)
      require(honest_[i].told == peaceful.honest_[i].told, "a spare changes nothing for others");
  }

  void require_peace() const {
    check();
    if (is_over()) {
      require(was_hostile_member_ || mode_.role == Role::anything, "only members end a job");
      return;
    }
    if (mode_.role == Role::anything) return;
    require(membership_->view().nodes.size() == kHonest, "no node is kept that has gone");
    for (const auto& node : honest_)
      require(node.runs && node.round->round == round() && (was_hostile_member_ || node.is_established),
              "the honest nodes work again");  // a member may have ended before it said that it had begun
    require(memory_in_use() < memory_before_ + kMemoryLeftMax, "no memory is kept");
  }

 private:
  struct HostileSession {
    NodeId id{};
    std::vector<ToAgent> told{};  // and not answered yet
  };

  bool is_over() const { return is_dissolved_ || membership_->is_finished(); }

  // While it would be the greater part of those that claim a round.
  bool is_alone() const { return !awaited_.empty(); }

  bool is_awaited(const HonestNode& node) const {
    return awaited_.count(static_cast<std::size_t>(&node - honest_.data())) != 0;
  }

  // Those that hang up are kept for a second.
  std::size_t nodes_kept_max() const { return connections_in_this_second_ + kConnections; }

  milliseconds job_time() const { return std::chrono::duration_cast<milliseconds>(now_ - began_); }

  // What nobody can know is a guess.
  bool is_guessed(const std::string& text) const {
    for (const auto& node : honest_)
      if (text.find(node.hello.node_key) != std::string::npos) return true;
    for (const auto& nonce : nonces_)
      if (hostile_nonces_.count(nonce) == 0 && text.find(nonce) != std::string::npos) return true;
    return false;
  }

  void begin_membership() {
    auto options = options_of(honest_[0].hello, {1'700'000'000 + ++terms_, 7, 0});
    options.greater_part_only = mode_.is_on_node;
    options.heartbeat_timeout = kHeartbeat;
    options.nonce = [this] {
      nonces_.push_back(secret('c', nonces_.size()));
      return nonces_.back();
    };
    membership_.emplace(options, now_);
    began_ = now_;
    is_dissolved_ = false;
    if (terms_ > 1)
      for (std::size_t i = 0; i < kHonest; ++i) awaited_.insert(i);
    memory_before_ = memory_in_use();
  }

  void join(HonestNode& node) {
    node.connection = node.is_host ? NodeId{0} : NodeId{++connections_};
    step(Joined{node.connection, node.hello_again(), node.address, node.is_host});
  }

  void says(const HonestNode& node, const ToMembership& message) { step(Heard{node.connection, message}); }

  // As MembershipServer does.
  void take_in(std::size_t slot, const Hello& hello) {
    const NodeId id{++connections_};
    ++connections_in_this_second_;
    hostile_keys_.insert(hello.node_key);
    if (membership_->is_finished() && !membership_->knows(hello.node_key)) return;
    if (membership_->other_job(hello)) return;
    sessions_[slot].id = id;
    step(Joined{id, hello, kHostileAddress, false});
  }

  void step(const MembershipEvent& event) {
    if (is_dissolved_) return;
    act(membership_->step(event, now_));
    check();
  }

  // And the honest nodes answer.
  void act(const Membership::Actions& actions) {
    perform(actions);
    while (!answers_.empty() && !is_dissolved_) {
      const auto [to, message] = std::move(answers_.front());
      answers_.pop_front();
      perform(membership_->step(Heard{to, message}, now_));
    }
  }

  void perform(const Membership::Actions& actions) {
    for (const auto& action : actions) {
      if (const auto* send = std::get_if<Send>(&action)) tell(send->to, send->message);
      if (const auto* drop = std::get_if<Drop>(&action)) drop_session(drop->node);
      if (std::holds_alternative<StepDown>(action)) {
        require(mode_.role == Role::anything, "one node does not make a membership step down");
        is_dissolved_ = true;
        sessions_.clear();
      }
    }
  }

  void drop_session(NodeId id) {
    for (const auto& node : honest_)
      require(node.connection != id || node.is_told_the_end, "nobody takes an honest node's place");
    std::erase_if(sessions_, [&](const auto& entry) { return entry.second.id == id; });
  }

  void tell(NodeId to, const ToAgent& message) {
    for (auto& node : honest_)
      if (node.connection == to && !is_awaited(node)) return tell_honest(node, message);
    for (auto& [slot, session] : sessions_) {
      if (session.id != to) continue;
      if (const auto* start = std::get_if<StartRound>(&message)) {
        was_hostile_member_ = true;
        hostile_nonces_.insert(start->nonce);
      }
      was_hostile_member_ = was_hostile_member_ || std::holds_alternative<OpenStore>(message);
      if (std::holds_alternative<Refused>(message) || std::holds_alternative<FinishJob>(message)) {
        sessions_.erase(slot);
        return;
      }
      session.told.push_back(message);
      if (session.told.size() > 8) session.told.erase(session.told.begin());
      return;
    }
  }

  static std::optional<ToMembership> answer_to(const ToAgent& message) {
    if (const auto* open = std::get_if<OpenStore>(&message)) {
      if (open->is_last) return StoreOpened{open->round.number, 4000};
    } else if (const auto* start = std::get_if<StartRound>(&message)) {
      return RoundStarted{start->round.number};
    } else if (const auto* stop = std::get_if<StopRound>(&message)) {
      return RoundEnded{stop->round, {}, kWorkers, false};
    } else if (const auto* prepare = std::get_if<PrepareStop>(&message)) {
      return StopReady{prepare->round, prepare->is_warning ? 0 : 5};
    } else if (const auto* at = std::get_if<StopAt>(&message)) {
      RoundEnded ended;
      ended.round = at->round;
      ended.stopped_at_step = kWorkers;
      return ended;
    }
    return {};
  }

  void tell_honest(HonestNode& node, const ToAgent& message) {
    try {
      if (has_hostile_) (void)to_agent_of(to_json(message), kWorkers);
    } catch (const ddp::Error& error) {
      require(false, error.what());
    }
    require(!node.is_told_the_end, "nothing follows the verdict");
    const bool may_refuse = mode_.role == Role::anything;
    require(may_refuse || (!std::holds_alternative<Refused>(message) && !std::holds_alternative<Elsewhere>(message)),
            "no honest node is sent away");
    if (const auto* start = std::get_if<StartRound>(&message)) return start_round(node, *start);
    auto answer = answer_to(message);
    if (const auto* stop = std::get_if<StopRound>(&message)) {
      node.told += "stop " + std::to_string(stop->signal_number) + (stop->kill ? " kill" : "") +
                   (stop->reseat ? " reseat" : "") + (stop->is_left_behind ? " behind" : "") +
                   std::to_string(stop->hung_ranks.size()) + '\n';
      require(stop->reseat || was_hostile_member_ || honest_failures_ > 0 || mode_.role == Role::anything,
              "only members stop a round");
      const bool is_its = node.runs && stop->round == node.round->round.number;
      if (!is_its) answer.reset();
      if (is_its) node.was_stopped = std::exchange(node.runs, false);
    } else if (const auto* at = std::get_if<StopAt>(&message)) {
      node.told += "stop at\n";
      require(was_hostile_member_, "only members stop a round");
      if (!node.runs || at->round != node.round->round.number) answer.reset();
      node.runs = false;
    } else if (const auto* prepare = std::get_if<PrepareStop>(&message)) {
      node.told += "prepare\n";
      require(was_hostile_member_, "only members stop a round");
      if (!mode_.takes_stops && answer) answer = StopReady{prepare->round, {}};
    } else if (const auto* established = std::get_if<RoundEstablished>(&message)) {
      node.is_established = node.is_established || (node.round && established->round == node.round->round.number);
    } else if (const auto* finish = std::get_if<FinishJob>(&message)) {
      node.told += "finish " + std::to_string(finish->exit_code) + '\n';
      require(was_hostile_member_ || mode_.role == Role::anything, "only members end a job");
      require(!node.was_stopped || (finish->exit_code != 0 && finish->exit_code != kStoppedAtStep),
              "no success follows from workers that were stopped");
      node.is_told_the_end = true;
      node.runs = false;
    } else if (std::holds_alternative<Refused>(message)) {
      node.is_told_the_end = true;
      node.runs = false;
    } else if (const auto* open = std::get_if<OpenStore>(&message)) {
      node.told += "open\n";
      for (const auto& address : open->allow) require(!address.empty(), "the store is opened for no empty address");
    }
    if (answer) answers_.emplace_back(node.connection, *answer);
  }

  void start_round(HonestNode& node, const StartRound& start) {
    require(!node.runs, "workers end before others are started in their place");
    const bool is_again = node.round && node.round->round == start.round;
    node.round = start;
    node.runs = true;
    node.was_stopped = false;
    if (!is_again) {
      node.is_established = false;
      node.nonces.insert(node.nonces.begin(), start.nonce);
      if (node.nonces.size() > kNoncesMax) node.nonces.pop_back();
    }
    require(start.restart_count <= start.restarts_max && start.restarts_max == 5, "the budget of restarts holds");
    check_variables(node, start);
    answers_.emplace_back(node.connection, RoundStarted{start.round.number});
  }

  // Those of its first worker.
  void check_variables(HonestNode& node, const StartRound& start) {
    ddp::launcher::LaunchConfig config;
    config.workers = kWorkers;
    auto assignment = ddp::launcher::assignment_of(start, config, "job",
                                                   start.master_address.empty() ? "endpoint" : start.master_address);
    assignment.round = {};  // the hostile node may have logs of a higher round
    std::map<std::string, std::string> variables;
    for (const auto& variable : ddp::launcher::worker_variables(assignment, {}, {})) {
      require(ddp::launcher::is_workers_variable(variable), "no other variable is set");
      const auto name = ddp::launcher::name_of(variable);
      variables[name] = variable.substr(name.size());
      node.told += variable + '\n';
    }
    if (mode_.role == Role::anything) return;
    if (node.variables.empty()) node.variables = variables;
    static const std::set<std::string> of_members{"WORLD_SIZE", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE",
                                                  "TORCHELASTIC_RESTART_COUNT"};
    require(variables.size() == node.variables.size(), "the same variables are set in each round");
    for (const auto& [name, value] : variables)
      require(of_members.count(name) != 0 || node.variables[name] == value,
              "a variable keeps its value, whoever comes and goes");
  }

  void check_memory() const { require(memory_in_use() < memory_before_ + kMemoryMax, "what is kept is bounded"); }

  const Mode mode_;
  const bool has_hostile_;
  TimePoint now_{1h}, began_{};
  std::optional<Membership> membership_;
  std::vector<HonestNode> honest_;
  std::set<std::size_t> awaited_;  // honest nodes that have not come again to a membership that begins anew
  std::deque<std::pair<NodeId, ToMembership>> answers_;
  std::vector<std::string> nonces_;
  std::uint64_t connections_ = 0, terms_ = 0;
  int honest_failures_ = 0;
  bool is_dissolved_ = false;
  std::size_t memory_before_ = 0;
  std::map<std::size_t, HostileSession> sessions_;  // by slot
  std::set<std::string> hostile_nonces_, hostile_keys_;
  std::size_t connections_in_this_second_ = 0;
  bool was_hostile_member_ = false;
};

// --- messages from bytes ---

class Draw {
 public:
  Draw(std::string_view& input, const MembershipWorld& world) : input_(input), world_(world) {}

  // Mostly one that is taken in.
  Hello hello() {
    Hello out = world_.settings();
    out.node_key = secret('e', byte() % 6);
    out.host_name = "hostile";
    const auto bits = byte();
    const auto names = bits & 1 ? byte() : 0;
    if (names & 1) out.run_id = text();
    if (names & 2) out.host_name = text();
    if (names & 4) out.role = text();
    if (names & 8) out.local_address = text();
    if (names & 16) out.slurm_run = text();
    if (names & 32)
      for (auto i = byte(); i > 0; --i) out.addresses.push_back("10.1.2." + std::to_string(i));
    const auto numbers = bits & 2 ? byte() : 0;
    if (numbers & 1) out.nodes_min = number();
    if (numbers & 2) out.nodes_max = number();
    if (numbers & 4) out.workers = number();
    if (numbers & 8) out.node_rank = number();
    if (numbers & 16) out.highest_round = number();
    if (numbers & 32) out.standby_port = static_cast<std::uint16_t>(number());
    if (numbers & 64) out.grace = time();
    if (numbers & 128) out.versions.high = number();
    out.was_welcomed = (bits & 4) != 0;
    out.is_served_by_agent = (bits & 8) != 0;
    out.wants_report = (bits & 16) != 0;
    if (bits & 64) out.held = held();
    if (bits & 32) out.ended_nodes.push_back({secret('e', byte() % 6), round_id(), number(), number(), nonce()});
    return out;
  }

  ToMembership message(int kind) {
    switch (kind) {
      case 1: return StoreOpened{round_number(), static_cast<std::uint16_t>(number())};
      case 2: return RoundStarted{round_number()};
      case 3: return FirstStep{round_number()};
      case 4: return RoundFailed{round_number(), text(), ranks(), time()};
      case 5: return round_ended();
      case 6: return StopAsked{is(1) ? number() : SIGTERM, is(1)};
      default: {
        StopReady out{round_number(), {}};
        if (is(1)) out.call = static_cast<std::uint64_t>(number());
        return out;
      }
    }
  }

 private:
  unsigned byte() { return take_byte(input_); }
  bool is(unsigned mask) { return (byte() & mask) == mask; }

  int number() {
    constexpr std::array kEdges{0, 1, 2, 3, 4, 5, 15, 64, 255, 256, 16'384, 65'535, 65'536, 1 << 30, 0x7fffffff, -1};
    const auto kind = byte();
    return kind < 128 ? static_cast<int>(kind % 8) : kEdges[kind % kEdges.size()];
  }
  milliseconds time() { return milliseconds(static_cast<std::int64_t>(number()) * (is(1) ? 1 : 1000)); }

  std::string text() {
    const auto kind = byte();
    switch (kind % 8) {
      case 0: return "h" + std::to_string(byte() % kHonest);
      case 1: return std::string(byte() * 9, 'x');
      case 2: return "127.0.0.1";
      case 3: return kHostileAddress;
      case 4: return "default";
      case 5: return "";
      default: return std::string(take_text(input_));
    }
  }

  std::uint32_t round_number() {
    const auto kind = byte();
    if (kind < 128) return world_.round().number;
    return kind < 192 ? world_.round().number + kind - 160 : static_cast<std::uint32_t>(number());
  }

  ddp::RoundId round_id() {
    auto out = world_.round();
    const auto kind = byte();
    if (kind & 1) out.term += static_cast<std::uint64_t>(number());
    if (kind & 2) out.term_random = static_cast<std::uint64_t>(number());
    out.number = round_number();
    return out;
  }

  Held held() {
    Held out;
    const auto bits = byte();
    out.round = round_id();
    out.group_world_size = bits & 1 ? number() : 3;
    out.group_rank = number();
    out.restart_count = bits & 2 ? number() : 0;
    out.is_established = (bits & 4) != 0;
    out.is_left_behind = (bits & 24) == 24;
    if (bits & 32) out.stop_call = static_cast<std::uint64_t>(number());
    for (int i = static_cast<int>(byte() % 9); i > 0; --i) out.nonces.push_back(nonce());
    if (out.nonces.empty()) out.nonces.push_back(nonce());
    return out;
  }

  std::string nonce() {
    const auto which = byte();
    const auto& known = world_.hostile_nonces();
    if (which < 128 || known.empty()) return secret('f', which % 8);
    return *std::next(known.begin(), static_cast<std::ptrdiff_t>(which % known.size()));
  }

  std::vector<int> ranks() {
    std::vector<int> out;
    for (int i = static_cast<int>(byte() % 80); i > 0; --i) out.push_back(is(1) ? number() : i);
    return out;
  }

  RoundEnded round_ended() {
    RoundEnded out;
    out.round = round_number();
    for (int i = static_cast<int>(byte() % 10); i > 0; --i) {
      FailureReport failure;
      failure.rank = number();
      failure.local_rank = static_cast<int>(byte());
      failure.host = text();
      failure.program = text();
      failure.ending = {static_cast<Ending::Kind>(byte() % 4), number(), is(1)};
      failure.round = round_number();
      failure.after = time();
      failure.job_time = time();
      failure.message = text();
      failure.stderr_tail.assign(byte() % 18, text());
      failure.stderr_file = text();
      failure.gpu_faults = text();
      out.failures.push_back(std::move(failure));
    }
    const auto bits = byte();
    out.stopped = bits & 1 ? number() : 0;
    out.tree_survived = (bits & 2) != 0;
    out.stopped_at_step = bits & 4 ? number() : 0;
    if (bits & 8) out.progress.commits = static_cast<std::uint64_t>(number());
    if (bits & 16) out.progress.checkpoint_step = static_cast<std::uint64_t>(number());
    if (bits & 32) out.signal_number = number();
    if (bits & 64) out.signalled_at = time();
    return out;
  }

  std::string_view& input_;
  const MembershipWorld& world_;
};

}  // namespace

void ddp::fuzz::membership(std::string_view input) {
  constexpr std::array kTimes{1ms, 100ms, 500ms, 1000ms, 3000ms, 10'000ms, 31'000ms, 130'000ms};
  const auto bits = take_byte(input);
  const Mode mode{static_cast<Role>(bits % 4), (bits & 4) != 0, (bits & 8) != 0};
  MembershipWorld world(mode, true);
  const bool is_outside = mode.role == Role::spare || mode.role == Role::stranger;
  std::optional<MembershipWorld> peaceful;  // the same without the hostile node
  if (is_outside) peaceful.emplace(mode, false);
  const auto in_both = [&](auto&& what) {
    what(world);
    if (peaceful) what(*peaceful);
  };
  Draw draw(input, world);
  while (!input.empty()) {
    const auto what = take_byte(input);
    const std::size_t slot = (what >> 5) % kConnections;
    switch (const int kind = what % 20) {
      case 0: world.connect(slot, to_json(draw.hello())); break;
      case 8: world.say(slot, std::string(take_text(input))); break;
      case 9: world.connect(slot, std::string(take_text(input))); break;
      case 10: world.hang_up(slot); break;
      case 11: world.fall_silent(slot); break;
      case 12: world.farewell(secret('e', take_byte(input) % 6)); break;
      case 13:
      case 14: {
        const auto time = kTimes[take_byte(input) % kTimes.size()];
        in_both([&](MembershipWorld& each) { each.pass(time); });
        break;
      }
      case 15: in_both([&](MembershipWorld& each) { each.worker_fails(slot % kHonest); }); break;
      case 16: in_both([&](MembershipWorld& each) { each.connection_breaks(slot % kHonest); }); break;
      case 17: in_both([&](MembershipWorld& each) { each.come_again_anew(); }); break;
      case 18:
      case 19: world.obey(slot); break;
      default: world.say(slot, to_json(draw.message(kind))); break;
    }
    if (peaceful) world.require_same_as(*peaceful);
  }
  world.hostile_goes();
  in_both([&](MembershipWorld& each) { each.pass(90s); });
  if (peaceful) world.require_same_as(*peaceful);
  world.require_peace();
}
