// Membership: rounds begin, stop and end.
#include <algorithm>
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "rendezvous/membership/membership.hpp"
#include "rendezvous/membership/membership_words.hpp"

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr auto kStoreLimit = 30s;  // to open it takes milliseconds
constexpr auto kStopMargin = 60s;  // beyond the grace, for what is left to be killed, reaped and reported

}  // namespace

// --- a round begins ---

// For the next round. A node that is left out does not speak for the greater part, because it may leave: if the others
// are not that without it, it takes part.
std::vector<NodeId> Membership::fit_nodes(const CoolDown& cool_down, TimePoint now) const {
  auto ids = candidates(nodes_, cool_down, options_.nodes_min, now);
  if (!options_.greater_part_only || !cool_down.is_anyone_out(now)) return ids;
  auto all = candidates(nodes_, {}, options_.nodes_min, now);
  std::set<std::string> left_out;
  for (const auto id : all)
    if (!std::binary_search(ids.begin(), ids.end(), id) && !nodes_.at(id).is_endpoint_host)  // which decides this
      left_out.insert(nodes_.at(id).hello.node_key);
  return left_out.empty() || quorum_.is_greater_part_without(left_out) ? ids : all;
}

void Membership::form_round(TimePoint now) {
  const auto ids = fit_nodes(restarts_.cool_down(), now);
  const auto members = members_of_next_round(nodes_, ids, options_.nodes_max);
  const bool is_for_link = round_.loss && round_.loss->link == Loss::Link::leaves_one_out;
  for (auto& [id, node] : nodes_) {
    const bool is_out = !std::binary_search(ids.begin(), ids.end(), id);
    if (is_out && node.is_member())
      print(is_for_link ? left_out_for_link_text(node.hello.host_name) : left_out_text(node.hello.host_name));
    if (is_out) node.group_rank.reset();  // another node may have it from now on
    nodes_.end_membership(node);
  }
  int group_rank = 0;
  for (const auto id : members) {
    nodes_.make_member(id, group_rank++, {.has_ended = true});  // nothing runs there yet
    nodes_.at(id).links_to_check.clear();
  }
  auto id = options_.term;
  id.number = static_cast<std::uint32_t>(std::max(round_.number(), round_with_logs_) + 1);
  round_ = {id};
  recovery_.add_nonce(options_.nonce());
  recovery_.reset_wait();
  deadline_ = now + kStoreLimit;
  phase_ = Phase::opening_store;
  ask_for_store();
}

void Membership::ask_for_store() {
  const auto members = nodes_.members();
  for (auto& request : store_requests(last_round(), nodes_, members)) send(members.front(), std::move(request));
}

void Membership::let_go_of_store_opener(TimePoint now) {
  const auto silent = nodes_.members().front();
  send(silent, store_not_opened_refusal(kStoreLimit));
  take(Left{silent, store_not_opened_text(kStoreLimit)}, now);
}

void Membership::hear(NodeId, const StoreOpened& message, TimePoint now) {
  if (phase_ == Phase::opening_store && message.round == round_.number()) start_round(message.port, now);
}

// Nodes that were left behind know how often the job was restarted, also where nobody adopts their round. Those that
// only came by do not count, nor does a round that is newer than this one, nor, without a token, that of a node which
// can't prove that it was in a round here: anybody may say that.
void Membership::count_restarts_before(const std::vector<NodeId>& members, TimePoint now) {
  const auto is_believed = [&](const Held& held) {
    if (rounds_begun_ == 0) return true;
    return held.round < last_round() && (options_.has_token || recovery_.proves_any_round(held));
  };
  for (const auto id : members)
    if (const auto& held = nodes_.at(id).hello.held; held && is_believed(*held))
      restarts_.restate(held->restart_count, held->spent_restarts, now);
}

