#include <algorithm>
#include <random>

#include "membership_job.hpp"

namespace ddp::rendezvous {
namespace {

// A node, as it is in truth.
struct Agent {
  std::uint64_t key = 0;
  std::optional<std::uint64_t> connection;  // the number of its node id
  std::optional<TimePoint> cut;             // since when it has none
  bool was_welcomed = false;
  std::optional<Held> held;
  bool runs = false;     // processes of the round that it holds
  bool is_late = false;  // it was away for longer than it is waited for
  std::optional<RoundEnded> ended;
};

// One random history: nodes fail, end, fall silent, lose their connections and come again, and membership itself is
// lost and begins anew. Whatever happens, a round never begins while a node that membership can know of has processes
// of another one, ranks are a partition, the smaller part of a round never goes on, the budget holds, and the job ends.
class History {
 public:
  explicit History(std::uint64_t seed) : random_(seed) {
    options_.run_id = "job";
    options_.nodes_max = static_cast<int>(1 + below(4));
    options_.nodes_min = static_cast<int>(1 + below(static_cast<std::uint64_t>(options_.nodes_max)));
    options_.restarts_max = static_cast<int>(below(3));
    options_.join_timeout = 30s;
    options_.last_call_timeout = std::chrono::milliseconds(below(5000));
    options_.greater_part_only = below(3) != 0;
    options_.term = {1000, 1, 0};
    options_.nonce = [this] { return "nonce-" + std::to_string(++nonces_); };
    loses_membership_ = below(2) == 0;
    membership_.emplace(options_, now_);
  }

