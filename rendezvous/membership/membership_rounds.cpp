// Membership: rounds begin, stop and end.
#include <arpa/inet.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/loopback.hpp"
#include "rendezvous/membership/membership.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kSameMoment = 50ms;   // clocks of nodes are no more exact
constexpr auto kLateReport = 250ms;  // of a death, from a loaded machine
constexpr auto kLateEnd = 2s;        // of a killed process, whose connections may close before its memory is freed
constexpr auto kUnnoticed = 10s;     // how long after its consequences the loss of a node may become known
constexpr auto kStoreLimit = 30s;    // to open it takes milliseconds
constexpr auto kStopMargin = 60s;    // beyond the grace, for what is left to be killed, reaped and reported

bool is_numeric(const std::string& address) {
  in6_addr parsed{};
  return ::inet_pton(AF_INET, address.c_str(), &parsed) == 1 || ::inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

// Exec will fail again, so another round is of no use.
bool is_hopeless(const FailureReport& failure) { return failure.ending.kind == Ending::Kind::not_started; }

bool was_killed_from_outside(const FailureReport& failure) {
  const auto& ending = failure.ending;
  return ending.kind == Ending::Kind::killed &&
         (ending.value == SIGKILL || ending.value == SIGSEGV || ending.value == SIGBUS || ending.value == SIGTERM);
}

}  // namespace

std::size_t first_cause(const std::vector<FailureReport>& failures) {
  // Who only left its group did so because of another, wherever there is one.
  const auto left = [&](std::size_t i) { return failures[i].ending.kind == Ending::Kind::left; };
  const auto earlier = [&](std::size_t a, std::size_t b) {
    return left(a) != left(b) ? left(b) : failures[a].job_time < failures[b].job_time;
  };
  std::size_t first = 0;
  for (std::size_t i = 1; i < failures.size(); ++i)
    if (earlier(i, first)) first = i;
  if (was_killed_from_outside(failures[first])) return first;
  std::optional<std::size_t> killed;
  for (std::size_t i = 0; i < failures.size(); ++i) {
    // Who says why it failed has hardly missed another one. What is killed after it may have run out of memory in
    // saving.
    const bool may_be_late = failures[i].ending.value == SIGKILL && failures[first].message.empty();
    const auto late = may_be_late ? kLateEnd : kLateReport;
    if (was_killed_from_outside(failures[i]) && failures[i].job_time - failures[first].job_time <= late &&
        (!killed || earlier(i, *killed)))
      killed = i;
  }
  return killed.value_or(first);
}

// --- a round begins ---

// Those that have processes of an older round, and newcomers whose connection broke, can't take part yet.
int Membership::count_available() const {
  auto count = nodes_.size() - older_rounds_.size();
  if (!has_spares()) return static_cast<int>(count);
  for (const auto& [id, absence] : absences_)
    if (!nodes_.at(id).is_member && older_rounds_.count(id) == 0) --count;
  return static_cast<int>(count);
}

// Hosts that ended too many rounds are left out where enough others are there.
std::vector<NodeId> Membership::candidates(TimePoint now) const {
  std::vector<NodeId> all, fit;
  const bool is_anyone_out = cool_down_.is_anyone_out(now);
  for (const auto& [id, node] : nodes_) {
    if (older_rounds_.count(id) != 0 || (!node.is_member && absences_.count(id) != 0)) continue;
    all.push_back(id);
    if (is_anyone_out && !cool_down_.is_out(place_of(node), now)) fit.push_back(id);
  }
  if (!is_anyone_out) return all;
  return fit.size() >= static_cast<std::size_t>(options_.nodes_min) ? fit : all;
}