void Membership::start_round(std::uint16_t store_port, TimePoint now) {
  if (must_step_down()) return step_down(why_too_few());  // nodes fell silent meanwhile
  if (!may_go_on()) return begin_gathering(now);
  recovery_.begin_own_round();
  last_begun_ = last_round();
  is_endpoint_ours_ = !options_.endpoint_address.empty();
  phase_ = Phase::running;
  deadline_.reset();
  const auto all = nodes_.members();
  count_restarts_before(all, now);
  if (job_started_ == 0) job_started_ = job_start(nodes_, all);
  ++rounds_begun_;
  newcomers_.round_begins(now);
  world_size_ = 0;
  for (const auto id : all) {
    auto& node = nodes_.at(id);
    world_size_ += node.hello.workers;
    node.part->has_ended = false;
    if (node.first_round < 0) node.first_round = round_.number();
    if (node.stop.warning != 0) stops_.warn();
  }
  StartRound start;
  start.round = last_round();
  start.nonce = recovery_.nonce();
  start.restart_count = restarts_.count();
  start.restarts_max = options_.restarts_max;
  start.spent_restarts = restarts_.spent(now);
  start.master_port = store_port;
  start.why = restarts_.reason();
  start.is_why_told = start.why && start.why == std::exchange(told_why_, std::nullopt);
  start.job_started = job_started_;
  std::map<int, std::string> ranks;
  round_.nodes = static_cast<int>(all.size());
  round_.began_at = job_time(now);
  book_.begun(round_.id->number, start.why.value_or(""), round_.nodes, world_size_, now);
  expect_sends_to_members();
  tell_starts(start, nodes_, all, [&](NodeId id, StartRound its) {
    auto& node = nodes_.at(id);
    if (const auto* before = book_.round_before(); before != nullptr && is_report_for(node)) its.round_before = *before;
    send(id, its);
    ranks[its.group_rank] = node.hello.node_key;
    node.part->told = std::move(its);
  });
  quorum_.begin(ranks);
  call_newcomers(now);  // those that came meanwhile
}

void Membership::hear(NodeId from, const RoundStarted& message, TimePoint now) {
  if (message.round != round_.number() || (phase_ != Phase::running && phase_ != Phase::stopping)) return;
  if (!quorum_.start(nodes_.at(from).hello.node_key)) return;
  book_.all_started(now);
  gathering_.forget_nodes_away();
  expect_sends_to_members();
  for (const auto& [id, node] : nodes_)
    if (node.is_member()) send(id, RoundEstablished{message.round});
  if (phase_ == Phase::running && stops_.is_warned() && !job_stop()) ask_for_a_step(now);
}

void Membership::hear(NodeId from, const FirstStep& message, TimePoint now) {
  if (message.round != round_.number() || phase_ != Phase::running ||
      std::exchange(nodes_.at(from).part->has_stepped, true))
    return;
  if (++round_.nodes_stepped == round_.nodes) book_.first_step(now);
}

// --- it stops ---

void Membership::stop_round(int signal_number, bool kill, const std::optional<std::string>& why, TimePoint now,
                            std::optional<NodeId> knows_already) {
  if (phase_ == Phase::running) {
    phase_ = Phase::stopping;
    deadline_ = now + 2 * nodes_.longest_grace() + kStopMargin;
    round_.agreement.wait_until({});
    book_.end_called(round_.end_happened, now);
    if (job_stop()) stops_.round_stopped(job_time(now));
  }
  round_.stop = {
      static_cast<std::uint32_t>(round_.number()), signal_number, kill || round_.stop.kill,
      !kill && may_another_round_follow(now),      why,           {round_.hung_ranks.begin(), round_.hung_ranks.end()}};
  round_.stop.gathers = round_.is_for_others;
  expect_sends_to_members();
  for (const auto& [id, node] : nodes_) {
    if (!node.runs()) continue;
    auto stop = round_.stop;
    if (id == knows_already) stop.why.reset();
    send(id, std::move(stop));
  }
}

// As far as it is known before all have ended.
bool Membership::may_another_round_follow(TimePoint now) {
  if (job_stop() || (!recovery_.awaits_anyone() && must_step_down())) return false;
  return round_.is_for_others || restarts_.may_follow(round_, nodes_.count_available() >= options_.nodes_min, now);
}

// An agent whose heart beats, and which does not say that its workers have ended, may not hold up the others for ever.
void Membership::refuse_those_that_never_stop(TimePoint now) {
  deadline_.reset();
  std::vector<NodeId> late;
  for (const auto& [id, node] : nodes_)
    if (node.runs()) late.push_back(id);
  for (const auto id : late) {
    send(id, never_stopped_refusal());
    take(Left{id, kDidNotEndWorkers}, now);
  }
}