  void run() {
    come();
    for (int i = 0; i < 20000 && !is_over(); ++i) {
      now_ += std::chrono::milliseconds(below(200));
      for (int due = 0; membership_->next_deadline() && now_ >= *membership_->next_deadline(); ++due) {
        ASSERT_LT(due, 20) << "it does not do what is due";
        hear(membership_->tick(now_));
      }
      one_thing_happens();
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    ASSERT_TRUE(is_over());
    for (const auto& [round, told] : rounds_) {
      const auto& first = told.begin()->second;
      ASSERT_LE(static_cast<int>(told.size()), first.group_world_size)
          << to_string(round);  // it may not have reached all
      int rank = 0;
      for (const auto& [group_rank, start] : told) {
        ASSERT_GE(start.rank_first, rank);
        rank = start.rank_first + 1;
        ASSERT_EQ(start.world_size, first.world_size);
      }
    }
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool is_over() const { return membership_->is_finished() && (!has_stepped_down_ || step_downs_ == 20); }

  // As far as membership can know.
  bool is_here(const Agent& agent) const {
    return agent.connection ||
           (agent.cut && now_ - *agent.cut < options_.resume_window() && met_.count(agent.key) != 0);
  }

  void check_greater_part() {
    std::vector<int> here, silent;
    for (const auto& [rank, key] : last_round_) {
      if (silent_.count(key) != 0) silent.push_back(rank);
      for (const auto& agent : agents_)
        if (agent.key == key) (is_here(agent) ? here : silent).push_back(rank);
    }
    const bool are_all_here = options_.nodes_min == options_.nodes_max;
    if (options_.greater_part_only && is_last_round_known_ && !are_all_here) {
      ASSERT_TRUE(here.size() > silent.size() ||
                  (here.size() == silent.size() && (here.empty() || here.front() < silent.front())))
          << "the smaller part goes on";
    }
    last_round_.clear();
    is_last_round_known_ = true;
  }

  Agent* of(std::uint64_t connection) {
    for (auto& agent : agents_)
      if (agent.connection == connection) return &agent;
    return nullptr;
  }

  void one_thing_happens() {
    if (has_stepped_down_ && step_downs_ < 20) begin_anew();
    if (below(12) == 0 && agents_.size() < 6) come();
    if (!on_the_way_.empty() && below(2) == 0) {
      const auto [connection, message] = on_the_way_.front();
      on_the_way_.erase(on_the_way_.begin());
      if (of(connection) != nullptr) hear(membership_->step(Heard{node(connection), message}, now_));
    }
    for (std::size_t i = 0; i < agents_.size() && !membership_->is_finished();) {
      auto& agent = agents_[i];
      if (!agent.connection) {
        // Most come again within the resume window, which nobody can tell from the others before it is over.
        if (below(3) == 0) connect(agent);
        ++i;
      } else if (agent.runs && below(10) == 0) {
        end(agent);
        ++i;
      } else if (below(60) == 0) {
        cut(agent);
        ++i;
      } else if (below(150) == 0) {
        die(i);
      } else {
        ++i;
      }
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
    if (loses_membership_ && !membership_->is_finished() && below(100) == 0) begin_anew();
    if (below(600) == 0 && !agents_.empty() && agents_[0].connection)
      hear(membership_->step(Heard{node(*agents_[0].connection), StopAsked{SIGTERM}}, now_));
  }

  void come() {
    agents_.emplace_back().key = keys_++;
    connect(agents_.back());
  }

  void connect(Agent& agent) {
    const auto connection = next_connection_++;
    Hello hello;
    hello.run_id = "job";
    hello.node_key = "key-" + std::to_string(agent.key);
    hello.host_name = "h" + std::to_string(agent.key);
    hello.nodes_min = options_.nodes_min;
    hello.nodes_max = options_.nodes_max;
    hello.restarts_max = options_.restarts_max;
    hello.workers = static_cast<int>(1 + agent.key % 3);
    hello.highest_round = static_cast<int>(agent.key % 40) - 1;
    hello.held = agent.held;
    hello.was_welcomed = std::exchange(agent.was_welcomed, true);
    // Others may have gone on without it.
    if (agent.cut && now_ - *agent.cut >= options_.resume_window() && met_.count(agent.key) != 0) agent.is_late = true;
    if ((has_begun_ || now_ - membership_began_ >= Membership::restate_timeout_of(options_.heartbeat_timeout)) &&
        met_.count(agent.key) == 0)
      agent.is_late = true;
    met_.insert(agent.key);
    is_last_round_known_ = is_last_round_known_ || (agent.held && agent.held->round == last_round_id_);
    agent.connection = connection;
    agent.cut.reset();
    const auto key = agent.key;
    hear(membership_->step(Joined{node(connection), hello, "10.0.0.1"}, now_));
    const auto found = std::find_if(agents_.begin(), agents_.end(), [&](const Agent& one) { return one.key == key; });
    if (found == agents_.end() || !found->held) return;  // refused
    on_the_way_.emplace_back(connection, RoundStarted{found->held->round.number});
    if (found->ended) on_the_way_.emplace_back(connection, *found->ended);
  }

  void cut(Agent& agent) {
    const auto connection = *std::exchange(agent.connection, std::nullopt);
    agent.cut = now_;
    std::erase_if(on_the_way_, [&](const auto& one) { return one.first == connection; });
    if (below(4) != 0) hear(membership_->step(Disconnected{node(connection), "reset"}, now_));
    // Else membership has not noticed, and drops the connection when the node comes again.
  }

  void die(std::size_t index) {
    const auto agent = agents_[index];
    agents_.erase(agents_.begin() + static_cast<std::ptrdiff_t>(index));
    if (below(3) == 0) return hear(membership_->step(NodeEnded{"key-" + std::to_string(agent.key)}, now_));
    silent_.insert(agent.key);
    if (below(2) == 0)
      hear(membership_->step(Disconnected{node(*agent.connection), "reset"}, now_));
    else
      hear(membership_->step(Left{node(*agent.connection), "gone"}, now_));
  }

  void end(Agent& agent) {
    agent.runs = false;
    agent.ended = RoundEnded{agent.held->round.number, {}, 0, false};
    if (below(3) == 0) {
      agent.ended->failures.emplace_back().ending = exited(1);
      agent.ended->failures[0].host = "h" + std::to_string(agent.key);
    }
    on_the_way_.emplace_back(*agent.connection, *agent.ended);
  }

  void begin_anew() {
    has_stepped_down_ = false;
    for (auto& agent : agents_)
      if (agent.connection) agent.connection.reset(), agent.cut = now_;
    on_the_way_.clear();
    met_.clear();
    membership_began_ = now_;
    is_last_round_known_ = has_begun_ = false;
    auto options = options_;
    options.term.term_random = ++terms_;
    membership_.emplace(options, now_);
  }

  void hear(const Membership::Actions& actions) {
    for (const auto& action : actions) {
      if (std::holds_alternative<StepDown>(action)) {
        has_stepped_down_ = true;
        ++step_downs_;
      }
      const auto* send = std::get_if<Send>(&action);
      if (send == nullptr) continue;
      const auto connection = static_cast<std::uint64_t>(send->to);
      if (auto* agent = of(connection)) take(*agent, connection, send->message);
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
    }
  }

  void take(Agent& agent, std::uint64_t connection, const ToAgent& message) {
    if (const auto* open = std::get_if<OpenStore>(&message))
      on_the_way_.emplace_back(connection, StoreOpened{open->round.number, 1});
    if (const auto* start = std::get_if<StartRound>(&message)) begin_round(agent, connection, *start);
    if (const auto* whole = std::get_if<RoundEstablished>(&message); whole != nullptr && agent.held)
      agent.held->is_established = agent.held->is_established || whole->round == agent.held->round.number;
    if (const auto* stop = std::get_if<StopRound>(&message);
        stop != nullptr && agent.held && agent.held->round.number == stop->round)
      if (agent.ended) on_the_way_.emplace_back(connection, *agent.ended);
    if (std::holds_alternative<Refused>(message))
      agents_.erase(
          std::find_if(agents_.begin(), agents_.end(), [&](const Agent& one) { return one.key == agent.key; }));
  }

  void begin_round(Agent& agent, std::uint64_t connection, const StartRound& start) {
    if (agent.held && agent.held->round == start.round) return;
    ASSERT_FALSE(agent.held && !(agent.held->round < start.round)) << "a round that is not newer";
    ASSERT_FALSE(agent.runs) << "it has processes of another round";
    for (const auto& other : agents_) {
      const bool is_in_it = other.held && other.held->round == start.round;
      ASSERT_FALSE(other.runs && !is_in_it && is_here(other) && !other.is_late)
          << "a node has processes of another round";
    }
    auto& told = rounds_[start.round];
    if (told.empty()) check_greater_part();
    ASSERT_TRUE(told.emplace(start.group_rank, start).second) << "a rank given twice";
    last_round_[start.group_rank] = agent.key;
    last_round_id_ = start.round;
    has_begun_ = true;
    ASSERT_LE(start.restart_count, options_.restarts_max);
    auto nonces = agent.held ? agent.held->nonces : std::vector<std::string>();
    nonces.insert(nonces.begin(), start.nonce);
    agent.held = Held{start.round, start.group_rank, start.group_world_size, start.restart_count, false, false, nonces};
    agent.runs = true;
    agent.is_late = false;
    agent.ended.reset();
    on_the_way_.emplace_back(connection, RoundStarted{start.round.number});
  }

  std::mt19937_64 random_;
  int nonces_ = 0;
  MembershipOptions options_;
  bool loses_membership_ = false;
  TimePoint now_{1h}, membership_began_ = now_;
  std::optional<Membership> membership_;
  std::vector<Agent> agents_;  // that live
  std::set<std::uint64_t> silent_,
      met_;  // keys: of nodes that died without a word, of those that this membership has met
  std::uint64_t keys_ = 0, next_connection_ = 0, terms_ = 1;
  std::vector<std::pair<std::uint64_t, ToMembership>> on_the_way_;
  std::map<RoundId, std::map<int, StartRound>> rounds_;  // what each group rank was told
  std::map<int, std::uint64_t> last_round_;              // group rank to key
  RoundId last_round_id_;
  bool is_last_round_known_ = true;  // to this membership: it began it, or somebody who came has it
  bool has_begun_ = false;           // this membership, a round
  bool has_stepped_down_ = false;
  int step_downs_ = 0;
};

TEST(MembershipHistories, KeepTheirPromises) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    History(seed).run();
    ASSERT_FALSE(::testing::Test::HasFatalFailure());
  }
}

}  // namespace
}  // namespace ddp::rendezvous
