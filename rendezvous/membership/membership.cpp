#include "rendezvous/membership/membership.hpp"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <string_view>
#include <utility>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSameWish = 200ms;   // `timeout` and schedulers send a signal twice; a later one means it
constexpr auto kSameMoment = 50ms;  // clocks of nodes, and reports of deaths, are no more exact
constexpr auto kUnnoticed = 10s;    // how long after its consequences the loss of a node may become known
constexpr auto kStoreLimit = 30s;   // to open it takes milliseconds
constexpr std::size_t kAddressesPerMessage = 256;
constexpr std::size_t kNamesShown = 8;

bool is_loopback(const std::string& address) { return address == "::1" || address.rfind("127.", 0) == 0; }

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Exec will fail again, so another round is of no use.
bool is_hopeless(const FailureReport& failure) { return failure.ending.kind == Ending::Kind::not_started; }

bool was_killed_from_outside(const FailureReport& failure) {
  const auto& ending = failure.ending;
  return ending.kind == Ending::Kind::killed &&
         (ending.value == SIGKILL || ending.value == SIGSEGV || ending.value == SIGBUS || ending.value == SIGTERM);
}

}  // namespace

bool is_before_naturally(const std::string& a, const std::string& b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (is_digit(a[i]) && is_digit(b[j])) {
      const auto take_number = [](const std::string& text, std::size_t& at) {
        while (at < text.size() && text[at] == '0') ++at;
        const auto begin = at;
        while (at < text.size() && is_digit(text[at])) ++at;
        return std::string_view(text).substr(begin, at - begin);
      };
      const auto x = take_number(a, i), y = take_number(b, j);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i, ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

std::size_t first_cause(const std::vector<FailureReport>& failures) {
  const auto earlier = [&](std::size_t a, std::size_t b) { return failures[a].job_time < failures[b].job_time; };
  std::size_t first = 0;
  for (std::size_t i = 1; i < failures.size(); ++i)
    if (earlier(i, first)) first = i;
  if (was_killed_from_outside(failures[first])) return first;
  std::optional<std::size_t> killed;
  for (std::size_t i = 0; i < failures.size(); ++i)
    if (was_killed_from_outside(failures[i]) && failures[i].job_time - failures[first].job_time <= kSameMoment &&
        (!killed || earlier(i, *killed)))
      killed = i;
  return killed.value_or(first);
}

MembershipOptions options_of(const Hello& hello, RoundId term) {
  MembershipOptions options;
  options.run_id = hello.run_id;
  options.nodes_min = hello.nodes_min;
  options.nodes_max = hello.nodes_max;
  options.restarts_max = hello.restarts_max;
  options.restart_window = hello.restart_window;
  options.join_timeout = hello.join_timeout;
  options.last_call_timeout = hello.last_call_timeout;
  options.term = term;
  return options;
}

Membership::Membership(MembershipOptions options, TimePoint now) : options_(std::move(options)), began_(now) { gather(now); }

Membership::Actions Membership::step(const MembershipEvent& event, TimePoint now) {
  out_.clear();
  std::visit([&](const auto& what) { take(what, now); }, event);
  return std::exchange(out_, {});
}

Membership::Actions Membership::tick(TimePoint now) {
  out_.clear();
  if (!deadline_ || now < *deadline_) return {};
  if (phase_ == Phase::opening_store) {
    const auto silent = members().front();
    const auto why = "it did not open the store within " + describe_duration(kStoreLimit);
    send(silent, Refused{"this node did not open the store of the job within " + describe_duration(kStoreLimit),
                         "`top` and `dmesg` there: a machine that is this slow can't serve the others"});
    take(Left{silent, why}, now);
    return std::exchange(out_, {});
  }
  if (phase_ == Phase::running) {
    call_newcomers(now);
    return std::exchange(out_, {});
  }
  if (static_cast<int>(nodes_.size()) >= options_.nodes_min) {
    form_round(now);  // the last call is over, or the whole wait, which cuts it short
  } else {
    FinishJob verdict;
    verdict.exit_code = kRendezvousFailed;
    verdict.restarts_max = options_.restarts_max;
    verdict.what = "only " + std::to_string(nodes_.size()) + " of " + counted(options_.nodes_min, "node") + " came within " +
                   describe_duration(options_.join_timeout) + ": " + names_of_nodes();
    if (!reason_.empty()) verdict.what = reason_ + "; after that " + verdict.what;
    verdict.try_this = "look at the output of ddprun on the others: each must be started with the same --nnodes, --rdzv-id "
                       "and endpoint; `--rdzv-conf=join_timeout=SECONDS` waits longer";
    finish(std::move(verdict));
  }
  return std::exchange(out_, {});
}

// --- nodes come and go ---

std::optional<Refused> Membership::objection(const Hello& hello) const {
  if (hello.version != kProtocolVersion)
    return Refused{"this ddprun speaks version " + std::to_string(hello.version) + " of the protocol, the endpoint " +
                       std::to_string(kProtocolVersion),
                   "install the same version of ddprun on all nodes"};
  if (hello.run_id != options_.run_id)
    return Refused{"the job at the endpoint is '" + options_.run_id + "', not '" + hello.run_id + "'",
                   "`--rdzv-id=" + options_.run_id + "` to join that job, or another port for this one"};
  if (hello.nodes_min != options_.nodes_min || hello.nodes_max != options_.nodes_max) {
    const auto range = [](int low, int high) {
      return "--nnodes=" + std::to_string(low) + (low == high ? "" : ":" + std::to_string(high));
    };
    return Refused{"this node was started with " + range(hello.nodes_min, hello.nodes_max) + ", the endpoint with " +
                       range(options_.nodes_min, options_.nodes_max),
                   "give all nodes the same --nnodes"};
  }
  if (hello.node_rank) {
    if (*hello.node_rank >= options_.nodes_max)
      return Refused{"--node-rank=" + std::to_string(*hello.node_rank) + " is beyond " +
                         counted(options_.nodes_max, "node"),
                     "node ranks go from 0 to " + std::to_string(options_.nodes_max - 1)};
    // Once a round has begun the newcomer is more likely the replacement of a node whose end is not known yet: it waits.
    for (const auto& [id, node] : nodes_)
      if (node.hello.node_rank == hello.node_rank && rounds_begun_ == 0)
        return Refused{"node rank " + std::to_string(*hello.node_rank) + " is taken by host " + node.hello.host_name,
                       "give each node a --node-rank of its own"};
  }
  return {};
}

void Membership::take(const Joined& event, TimePoint now) {
  if (phase_ == Phase::finished) return;
  if (auto refused = objection(event.hello)) {
    if (event.hello.run_id == options_.run_id)
      out_.push_back(Say{"host " + event.hello.host_name + " (" + event.seen_address + ") was refused: " + refused->what});
    return send(event.node, *refused);
  }
  Node node;
  node.hello = event.hello;
  node.seen_address = event.seen_address;
  node.is_endpoint_host = event.is_endpoint_host;
  nodes_.emplace(event.node, std::move(node));
  round_with_logs_ = std::max<std::int64_t>(round_with_logs_, event.hello.highest_round);
  if (phase_ == Phase::gathering) gather(now);
  if (phase_ == Phase::running) call_newcomers(now);
}

void Membership::take(const Left& event, TimePoint now) {
  const auto found = nodes_.find(event.node);
  if (found == nodes_.end() || phase_ == Phase::finished) return;
  const auto node = std::move(found->second);
  nodes_.erase(found);
  if (node.is_member) (event.is_end_proven || node.has_ended ? gone_ : silent_).insert(node.group_rank.value_or(0));
  if (phase_ == Phase::gathering) {
    out_.push_back(Say{"host " + node.hello.host_name + " has left: " + event.why});
    if (!is_greater_part_here()) return finish_minority();
    if (static_cast<int>(nodes_.size()) < options_.nodes_min) last_call_ends_.reset();
    deadline_ = last_call_ends_ ? std::min(*last_call_ends_, gathering_ends_) : gathering_ends_;
    return;
  }
  if (!node.is_member) {
    if (phase_ == Phase::running) call_newcomers(now);
    return;
  }
  if (!node.has_ended || phase_ == Phase::opening_store) {
    lost_node_ = "node " + std::to_string(node.group_rank.value_or(0)) + " (host " + node.hello.host_name +
                 ") was lost: " + event.why;
    lost_at_ = job_time(now);
    out_.push_back(Say{lost_node_});
  }
  if (phase_ == Phase::opening_store) {
    begin_next_round(now);
  } else {
    if (!lost_node_.empty()) stop_round(SIGTERM, false, lost_node_);
    end_round_if_all_have(now);
  }
}

void Membership::take(const Disconnected& event, TimePoint now) { take(Left{event.node, event.why, true}, now); }

bool Membership::knows(const std::string& node_key) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) { return entry.second.hello.node_key == node_key; });
}