void Membership::hear(NodeId from, const RoundFailed& message, TimePoint now) {
  if (message.round != round_.number()) return;
  const bool are_more_hung = round_.note_hung(message.hung_ranks);
  const bool was_for_others = round_.is_for_others;
  round_.is_for_others = message.is_for_others && (was_for_others || phase_ == Phase::running);
  if (phase_ == Phase::running) {
    round_.end_happened = at(message.job_time, now);
    stop_round(SIGTERM, false, message.what, now, from);
  } else if (phase_ == Phase::stopping && (are_more_hung || was_for_others != round_.is_for_others)) {
    stop_round(round_.stop.signal_number, false, round_.stop.why, now);
  }
}

// A newcomer on which the program can't even be started, where the others have been at work without it.
bool Membership::can_do_without(const Node& node, const RoundEnded& message) const {
  return std::any_of(message.failures.begin(), message.failures.end(), is_hopeless) && rounds_begun_ > 1 &&
         node.first_round == round_.number() && nodes_.count_available() > options_.nodes_min;
}

void Membership::leave_out(NodeId newcomer, const RoundEnded& message, TimePoint now) {
  const auto& node = nodes_.at(newcomer);
  const auto host = node.hello.host_name;
  const auto failure = std::find_if(message.failures.begin(), message.failures.end(), is_hopeless);
  send(newcomer, cannot_start_refusal(failure->message));
  quorum_.leave(node.hello.node_key, true);
  forget(newcomer);
  note_loss(cannot_start_text(host), now, now);
  stop_round(SIGTERM, false, round_.loss->what, now);
  end_round_if_all_have(now);
}

void Membership::take_end_of_older_round(NodeId from, const RoundEnded& message, TimePoint now) {
  nodes_.end_older_round(from);
  if (message.tree_survived) {
    send(from, survivors_refusal(message.round));
    forget(from);
  } else if (const auto& stop = nodes_.at(from).stop; stop.asked) {
    dismiss(from, stop.signal_number);
  }
  go_on(now);
}

void Membership::hear(NodeId from, const RoundEnded& message, TimePoint now) {
  auto& node = nodes_.at(from);
  const bool is_older = nodes_.older_round(from) == message.round;
  const bool is_member = is_older ? node.has_older_work : node.part && message.round == round_.number();
  if (is_member && message.progress.kept_at) node.kept_in = std::max<std::int64_t>(node.kept_in, message.round);
  if (is_older) return take_end_of_older_round(from, message, now);
  if (!node.runs() || message.round != round_.number() || (phase_ != Phase::running && phase_ != Phase::stopping))
    return;
  if (can_do_without(node, message)) return leave_out(from, message, now);
  node.part->has_ended = true;
  node.part->unreached = message.unreached;
  node.part->were_in_call = message.were_in_call;
  round_.note_end(message);
  // The first one is the node's own cause, which may come last of a large job and be that of all.
  for (std::size_t i = 0; i < message.failures.size(); ++i) {
    const auto& failure = message.failures[i];
    const bool is_one_too_many = !round_.takes_failures();
    if (is_one_too_many && i > 0) break;
    if (failure.ending.is_success()) continue;  // its exit code would be the job's
    auto& noted = round_.failures.emplace_back(own_failure(node, nodes_, failure));
    if (is_one_too_many && !speaks_for_itself(noted)) noted.stderr_tail.clear();  // memory stays bounded
  }
  if (message.signal_number && !nodes_.is_leaving(from)) take_signalled(from, message, now);
  if (!message.failures.empty() && phase_ == Phase::running) {
    round_.end_happened = at(message.failures.front().job_time, now);
    stop_round(SIGTERM, false, describe_failure(own_failure(node, nodes_, message.failures.front())), now);
  }
  if (message.failures.empty() && message.stopped > 0 && phase_ == Phase::running) {
    if (job_stop() || stops_.is_leave_urgent()) return give_up_agreement(now);
    // Its agent had lost touch: the others would wait for its part of the round.
    note_loss(out_of_touch_text(node.hello.host_name, message.why_stopped), now, now);
    stop_round(SIGTERM, false, round_.loss->what, now);
  }
  if (phase_ == Phase::running) follow(round_.agreement.ends(*node.group_rank, now), now);
  end_round_if_all_have(now);
}