void Membership::form_round(TimePoint now) {
  const auto ids = candidates(now);
  std::vector<RankCandidate> those;
  for (const auto id : ids) {
    const auto& node = nodes_.at(id);
    those.push_back({node.group_rank, node.hello.node_rank, node.is_endpoint_host, node.hello.host_name});
  }
  for (auto& [id, node] : nodes_) {
    if (node.is_member && !std::binary_search(ids.begin(), ids.end(), id))
      print("host " + node.hello.host_name + " ended " + std::to_string(CoolDown::kBlames) +
            " rounds within 10 min and is left out for 5 min");
    if (!std::binary_search(ids.begin(), ids.end(), id))
      node.group_rank.reset();  // another node may have it from now on
    node.is_member = false;
    node.told.reset();
  }
  std::vector<NodeId> chosen;
  for (const auto index : give_group_ranks(those, static_cast<std::size_t>(options_.nodes_max))) {
    auto& node = nodes_.at(ids[index]);
    node.group_rank = static_cast<int>(chosen.size());
    node.is_member = node.has_ended = true;  // nothing runs there yet
    node.has_stepped = node.takes_part = false;
    node.stop_call.reset();
    chosen.push_back(ids[index]);
  }
  member_count_ = chosen.size();
  round_ = std::max(round_, round_with_logs_) + 1;
  round_id_ = options_.term;
  round_id_.number = static_cast<std::uint32_t>(round_);
  nonces_.insert(nonces_.begin(), options_.nonce());
  if (nonces_.size() > kNoncesMax) nonces_.pop_back();
  forget_round();
  deadline_ = now + kStoreLimit;
  phase_ = Phase::opening_store;
  ask_for_store(chosen);
}

void Membership::forget_round() {
  awaited_.clear();
  restate_ends_.reset();
  failures_.clear();
  stopped_ = 0;
  tree_survived_ = false;
  lost_node_.clear();
  lost_place_.clear();
  growth_.clear();
  has_member_left_ = false;
  hung_ranks_.clear();
  stop_ = {};
  last_call_ends_.reset();
  kept_ = {};
  stopped_at_step_ = nodes_stepped_ = 0;
  is_step_wanted_ = are_calls_wanted_ = false;
  agreed_call_.reset();
  calls_told_before_.clear();
  agreement_ends_.reset();
}

void Membership::ask_for_store(const std::vector<NodeId>& members) {
  OpenStore open{round_id_, {}, false};
  const auto each_max = kRoundAddressesMax / members.size() - 1;  // besides the one that it is seen at
  for (const auto id : members) {
    if (id == members.front()) continue;
    auto addresses = nodes_.at(id).hello.addresses;
    if (addresses.size() > each_max) addresses.resize(each_max);
    if (!nodes_.at(id).seen_address.empty()) addresses.push_back(nodes_.at(id).seen_address);
    for (auto& address : addresses) {
      open.allow.push_back(std::move(address));
      if (open.allow.size() == kAddressesMax) send(members.front(), std::exchange(open, {round_id_, {}, false}));
    }
  }
  open.is_last = true;
  send(members.front(), std::move(open));
}

void Membership::let_go_of_store_opener(TimePoint now) {
  const auto silent = members().front();
  const auto limit = describe_duration(kStoreLimit);
  send(silent, Refused{"this node did not open the store of the job within " + limit,
                       "`top` and `dmesg` there: a machine that is this slow can't serve the others"});
  take(Left{silent, "it did not open the store within " + limit}, now);
}

std::vector<NodeId> Membership::members() const {
  std::vector<std::pair<int, NodeId>> ranked;
  for (const auto& [id, node] : nodes_)
    if (node.is_member) ranked.emplace_back(*node.group_rank, id);
  std::sort(ranked.begin(), ranked.end());
  std::vector<NodeId> out;
  for (const auto& [rank, id] : ranked) out.push_back(id);
  return out;
}

bool Membership::is_member_absent() const {
  return std::any_of(absences_.begin(), absences_.end(),
                     [&](const auto& entry) { return nodes_.at(entry.first).is_member; });
}

void Membership::take(NodeId, const StoreOpened& message, TimePoint now) {
  if (phase_ == Phase::opening_store && message.round == round_) start_round(message.port, now);
}

// Nodes that were left behind know how often the job was restarted, also where nobody adopts their round. Those that
// only came by do not count: anybody may say that.
void Membership::count_restarts_before(const std::vector<NodeId>& members, TimePoint now) {
  for (const auto id : members)
    if (const auto& held = nodes_.at(id).hello.held) budget_.restate(held->restart_count, now);
}