void Membership::take(const Farewell& event, TimePoint now) {
  for (const auto& [id, node] : nodes_)
    if (node.hello.node_key == event.node_key) return take(Left{id, "its ddprun ended", true}, now);
}

void Membership::gather(TimePoint now) {
  if (phase_ != Phase::gathering || !deadline_) {
    phase_ = Phase::gathering;
    gathering_ends_ = now + options_.join_timeout;
    last_call_ends_.reset();
    is_wait_said_ = false;
  }
  const int count = static_cast<int>(nodes_.size());
  // Once there has been a round nobody waits for more than are needed: those who come later are taken in later.
  if (count >= options_.nodes_max || (count >= options_.nodes_min && rounds_begun_ > 0)) return form_round(now);
  const int wanted = rounds_begun_ > 0 ? options_.nodes_min : options_.nodes_max;
  if (count > 0 && !std::exchange(is_wait_said_, true))
    out_.push_back(Say{"waiting for " + counted(wanted - count, "more node") + ", for up to " +
                       describe_duration(options_.join_timeout) + "; here: " + names_of_nodes()});
  if (count >= options_.nodes_min && !last_call_ends_) last_call_ends_ = now + options_.last_call_timeout;
  deadline_ = last_call_ends_ ? std::min(*last_call_ends_, gathering_ends_) : gathering_ends_;
}