// --- it ends ---

// Members that may come again, or that are awaited, may have processes of it.
void Membership::end_round_if_all_have(TimePoint now) {
  if (phase_ != Phase::running && phase_ != Phase::stopping) return;
  if (nodes_.is_member_absent() || (recovery_.awaits_anyone() && !job_stop())) return;
  if (!nodes_.is_anyone_running()) begin_next_round(now);
}

// Where membership is on no node of the job, only a round that another one began needs its greater part, once: another
// membership may have gone on with it. With as many nodes as the job takes here, those that are not have been replaced.
bool Membership::may_go_on() const {
  const bool are_all_replaced = nodes_.count_available() >= options_.nodes_max;
  if (did_others_go_on()) return are_all_replaced;
  if (!options_.greater_part_only && (are_all_replaced || !recovery_.is_in_doubt())) return true;
  return quorum_.is_greater_part_here() || are_others_too_few();
}

// A node that others went on without has come, and none of them. They call at the endpoint once a second, or can't for
// now, or have all ended.
bool Membership::did_others_go_on() const {
  const auto was_left_behind = [](const auto& entry) {
    const auto& held = entry.second.hello.held;
    return held && held->is_left_behind;
  };
  return options_.greater_part_only && rounds_begun_ == 0 && !recovery_.are_claims_open() &&
         std::any_of(nodes_.begin(), nodes_.end(), was_left_behind);
}

// The nodes that are not here can't go on without some of those that are, or without newcomers; and these come to the
// endpoint. Where a fixed number is here, all of whom were members, no member is elsewhere.
bool Membership::are_others_too_few() const {
  const bool is_fixed = options_.nodes_min == options_.nodes_max;
  const bool are_all_here = is_fixed && nodes_.count_available() >= options_.nodes_min;
  if (are_all_here && were_all_members()) return true;
  return quorum_.silent_count() < options_.nodes_min && (is_endpoint_ours_ || (are_all_here && is_endpoint_here()));
}

// Both sides of a broken network may have enough nodes where there were spares.
bool Membership::is_endpoint_here() const {
  return options_.holds_endpoint ||
         std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) { return entry.second.hello.holds_endpoint; });
}

bool Membership::were_all_members() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const auto& entry) {
    const auto& [id, node] = entry;
    return node.group_rank || node.hello.held || !nodes_.is_available(id, node);
  });
}

// Where some failure is for no other rank, or a rank hangs, that explains the end of the round.
void Membership::find_broken_links(TimePoint now) {
  if (round_.loss || round_.change || job_stop() || !are_all_for_others(round_.failures)) return;
  const auto holders = nodes_.holders_of_newest_work();
  std::map<int, NodeId> members;
  std::set<int> have_work;
  std::vector<NodeLinks> told;
  for (const auto id : nodes_.members()) {
    const auto& node = nodes_.at(id);
    const auto first = rank_first_of(node, nodes_);
    if (!first) return;
    members[*node.group_rank] = id;
    if (holders.count(id) != 0) have_work.insert(*node.group_rank);
    told.push_back({*node.group_rank, *first, node.hello.workers, node.part->unreached, node.part->were_in_call});
  }
  const auto links = broken_links(told);
  if (links.empty()) return;
  std::vector<std::string> texts;
  for (const auto& link : links)
    texts.push_back(
        link_text(nodes_.at(members.at(link.a)).hello.host_name, nodes_.at(members.at(link.b)).hello.host_name));
  note_loss(broken_links_text(texts), round_.end_happened, now);
  auto cool_down = restarts_.cool_down();
  std::set<NodeId> out;
  std::map<NodeId, std::vector<Elsewhere>> checks;
  for (const int group_rank : nodes_to_leave_out(links, have_work)) {
    const auto& node = nodes_.at(*out.insert(members.at(group_rank)).first);
    const bool may_be_let_in = cool_down.leave_out_for_link(place_of(node.hello.host_name, node.seen_address), now);
    if (may_be_let_in) checks[members.at(group_rank)] = other_ends(links, group_rank, members);
  }
  const auto left = fit_nodes(cool_down, now);
  const bool is_any_in = std::any_of(left.begin(), left.end(), [&](NodeId id) { return out.count(id) != 0; });
  round_.loss->link = is_any_in ? Loss::Link::ends_round : Loss::Link::leaves_one_out;
  if (is_any_in) return;
  restarts_.set_cool_down(std::move(cool_down));
  for (auto& [id, to] : checks) {
    if (to.empty()) continue;
    nodes_.at(id).links_to_check = to;
    send(id, CheckLinks{std::move(to)});
  }
}