void Membership::start_round(std::uint16_t store_port, TimePoint now) {
  if (!may_go_on()) return step_down(why_too_few());  // nodes fell silent meanwhile
  is_adopted_ = was_given_up_ = false;
  phase_ = Phase::running;
  deadline_.reset();
  const auto all = members();
  if (rounds_begun_ == 0) count_restarts_before(all, now);
  ++rounds_begun_;
  round_began_ = now;
  for (const auto id : all) {
    auto& node = nodes_.at(id);
    node.has_ended = false;
    if (node.first_round < 0) node.first_round = round_;
    is_warned_ = is_warned_ || node.was_warned;
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
  start.round = round_id_;
  start.nonce = nonces_.front();
  start.group_world_size = static_cast<int>(all.size());
  start.world_size = world_size_;
  start.restart_count = budget_.count();
  start.restarts_max = options_.restarts_max;
  start.master_port = store_port;
  start.why = reason_;
  start.successors = successors(all);
  for (const auto id : all)
    if (nodes_.at(id).is_endpoint_host) start.host_group_rank = nodes_.at(id).group_rank;
  if (!first.hello.local_address.empty())
    start.master_address = first.hello.local_address;
  else if (!first.is_endpoint_host &&
           !base::is_loopback_host(first.seen_address))  // such a node is on the endpoint's host
    start.master_address = first.seen_address;
  std::map<std::string, int> role_ranks;
  std::map<int, std::string> ranks;
  expect_sends_to_members();
  for (const auto id : all) {
    const auto& hello = nodes_.at(id).hello;
    start.role_rank_first = role_ranks[hello.role];
    start.role_world_size = role_sizes[hello.role];
    send(id, start);
    nodes_.at(id).told = start;
    ranks[start.group_rank] = hello.node_key;
    ++start.group_rank;
    start.rank_first += hello.workers;
    role_ranks[hello.role] += hello.workers;
  }
  quorum_.begin(ranks);
  nodes_in_round_ = static_cast<int>(all.size());
  book_.begun(round_id_.number, reason_, nodes_in_round_, world_size_, now);
  call_newcomers(now);  // those that came meanwhile
}

// Where the endpoint is on a node of the job: those that could serve it in its place. An address on loopback is of use
// to them only where all are on one host.
std::vector<Successor> Membership::successors(const std::vector<NodeId>& members) const {
  const auto is_embedded = [](const auto& entry) { return entry.second.is_endpoint_host; };
  if (std::none_of(nodes_.begin(), nodes_.end(), is_embedded)) return {};
  const bool is_one_host = std::all_of(members.begin(), members.end(), [&](NodeId id) {
    return nodes_.at(id).is_endpoint_host || base::is_loopback_host(nodes_.at(id).seen_address);
  });
  std::vector<Successor> out;
  for (const auto id : members) {
    const auto& node = nodes_.at(id);
    if (out.size() == kSuccessorsMax) break;
    if (node.is_endpoint_host || node.hello.standby_port == 0 || !is_numeric(node.seen_address)) continue;
    if (is_one_host || !base::is_loopback_host(node.seen_address))
      out.push_back({*node.group_rank, node.seen_address, node.hello.standby_port});
  }
  return out;
}

void Membership::take(NodeId from, const RoundStarted& message, TimePoint now) {
  if (message.round != round_ || (phase_ != Phase::running && phase_ != Phase::stopping)) return;
  if (!quorum_.start(nodes_.at(from).hello.node_key)) return;
  book_.all_started(now);
  expect_sends_to_members();
  for (const auto& [id, node] : nodes_)
    if (node.is_member) send(id, RoundEstablished{message.round});
  if (phase_ == Phase::running && is_warned_ && stop_signal_ == 0) ask_for_a_step(now);
}

void Membership::take(NodeId from, const FirstStep& message, TimePoint now) {
  if (message.round != round_ || phase_ != Phase::running || std::exchange(nodes_.at(from).has_stepped, true)) return;
  if (++nodes_stepped_ == nodes_in_round_) book_.first_step(now);
}

// --- it stops ---

void Membership::stop_round(int signal_number, bool kill, const std::string& why, TimePoint now,
                            std::optional<NodeId> knows_already) {
  if (phase_ == Phase::running) {
    phase_ = Phase::stopping;
    deadline_ = now + 2 * longest_grace() + kStopMargin;
    agreement_ends_.reset();
    book_.end_called(end_happened_, now);
    if (stop_signal_ != 0) stopped_by_signal_at_ = job_time(now);
  }
  stop_ = {static_cast<std::uint32_t>(round_),     signal_number, kill || stop_.kill,
           !kill && may_another_round_follow(now), why,           {hung_ranks_.begin(), hung_ranks_.end()}};
  expect_sends_to_members();
  for (const auto& [id, node] : nodes_) {
    if (!node.is_member || node.has_ended) continue;
    auto stop = stop_;
    if (id == knows_already) stop.why.clear();
    send(id, std::move(stop));
  }
}

// As far as it is known before all have ended.
bool Membership::may_another_round_follow(TimePoint now) {
  if (stop_signal_ != 0 || tree_survived_ || (cause() != nullptr && is_hopeless(*cause()))) return false;
  if (awaited_.empty() && !may_go_on()) return false;
  const bool is_change =
      (!growth_.empty() && cause() == nullptr) || (!lost_node_.empty() && count_available() >= options_.nodes_min);
  return is_change || budget_.is_left(now);
}

// An agent whose heart beats, and which does not say that its workers have ended, may not hold up the others for ever.
void Membership::refuse_those_that_never_stop(TimePoint now) {
  deadline_.reset();
  std::vector<NodeId> late;
  for (const auto& [id, node] : nodes_)
    if (node.is_member && !node.has_ended) late.push_back(id);
  for (const auto id : late) {
    send(id, Refused{"this node did not end its workers within twice the grace, of which an hour counts, and a minute",
                     "look for processes of the job there that can't be killed: `ps -eo pid,stat,wchan:30,args`"});
    take(Left{id, "it did not end its workers", false}, now);
  }
}

void Membership::take(NodeId from, const RoundFailed& message, TimePoint now) {
  if (message.round != round_) return;
  const auto known = hung_ranks_.size();
  for (const int rank : message.hung_ranks)
    if (rank >= 0 && hung_ranks_.size() < kHungRanksMax) hung_ranks_.insert(rank);
  if (phase_ == Phase::running) {
    end_happened_ = at(message.job_time, now);
    stop_round(SIGTERM, false, message.what, now, from);
  } else if (phase_ == Phase::stopping && hung_ranks_.size() > known)
    stop_round(stop_.signal_number, false, stop_.why, now);
}

// A newcomer on which the program can't even be started, where the others have been at work without it.
bool Membership::can_do_without(const Node& node, const RoundEnded& message) const {
  return std::any_of(message.failures.begin(), message.failures.end(), is_hopeless) && rounds_begun_ > 1 &&
         node.first_round == round_ && count_available() > options_.nodes_min;
}

// The first of the ranks that the node has in this round. Where another membership has begun it, that is known as long
// as all nodes before it are here.
std::optional<int> Membership::rank_first_of(const Node& node) const {
  if (node.told) return node.told->rank_first;
  int nodes = 0, ranks = 0;
  for (const auto& [id, other] : nodes_)
    if (other.is_member && *other.group_rank < *node.group_rank) {
      ++nodes;
      ranks += other.hello.workers;
    }
  if (nodes != *node.group_rank) return {};
  return ranks;
}

// A node can speak of its own workers only.
FailureReport Membership::own_failure(const Node& node, FailureReport failure) const {
  failure.host = node.hello.host_name;
  failure.seen_address = node.seen_address;
  failure.local_rank = std::min(failure.local_rank, node.hello.workers - 1);
  const auto first = rank_first_of(node);
  if (first && (failure.rank < *first || failure.rank >= *first + node.hello.workers))
    failure.rank = *first + failure.local_rank;
  return failure;
}

void Membership::take(NodeId from, const RoundEnded& message, TimePoint now) {
  if (const auto older = older_rounds_.find(from); older != older_rounds_.end() && older->second == message.round) {
    older_rounds_.erase(older);
    if (message.tree_survived) {
      send(from, Refused{"processes of round " + std::to_string(message.round) + " could not be killed on this host",
                         "the output of ddprun there says where they are"});
      forget(from);
    }
    if (nodes_.count(from) != 0 && nodes_.at(from).stop_asked) dismiss(from, nodes_.at(from).stop_signal);
    return go_on(now);
  }
  auto& node = nodes_.at(from);
  if (!node.is_member || message.round != round_ || node.has_ended ||
      (phase_ != Phase::running && phase_ != Phase::stopping))
    return;
  if (can_do_without(node, message)) {
    const auto host = node.hello.host_name;
    send(from, Refused{"the program can't be started on this host: " + message.failures.front().message,
                       "install it as on the other nodes of the job"});
    quorum_.leave(node.hello.node_key, true);
    forget(from);
    note_loss("host " + host + " can't start the program and is left out", now, now);
    stop_round(SIGTERM, false, lost_node_, now);
    return end_round_if_all_have(now);
  }
  node.has_ended = true;
  stopped_ += message.stopped;
  stopped_at_step_ += message.stopped_at_step;
  kept_.commits = std::max(kept_.commits, message.progress.commits);
  kept_.checkpoint_step = std::max(kept_.checkpoint_step, message.progress.checkpoint_step);
  tree_survived_ = tree_survived_ || message.tree_survived;
  for (const auto& failure : message.failures) {
    if (failures_.size() == 16 * kFailuresMax) break;
    if (failure.ending.is_success()) continue;  // its exit code would be the job's
    failures_.push_back(own_failure(node, failure));
  }
  if (message.signal_number) take_signalled(from, message, now);
  if (!message.failures.empty() && phase_ == Phase::running) {
    end_happened_ = at(message.failures.front().job_time, now);
    stop_round(SIGTERM, false, describe_failure(own_failure(node, message.failures.front())), now);
  }
  if (message.failures.empty() && message.stopped > 0 && phase_ == Phase::running) {
    if (stop_signal_ != 0) return give_up_agreement(now);
    // Its agent had lost touch: the others would wait for its part of the round.
    note_loss("host " + node.hello.host_name + " has stopped its workers, as it was out of touch with the job", now,
              now);
    stop_round(SIGTERM, false, lost_node_, now);
  }
  if (phase_ == Phase::running && is_step_wanted_ && !agreed_call_) go_on_with_stop(now);
  end_round_if_all_have(now);
}

// --- it ends ---

// Members that may come again, or that are awaited, may have processes of it.
void Membership::end_round_if_all_have(TimePoint now) {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  if (is_member_absent() || (!awaited_.empty() && stop_signal_ == 0)) return;
  if (!is_any(found_running_, [](const Node& node) { return node.is_member && !node.has_ended; }))
    begin_next_round(now);
}

// What died of the signal that stopped ddprun was no failure: whoever signals ddprun may signal the workers too. Nor
// was what ended by itself since a signal has ended its peers; that it did may have been noticed a little earlier.
void Membership::forgive_what_follows_from_signals() {
  stopped_ += static_cast<int>(std::erase_if(failures_, [&](const FailureReport& failure) {
    const auto& ending = failure.ending;
    if (stop_signal_ != 0 && ending.kind == Ending::Kind::killed && ending.value == stop_signal_) return true;
    if (stopped_by_signal_at_ && ending.kind == Ending::Kind::killed && failure.job_time >= *stopped_by_signal_at_)
      return true;
    const bool is_by_itself = ending.kind == Ending::Kind::exited || ending.kind == Ending::Kind::left;
    return signalled_at_ && failure.job_time >= *signalled_at_ - kLateReport &&
           (is_by_itself || is_schedulers_signal(ending));
  }));
}

const FailureReport* Membership::cause() const {
  return failures_.empty() ? nullptr : &failures_[first_cause(failures_)];
}

// A failure that goes with the loss of a node is taken for its consequence. Workers that all ended well have done their
// work, also where a node is lost, or others have come, before the round is over.
bool Membership::is_change_of_members() const {
  const bool is_done = phase_ != Phase::opening_store && stopped_ == 0 && failures_.empty();
  if (!growth_.empty() && lost_node_.empty()) return cause() == nullptr && !is_done;
  return !lost_node_.empty() && count_available() >= options_.nodes_min && !is_done &&
         (cause() == nullptr || cause()->job_time >= lost_at_ - kUnnoticed);
}

bool Membership::is_next_round_due(TimePoint now) {
  if (tree_survived_ || (cause() != nullptr && is_hopeless(*cause()))) return false;
  if (is_change_of_members()) return true;
  return (!lost_node_.empty() || cause() != nullptr) && budget_.is_left(now);
}

// Where membership is on no node of the job, only a round that another one began needs its greater part, once: another
// membership may have gone on with it.
bool Membership::may_go_on() const {
  const bool is_in_doubt = is_adopted_ && (was_given_up_ || !awaited_.empty());
  return (!options_.greater_part_only && !is_in_doubt) || quorum_.is_greater_part_here();
}

void Membership::begin_next_round(TimePoint now) {
  book_.all_ended(now);
  agreement_ends_.reset();
  forgive_what_follows_from_signals();
  if (!growth_.empty())  // those that missed ranks which were stopped before them
    stopped_ += static_cast<int>(std::erase_if(
        failures_, [&](const FailureReport& failure) { return failure.job_time >= growth_stopped_ - kSameMoment; }));
  const bool failed = !lost_node_.empty() || cause() != nullptr;
  const bool has_failed_at_work = failed && !is_change_of_members() && phase_ != Phase::opening_store;
  if (crash_loop_.end_round(kept_, has_failed_at_work)) budget_.refill();
  const bool is_due = is_next_round_due(now);
  if (stop_signal_ == 0 && is_due && !crash_loop_.is_one()) {
    if (!may_go_on()) return step_down(why_too_few());
    const auto why = why_the_round_ended();
    if (phase_ != Phase::opening_store) ended_why_ = why;
    reason_ = ended_why_.empty() || ended_why_ == why ? why : ended_why_ + "; then " + why;
    if (!is_change_of_members()) budget_.spend(now);
    blame_host(now);
    deadline_.reset();
    phase_ = Phase::opening_store;  // so that gather() begins its wait anew
    return gather(now);
  }
  if (auto verdict = verdict_of_stop_at_step()) return finish(std::move(*verdict), now);
  FinishJob verdict;
  verdict.restarts_max = options_.restarts_max;
  verdict.world_size = world_size_;
  verdict.stopped = stopped_;
  // That a restart would have followed explains nothing where a step was agreed, after which none does.
  if (stop_signal_ != 0 && (!failed || (is_due && !agreed_call_))) {
    verdict.exit_code = 128 + stop_signal_;
    verdict.what = died_of_it_why_;
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
    verdict.try_this =
        "look at that host and at ddprun's output there; `--max-restarts=N` waits for a node in its place";
  } else if (tree_survived_) {
    verdict.exit_code = 1;
    verdict.what = "processes of the job could not be killed, so no other round may begin" +
                   (growth_.empty() ? "" : "; " + growth_);
    verdict.try_this = "look at the output of ddprun on the other nodes, one of which says where they are";
  } else if (stopped_ > 0) {  // no success, whatever a node says of itself
    verdict.exit_code = 1;
    verdict.what = "the workers were stopped (" + stop_.why + "), and no node has named one that failed";
    verdict.try_this = "look at the output of ddprun on the other nodes; install the same version on all of them";
  }
  if (stop_signal_ == 0 && is_due) {  // and yet there is none
    verdict.exit_code = kNoProgress;
    verdict.what += (verdict.what.empty() ? "" : "; ") + counted(CrashLoop::kFailures, "round") +
                    " in a row failed without a commit or a checkpoint in between, so no other one begins";
  }
  finish(std::move(verdict), now);
}

std::string Membership::why_the_round_ended() const {
  const auto* first = cause();
  if (is_change_of_members() || first == nullptr) return lost_node_.empty() ? growth_ : lost_node_;
  return describe_failure(*first) + (first->message.empty() ? "" : " (" + first->message + ")");
}

void Membership::blame_host(TimePoint now) {
  const auto* first = cause();
  const auto place =
      is_change_of_members() || first == nullptr ? lost_place_ : place_of(first->host, first->seen_address);
  if (!place.empty()) cool_down_.blame(place, now);
}

std::string Membership::why_too_few() const {
  return counted(quorum_.silent_count(), "node") + " of round " + std::to_string(round_) +
         " fell silent, and may go on without the " + counted(static_cast<int>(members().size()), "node") +
         " here, too few to go on themselves";
}

void Membership::step_down(const std::string& why) {
  phase_ = Phase::finished;
  deadline_.reset();
  restate_ends_.reset();
  agreement_ends_.reset();
  forget_absences();
  out_.emplace_back(StepDown{why});
}

void Membership::finish(FinishJob verdict, TimePoint now) {
  phase_ = Phase::finished;
  deadline_.reset();
  restate_ends_.reset();
  forget_absences();
  agreement_ends_.reset();
  verdict_ = std::move(verdict);
  verdict_->report = book_.at(now);
  for (const auto& [id, node] : nodes_) send_verdict(id, is_report_for(node));
}

// The report may be long: not to ten thousand nodes that do not ask for it.
bool Membership::is_report_for(const Node& node) {
  return node.hello.wants_report || (node.is_member && node.group_rank == 0);
}

void Membership::send_verdict(NodeId to, bool with_report) {
  auto verdict = *verdict_;
  if (!with_report) verdict.report.reset();
  send(to, std::move(verdict));
}

}  // namespace ddp::rendezvous