// While a round runs with room for more: those who have come are taken in together, when the last call is over. Where the
// maximum is reached nobody else is waited for, but a round lasts as long as a last call even then, so that a node that
// comes and goes lets the others work. Not where a node has done its work already: the round is about to end.
void Membership::call_newcomers(TimePoint now) {
  std::string names;
  int newcomers = 0;
  bool is_ending = !gone_.empty();
  for (const auto& [id, node] : nodes_) {
    is_ending = is_ending || (node.is_member && node.has_ended);
    if (!node.is_member && ++newcomers <= static_cast<int>(kNamesShown))
      names += (names.empty() ? "" : ", ") + node.hello.host_name;
  }
  const bool has_room = static_cast<int>(nodes_.size()) - newcomers < options_.nodes_max;
  if (newcomers == 0 || !has_room || is_ending) {
    last_call_ends_.reset();
    deadline_.reset();
    return;
  }
  const auto those = counted(newcomers, "more node") + (newcomers == 1 ? " has come: " : " have come: ") + names;
  const bool is_full = static_cast<int>(nodes_.size()) >= options_.nodes_max;
  const bool is_new = !last_call_ends_;
  if (is_new) last_call_ends_ = now + options_.last_call_timeout;
  if (is_full) last_call_ends_ = std::min(*last_call_ends_, round_began_ + options_.last_call_timeout);
  deadline_ = last_call_ends_;
  if (now < *last_call_ends_) {
    if (is_new)
      out_.push_back(Say{those + "; the next round begins in " +
                         describe_duration(std::chrono::duration_cast<std::chrono::milliseconds>(*last_call_ends_ - now))});
    return;
  }
  growth_ = those;
  growth_stopped_ = job_time(now);
  stop_round(SIGTERM, false, growth_);
}