// The agents to which this node has a broken link, but for that of this process, whose address is not known here. Empty
// if they can't all be checked: then the node waits for its time.
std::vector<Elsewhere> Membership::other_ends(const std::vector<BrokenLink>& links, int group_rank,
                                              const std::map<int, NodeId>& members) const {
  std::vector<Elsewhere> out;
  for (const auto& link : links) {
    if (link.a != group_rank && link.b != group_rank) continue;
    const auto& other = nodes_.at(members.at(link.a == group_rank ? link.b : link.a));
    if (other.seen_address.empty() || other.hello.standby_port == 0 || out.size() == kLinksCheckedMax) return {};
    out.push_back({other.seen_address, other.hello.standby_port});
  }
  return out;
}

void Membership::hear(NodeId from, const LinksWork&, TimePoint now) {
  auto& node = nodes_.at(from);
  if (std::exchange(node.links_to_check, {}).empty()) return;
  restarts_.let_in(place_of(node.hello.host_name, node.seen_address), now);
  print(links_work_text(node.hello.host_name));
  go_on(now);
}

void Membership::begin_next_round(TimePoint now) {
  if (const auto& kept = round_.kept; kept.commits || kept.checkpoint_step)
    book_.kept(kept.kept_at ? std::optional(at(*kept.kept_at, now)) : std::nullopt);
  book_.all_ended(now);
  round_.agreement.wait_until({});
  if (job_stop()) forgive_what_follows_from_signals(round_, *job_stop());
  forgive_what_follows_from_change(round_);
  const bool has_begun = phase_ != Phase::opening_store;
  if (has_begun) find_broken_links(now);
  const bool are_enough_left = nodes_.count_available() >= options_.nodes_min;
  const bool is_change = is_change_of_members(round_, has_begun, are_enough_left);
  const Restarts::RoundEnd end{round_, has_begun, is_change};
  const bool is_due = restarts_.end(end, now);
  if (job_stop() || !is_due || restarts_.is_crash_loop())
    return finish(verdict_of_round({round_, job_stop(), is_due, world_size_, options_.restarts_max}), now);
  if (must_step_down()) return step_down(why_too_few());
  restarts_.go_on(end, now);
  if (const auto& pause = restarts_.pause(); pause.failures() > 0) {
    gathering_.pause_until(now + pause.length());
    told_why_ = restarts_.reason();
    print(pause_text(told_why_.value_or(""), {restarts_.count(), options_.restarts_max}, pause.length(),
                     pause.failures()));
  }
  begin_gathering(now);
}

std::string Membership::why_too_few() const {
  if (did_others_go_on()) return kOthersWentOn;
  return too_few_text(quorum_.silent_count(), round_.number(), static_cast<int>(nodes_.members().size()));
}

// Nothing is waited for any more.
void Membership::enter_finished() {
  phase_ = Phase::finished;
  deadline_.reset();
  recovery_.stop_waiting();
  nodes_.forget_absences();
  round_.agreement.wait_until({});
}

void Membership::step_down(const std::string& why) {
  enter_finished();
  out_.emplace_back(StepDown{why});
}

void Membership::finish(FinishJob verdict, TimePoint now) {
  enter_finished();
  verdict_ = std::move(verdict);
  verdict_->report = book_.at(now);
  for (const auto& [id, node] : nodes_) send_verdict(id, is_report_for(node));
}

// The report may be long: not to ten thousand nodes that do not ask for it.
bool Membership::is_report_for(const Node& node) {
  return node.hello.wants_report || (node.is_member() && node.group_rank == 0);
}

void Membership::send_verdict(NodeId to, bool with_report) {
  auto verdict = *verdict_;
  if (!with_report) verdict.report.reset();
  send(to, std::move(verdict));
}

}  // namespace ddp::rendezvous