// --- rounds ---

// Whoever had a rank keeps it, a wish is fulfilled where it can be, the others follow in the order of the endpoint's host
// and then of host names, and nobody is left without.
void Membership::give_group_ranks(std::vector<NodeId>& members) {
  std::stable_sort(members.begin(), members.end(), [&](NodeId a, NodeId b) {
    const auto &x = nodes_.at(a), &y = nodes_.at(b);
    if (x.group_rank.has_value() != y.group_rank.has_value()) return x.group_rank.has_value();
    if (x.hello.node_rank.has_value() != y.hello.node_rank.has_value()) return x.hello.node_rank.has_value();
    if (x.is_endpoint_host != y.is_endpoint_host) return x.is_endpoint_host;
    return is_before_naturally(x.hello.host_name, y.hello.host_name);
  });
  if (members.size() > static_cast<std::size_t>(options_.nodes_max)) members.resize(static_cast<std::size_t>(options_.nodes_max));
  std::vector<std::optional<NodeId>> by_rank(members.size());
  std::vector<NodeId> others;
  for (const auto id : members) {
    const auto& node = nodes_.at(id);
    const auto wish = node.group_rank ? node.group_rank : node.hello.node_rank;
    if (wish && static_cast<std::size_t>(*wish) < by_rank.size() && !by_rank[static_cast<std::size_t>(*wish)])
      by_rank[static_cast<std::size_t>(*wish)] = id;
    else
      others.push_back(id);
  }
  auto next = others.begin();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    members[rank] = by_rank[rank] ? *by_rank[rank] : *next++;
    nodes_.at(members[rank]).group_rank = static_cast<int>(rank);
  }
}

void Membership::form_round(TimePoint now) {
  std::vector<NodeId> chosen;
  for (auto& [id, node] : nodes_) {
    chosen.push_back(id);
    node.is_member = false;
  }
  give_group_ranks(chosen);
  for (const auto id : chosen) nodes_.at(id).is_member = nodes_.at(id).has_ended = true;  // nothing runs there yet
  round_ = std::max(round_, round_with_logs_) + 1;
  failures_.clear();
  stopped_ = 0;
  tree_survived_ = false;
  lost_node_.clear();
  growth_.clear();
  gone_.clear();
  silent_.clear();
  last_call_ends_.reset();
  deadline_ = now + kStoreLimit;
  phase_ = Phase::opening_store;

  RoundId round = options_.term;
  round.number = static_cast<std::uint32_t>(round_);
  OpenStore open{round, {}, false};
  for (const auto id : chosen) {
    if (id == chosen.front()) continue;
    auto addresses = nodes_.at(id).hello.addresses;
    if (!nodes_.at(id).seen_address.empty()) addresses.push_back(nodes_.at(id).seen_address);
    for (auto& address : addresses) {
      open.allow.push_back(std::move(address));
      if (open.allow.size() == kAddressesPerMessage) send(chosen.front(), std::exchange(open, {round, {}, false}));
    }
  }
  open.is_last = true;
  send(chosen.front(), open);
}

std::vector<NodeId> Membership::members() const {
  std::vector<NodeId> out;
  for (const auto& [id, node] : nodes_)
    if (node.is_member) out.push_back(id);
  std::sort(out.begin(), out.end(), [&](NodeId a, NodeId b) { return nodes_.at(a).group_rank < nodes_.at(b).group_rank; });
  return out;
}

void Membership::start_round(std::uint16_t store_port, TimePoint now) {
  phase_ = Phase::running;
  deadline_.reset();
  ++rounds_begun_;
  round_began_ = now;
  const auto all = members();
  for (const auto id : all) {
    auto& node = nodes_.at(id);
    node.has_ended = false;
    if (node.first_round < 0) node.first_round = round_;
  }
  const auto& first = nodes_.at(all.front());
  world_size_ = 0;
  std::map<std::string, int> role_sizes;
  for (const auto id : all) {
    const auto& hello = nodes_.at(id).hello;
    world_size_ += hello.workers;
    role_sizes[hello.role] += hello.workers;
  }
  StartRound start;
  start.round = options_.term;
  start.round.number = static_cast<std::uint32_t>(round_);
  start.group_world_size = static_cast<int>(all.size());
  start.world_size = world_size_;
  start.restart_count = restart_count_;
  start.restarts_max = options_.restarts_max;
  start.master_port = store_port;
  start.why = reason_;
  if (!first.hello.local_address.empty())
    start.master_address = first.hello.local_address;
  else if (!first.is_endpoint_host && !is_loopback(first.seen_address))  // such a node is on the endpoint's host
    start.master_address = first.seen_address;
  std::map<std::string, int> role_ranks;
  for (const auto id : all) {
    const auto& hello = nodes_.at(id).hello;
    start.role_rank_first = role_ranks[hello.role];
    start.role_world_size = role_sizes[hello.role];
    send(id, start);
    ++start.group_rank;
    start.rank_first += hello.workers;
    role_ranks[hello.role] += hello.workers;
  }
  call_newcomers(now);  // those that came meanwhile
}

void Membership::stop_round(int signal_number, bool kill, const std::string& why, std::optional<NodeId> knows_already) {
  if (phase_ == Phase::running) {
    phase_ = Phase::stopping;
    deadline_.reset();  // of the last call: it ends with the round
  }
  for (const auto& [id, node] : nodes_)
    if (node.is_member && !node.has_ended)
      send(id, StopRound{static_cast<std::uint32_t>(round_), signal_number, kill, false, id == knows_already ? "" : why, {}});
}

void Membership::end_round_if_all_have(TimePoint now) {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  for (const auto& [id, node] : nodes_)
    if (node.is_member && !node.has_ended) return;
  begin_next_round(now);
}

// What failed by the signal that stopped ddprun was no failure: whoever signals ddprun may signal the workers too.
const FailureReport* Membership::cause() const {
  return failures_.empty() ? nullptr : &failures_[first_cause(failures_)];
}

// A failure that goes with the loss of a node is taken for its consequence. Workers that all ended well have done their
// work, also where a node is lost, or others have come, before the round is over.
bool Membership::is_change_of_members() const {
  const bool is_done = phase_ != Phase::opening_store && stopped_ == 0 && failures_.empty();
  if (!growth_.empty() && lost_node_.empty()) return cause() == nullptr && !is_done;
  return !lost_node_.empty() && static_cast<int>(nodes_.size()) >= options_.nodes_min && !is_done &&
         (cause() == nullptr || cause()->job_time >= lost_at_ - kUnnoticed);
}

bool Membership::is_budget_left(TimePoint now) {
  if (options_.restart_window.count() != 0)
    while (!restarts_.empty() && now - restarts_.front() >= options_.restart_window) restarts_.pop_front();
  return restarts_.size() < static_cast<std::size_t>(options_.restarts_max);
}

bool Membership::is_next_round_due(TimePoint now) {
  if (tree_survived_ || (cause() != nullptr && is_hopeless(*cause()))) return false;
  if (is_change_of_members()) return true;
  return (!lost_node_.empty() || cause() != nullptr) && is_budget_left(now);
}

// More than half of the round's nodes, or just half with the lowest group rank among them. Nodes whose end is proven do not
// count. Two sides that a network keeps apart can't both be that.
bool Membership::is_greater_part_here() const {
  if (!options_.greater_part_only) return true;
  std::set<int> here;
  for (const auto id : members()) here.insert(*nodes_.at(id).group_rank);
  if (here.size() != silent_.size()) return here.size() > silent_.size();
  return silent_.empty() || *here.begin() < *silent_.begin();
}

void Membership::begin_next_round(TimePoint now) {
  std::erase_if(failures_, [&](const FailureReport& failure) {
    return stop_signal_ != 0 && failure.ending.kind == Ending::Kind::killed && failure.ending.value == stop_signal_;
  });
  if (!growth_.empty())  // those that missed ranks which were stopped before them
    stopped_ += static_cast<int>(std::erase_if(failures_, [&](const FailureReport& failure) {
      return failure.job_time >= growth_stopped_ - kSameMoment;
    }));
  const bool failed = !lost_node_.empty() || cause() != nullptr;
  if (stop_signal_ == 0 && is_next_round_due(now)) {
    if (!is_greater_part_here()) return finish_minority();
    reason_ = why_the_round_ended();
    if (!is_change_of_members()) {
      ++restart_count_;
      restarts_.push_back(now);
    }
    deadline_.reset();
    phase_ = Phase::opening_store;  // so that gather() begins its wait anew
    return gather(now);
  }
  FinishJob verdict;
  verdict.restarts_max = options_.restarts_max;
  verdict.world_size = world_size_;
  verdict.stopped = stopped_;
  if (stop_signal_ != 0 && (!failed || is_next_round_due(now))) {
    verdict.exit_code = 128 + stop_signal_;
  } else if (const auto* first = cause()) {
    verdict.exit_code = exit_code_of(first->ending);
    verdict.cause = *first;
    for (const auto& failure : failures_)
      if (&failure != first && verdict.consequences.size() < kFailuresMax) {
        verdict.consequences.push_back(failure);
        verdict.consequences.back().stderr_tail.clear();  // the message stays bounded
      }
  } else if (!lost_node_.empty()) {
    verdict.exit_code = kRendezvousFailed;
    verdict.what = lost_node_;
    verdict.try_this = "look at that host and at ddprun's output there; `--max-restarts=N` waits for a node in its place";
  } else if (tree_survived_) {
    verdict.exit_code = 1;
    verdict.what = "processes of the job could not be killed, so no other round may begin" +
                   (growth_.empty() ? "" : "; " + growth_);
    verdict.try_this = "look at the output of ddprun on the other nodes, one of which says where they are";
  }
  finish(std::move(verdict));
}

void Membership::finish_minority() {
  FinishJob verdict;
  verdict.exit_code = kRendezvousFailed;
  verdict.restarts_max = options_.restarts_max;
  verdict.world_size = world_size_;
  verdict.stopped = stopped_;
  verdict.what = counted(static_cast<int>(silent_.size()), "node") + " of round " + std::to_string(round_) +
                 " fell silent, and may go on without the " + counted(static_cast<int>(members().size()), "node") +
                 " here, too few to go on themselves";
  verdict.try_this = "look at the network between the nodes; when it works, start the job again from its newest checkpoint";
  finish(std::move(verdict));
}

std::string Membership::why_the_round_ended() const {
  const auto* first = cause();
  if (is_change_of_members() || first == nullptr) return lost_node_.empty() ? growth_ : lost_node_;
  return describe_failure(*first) + (first->message.empty() ? "" : " (" + first->message + ")");
}

void Membership::finish(FinishJob verdict) {
  phase_ = Phase::finished;
  deadline_.reset();
  for (const auto& [id, node] : nodes_) send(id, verdict);
}

// --- what members say ---

void Membership::take(const Heard& event, TimePoint now) {
  const auto found = nodes_.find(event.from);
  if (found == nodes_.end() || phase_ == Phase::finished) return;
  if (const auto* stop = std::get_if<StopAsked>(&event.message)) return take(event.from, *stop, now);
  if (!found->second.is_member) return;
  if (const auto* opened = std::get_if<StoreOpened>(&event.message)) take(event.from, *opened, now);
  if (const auto* failed = std::get_if<RoundFailed>(&event.message)) take(event.from, *failed);
  if (const auto* ended = std::get_if<RoundEnded>(&event.message)) take(event.from, *ended, now);
}

void Membership::take(NodeId, const StoreOpened& message, TimePoint now) {
  if (phase_ == Phase::opening_store && message.round == round_) start_round(message.port, now);
}

void Membership::take(NodeId from, const RoundFailed& message) {
  if (message.round == round_ && phase_ == Phase::running) stop_round(SIGTERM, false, message.what, from);
}

// A newcomer on which the program can't even be started, where the others have been at work without it.
bool Membership::can_do_without(const Node& node, const RoundEnded& message) const {
  return std::any_of(message.failures.begin(), message.failures.end(), is_hopeless) && rounds_begun_ > 1 &&
         node.first_round == round_ && static_cast<int>(nodes_.size()) > options_.nodes_min;
}

void Membership::take(NodeId from, const RoundEnded& message, TimePoint now) {
  auto& node = nodes_.at(from);
  if (message.round != round_ || node.has_ended || (phase_ != Phase::running && phase_ != Phase::stopping)) return;
  if (can_do_without(node, message)) {
    const auto host = node.hello.host_name;
    send(from, Refused{"the program can't be started on this host: " + message.failures.front().message,
                       "install it as on the other nodes of the job"});
    nodes_.erase(from);
    lost_node_ = "host " + host + " can't start the program and is left out";
    lost_at_ = job_time(now);
    out_.push_back(Say{lost_node_});
    stop_round(SIGTERM, false, lost_node_);
    return end_round_if_all_have(now);
  }
  node.has_ended = true;
  stopped_ += message.stopped;
  tree_survived_ = tree_survived_ || message.tree_survived;
  for (const auto& failure : message.failures)
    if (failures_.size() < 16 * kFailuresMax) failures_.push_back(failure);
  if (!message.failures.empty() && phase_ == Phase::running) stop_round(SIGTERM, false, describe_failure(message.failures.front()));
  end_round_if_all_have(now);
}

void Membership::take(NodeId from, const StopAsked& message, TimePoint now) {
  const auto host = nodes_.at(from).hello.host_name;
  const auto why = signal_name(message.signal_number) + " to ddprun on host " + host;
  const bool is_under_way = phase_ != Phase::gathering;
  if (is_under_way && !nodes_.at(from).is_member && !nodes_.at(from).is_endpoint_host) {
    out_.push_back(Say{why + ", which was a spare: it has left"});
    nodes_.erase(from);
    if (phase_ == Phase::running) call_newcomers(now);
    return;
  }
  auto& first_came = nodes_.at(from).stop_asked;  // one to each node is a scheduler's way, two to one are a person's
  if (first_came && now - *first_came > kSameWish) return stop_round(stop_signal_, true, "a second " + why, from);
  if (!first_came) first_came = now;
  if (stop_signal_ != 0) return;
  stop_signal_ = message.signal_number;
  if (phase_ == Phase::gathering || phase_ == Phase::opening_store) {
    FinishJob verdict;
    verdict.exit_code = 128 + stop_signal_;
    verdict.restarts_max = options_.restarts_max;
    if (options_.nodes_max > 1) verdict.what = "stopped by " + why + (rounds_begun_ > 0 ? "" : " before the first round");
    return finish(std::move(verdict));
  }
  if (phase_ == Phase::running) stop_round(message.signal_number, false, why, from);
}

Membership::View Membership::view() const {
  constexpr const char* kPhases[] = {"waiting for nodes", "starting", "running", "stopping", "finished"};
  View out;
  out.phase = kPhases[static_cast<std::size_t>(phase_)];
  out.round = round_;
  out.world_size = world_size_;
  out.nodes_min = options_.nodes_min;
  out.nodes_max = options_.nodes_max;
  out.restart_count = restart_count_;
  out.restarts_max = options_.restarts_max;
  out.last_reason = reason_;
  for (const auto& [id, node] : nodes_)
    out.nodes.push_back({node.hello.host_name, node.seen_address, node.is_member ? node.group_rank : std::nullopt});
  return out;
}

std::string Membership::names_of_nodes() const {
  std::string out;
  std::size_t shown = 0;
  for (const auto& [id, node] : nodes_) {
    if (shown == kNamesShown) return out + " and " + std::to_string(nodes_.size() - shown) + " more";
    out += (shown++ == 0 ? "" : ", ") + node.hello.host_name;
    if (node.hello.node_rank) out += " (node rank " + std::to_string(*node.hello.node_rank) + ")";
  }
  return out;
}

}  // namespace ddp::rendezvous
