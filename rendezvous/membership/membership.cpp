#include "rendezvous/membership/membership.hpp"

#include <algorithm>
#include <csignal>
#include <utility>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kNamesShown = 8;
constexpr std::uint32_t kRoundMax = 0xf0000000;

}  // namespace

MembershipOptions options_of(const Hello& hello, RoundId term, const JobBefore& before) {
  MembershipOptions options;
  options.run_id = hello.run_id;
  options.slurm_run = hello.slurm_run;
  options.nodes_min = hello.nodes_min;
  options.nodes_max = hello.nodes_max;
  options.restarts_max = hello.restarts_max;
  options.restart_window = hello.restart_window;
  options.join_timeout = hello.join_timeout;
  options.last_call_timeout = hello.last_call_timeout;
  options.term = term;
  options.before = before;
  const auto& last = before.last_round;
  if (last.term >= term.term && last != RoundId{}) options.term.term = last.term + 1;
  return options;
}

Membership::Membership(MembershipOptions options, TimePoint now)
    : options_(std::move(options)),
      began_(now),
      ran_at_(now),
      budget_(options_.restarts_max, options_.restart_window),
      book_(now) {
  no_round_before_ = options_.no_round_before;
  gather(now);
}

Membership::Actions Membership::step(MembershipEvent event, TimePoint now) {
  out_.clear();
  notice_own_absence(now);
  std::visit([&](auto& what) { take(std::move(what), now); }, event);
  return std::exchange(out_, {});
}

Membership::Actions Membership::tick(TimePoint now) {
  out_.clear();
  notice_own_absence(now);
  const bool is_end_proven = !doubt_ends_ || now >= *doubt_ends_;
  std::vector<Left> left;
  for (const auto& [until, id] : absence_ends_) {
    if (now < until) break;
    left.push_back({id, absences_.at(id).why, is_end_proven});
  }
  std::sort(left.begin(), left.end(), [](const Left& a, const Left& b) { return a.node < b.node; });
  for (const auto& node : left) take(node, now);
  if (are_claims_open()) decide_claims(now);
  if (restate_ends_ && now >= *restate_ends_) give_up_awaited(now);
  if (agreement_ends_ && now >= *agreement_ends_) give_up_agreement(now);
  if (deadline_ && now >= *deadline_) {
    if (phase_ == Phase::gathering)
      end_gathering(now);
    else if (phase_ == Phase::opening_store)
      let_go_of_store_opener(now);
    else if (phase_ == Phase::running)
      call_newcomers(now);
    else if (phase_ == Phase::stopping)
      refuse_those_that_never_stop(now);
  }
  return std::exchange(out_, {});
}

// Heartbeats go out twice in each limit, so a pause of half of it may look like the end. In doubt until what was under
// way then must have been heard.
void Membership::notice_own_absence(TimePoint now) {
  if (looks_at_clock() && now - ran_at_ > options_.heartbeat_timeout / 2)
    doubt_ends_ = now + options_.resume_window() + restate_timeout();
  ran_at_ = now;
}

std::optional<TimePoint> Membership::next_deadline() const {
  std::optional<TimePoint> out;
  const auto consider = [&](std::optional<TimePoint> time) {
    if (time) out = out ? std::min(*out, *time) : *time;
  };
  consider(deadline_);
  consider(restate_ends_);
  consider(agreement_ends_);
  if (looks_at_clock()) consider(ran_at_ + look_period());
  if (!absence_ends_.empty()) consider(absence_ends_.begin()->first);
  return out;
}

// --- nodes come and go ---

std::optional<Refused> Membership::other_job(const Hello& hello) const {
  const bool is_of_other_step =
      !hello.slurm_run.empty() && !options_.slurm_run.empty() && hello.slurm_run != options_.slurm_run;
  if (hello.run_id == options_.run_id && is_of_other_step)
    return Refused{"the job '" + options_.run_id + "' at the endpoint is of Slurm's step " + options_.slurm_run +
                       ", not " + hello.slurm_run,
                   "another --rdzv-id, the same on all nodes, or `--rdzv-endpoint=HOST:PORT` for this job", true};
  if (hello.run_id == options_.run_id) return {};
  // The id is not told: without a token it is all that a stranger needs to join.
  return Refused{"the endpoint serves another job than '" + hello.run_id + "'",
                 "the --rdzv-id with which the endpoint's ddprun was started, or another port for this job", true};
}

std::optional<Refused> Membership::objection(const Hello& hello) const {
  if (auto other = other_job(hello)) return other;
  const bool may_settings_follow = claims_round(hello) && follows_claims();
  if (!may_settings_follow && (hello.nodes_min != options_.nodes_min || hello.nodes_max != options_.nodes_max)) {
    const auto range = [](int low, int high) {
      return "--nnodes=" + std::to_string(low) + (low == high ? "" : ":" + std::to_string(high));
    };
    return Refused{"this node was started with " + range(hello.nodes_min, hello.nodes_max) + ", the endpoint with " +
                       range(options_.nodes_min, options_.nodes_max),
                   "give all nodes the same --nnodes", false, hello.held.has_value()};
  }
  if (hello.node_rank) {
    if (*hello.node_rank >= (may_settings_follow ? hello.nodes_max : options_.nodes_max))
      return Refused{
          "--node-rank=" + std::to_string(*hello.node_rank) + " is beyond " + counted(options_.nodes_max, "node"),
          "node ranks go from 0 to " + std::to_string(options_.nodes_max - 1)};
    // Once a round has begun the newcomer is more likely the replacement of a node whose end is not known yet: it
    // waits.
    const bool may_be_taken = rounds_begun_ == 0 && !claims_round(hello) && wished_ranks_.count(*hello.node_rank) != 0;
    for (auto entry = nodes_.begin(); may_be_taken && entry != nodes_.end(); ++entry)
      if (const auto& [id, node] = *entry; node.hello.node_rank == hello.node_rank && absences_.count(id) == 0)
        return Refused{"node rank " + std::to_string(*hello.node_rank) + " is taken by host " + node.hello.host_name,
                       "give each node a --node-rank of its own"};
  }
  if (claims_round(hello) && !is_possible(hello))
    return Refused{"this node says that it has round " + std::to_string(hello.held->round.number) + " of " +
                       counted(hello.held->group_world_size, "node") + ", which can't be",
                   "start ddprun again on this host", false, true};
  return {};
}

bool Membership::is_possible(const Hello& hello) const {
  const auto& held = *hello.held;
  return held.group_world_size <= (follows_claims() ? hello.nodes_max : options_.nodes_max) &&
         held.group_world_size >= (follows_claims() ? hello.nodes_min : options_.nodes_min) &&
         held.round.term <= options_.term_max && held.round.number <= kRoundMax;
}

void Membership::take(Joined&& event, TimePoint now) {
  if (const auto before = find(event.hello.node_key)) return come_again(*before, event, now);
  if (phase_ == Phase::finished) {
    const auto& held = event.hello.held;
    if (verdict_ && held && held->round == round_id_) send_verdict(event.node, event.hello.wants_report);
    return;
  }
  if (auto refused = objection(event.hello)) {
    if (!refused->is_other_job)
      print("host " + event.hello.host_name + " (" + event.seen_address + ") was refused: " + refused->what);
    return send(event.node, std::move(*refused));
  }
  Node coming;
  coming.hello = std::move(event.hello);
  coming.seen_address = std::move(event.seen_address);
  coming.is_endpoint_host = event.is_endpoint_host;
  const auto& hello = nodes_.emplace(event.node, std::move(coming)).first->second.hello;
  nodes_by_key_[hello.node_key] = event.node;
  if (hello.node_rank) wished_ranks_.insert(*hello.node_rank);
  quorum_.come(hello.node_key);
  round_with_logs_ = std::max<std::int64_t>(round_with_logs_, hello.highest_round);
  if (hello.was_welcomed && rounds_begun_ == 0) no_round_before_ = began_ + restate_timeout();
  if (hello.held) take_in_with_round(event.node, Held(*hello.held), now);
  go_on(now);
}

void Membership::go_on(TimePoint now) {
  if (phase_ == Phase::gathering) gather(now);
  if (phase_ == Phase::running) call_newcomers(now);
}

// Returns what was known of it.
Membership::Node Membership::forget(NodeId id) {
  auto node = std::move(nodes_.extract(id).mapped());
  nodes_by_key_.erase(node.hello.node_key);
  if (const auto wish = node.hello.node_rank) wished_ranks_.erase(*wish);
  claims_.withdraw(node.hello.node_key);
  if (node.is_member) --member_count_;
  end_absence(id);
  older_rounds_.erase(id);
  return node;
}

bool Membership::end_absence(NodeId id) {
  const auto found = absences_.find(id);
  if (found == absences_.end()) return false;
  absence_ends_.erase({found->second.until, id});
  absences_.erase(found);
  return true;
}

void Membership::forget_absences() {
  absences_.clear();
  absence_ends_.clear();
}

void Membership::note_loss(const std::string& what, TimePoint happened, TimePoint now) {
  lost_node_ = what;
  lost_at_ = job_time(now);
  end_happened_ = happened;
  print(lost_node_);
}

void Membership::lose(const Node& node, const std::string& why, TimePoint happened, TimePoint now) {
  note_loss(
      "node " + std::to_string(node.group_rank.value_or(0)) + " (host " + node.hello.host_name + ") was lost: " + why,
      happened, now);
  lost_place_ = place_of(node);
}

void Membership::take(const Left& event, TimePoint now) {
  const auto found = nodes_.find(event.node);
  if (found == nodes_.end() || phase_ == Phase::finished) return;
  const auto absence = absences_.find(event.node);
  const auto happened = absence != absences_.end() ? absence->second.until - options_.resume_window()
                        : event.is_end_proven      ? now
                                                   : now - options_.heartbeat_timeout;
  claims_.leave(found->second.hello.node_key, event.is_end_proven);
  const auto node = forget(event.node);
  quorum_.leave(node.hello.node_key, event.is_end_proven);
  has_member_left_ = has_member_left_ || node.is_member;
  if (phase_ == Phase::gathering) {
    print("host " + node.hello.host_name + " has left: " + event.why);
    if (!may_go_on()) return step_down(why_too_few());
    if (are_claims_open()) decide_claims(now);
    return go_on(now);
  }
  if (!node.is_member) return call_newcomers(now);
  if (phase_ == Phase::opening_store) {
    lose(node, event.why, happened, now);
    return begin_next_round(now);
  }
  if (!node.has_ended) {
    lose(node, event.why, happened, now);
    // Once, however many are lost together, unless another round can no longer follow, or can now.
    if (phase_ == Phase::running || stop_.reseat != may_another_round_follow(now))
      stop_round(SIGTERM, false, lost_node_, now);
  }
  end_round_if_all_have(now);
}

void Membership::take(const Disconnected& event, TimePoint now) {
  const auto found = nodes_.find(event.node);
  if (found == nodes_.end() || phase_ == Phase::finished) return;
  end_absence(event.node);
  const auto until = now + options_.resume_window();
  absences_[event.node] = {until, event.why};
  absence_ends_.emplace(until, event.node);
  go_on(now);
}

void Membership::take(const Farewell& event, TimePoint now) {
  if (const auto id = find(event.node_key)) return take(Left{*id, "its ddprun ended"}, now);
  quorum_.leave(event.node_key, true);  // of one that fell silent
}

bool Membership::knows(const std::string& node_key) const {
  return find(node_key).has_value() || quorum_.knows(node_key);
}

bool Membership::is_full() const {
  return phase_ == Phase::running && !is_member_absent() && static_cast<int>(member_count_) >= options_.nodes_max;
}

void Membership::gather(TimePoint now) {
  if (phase_ != Phase::gathering || !deadline_) {
    phase_ = Phase::gathering;
    gathering_ends_ = now + options_.join_timeout;
    last_call_ends_.reset();
    is_wait_said_ = false;
  }
  if (are_claims_open()) {
    deadline_ = std::max(gathering_ends_, *restate_ends_);
    return;
  }
  const int count = cool_down_.is_anyone_out(now) ? static_cast<int>(candidates(now).size()) : count_available();
  const bool is_wait_over = now >= std::min(last_call_ends_.value_or(gathering_ends_), gathering_ends_);
  deadline_ = gathering_ends_;
  // Once there has been a round nobody waits for more than are needed: those who come later are taken in later.
  if (count >= options_.nodes_max || (count >= options_.nodes_min && (rounds_begun_ > 0 || is_wait_over))) {
    const bool is_too_early = rounds_begun_ == 0 && no_round_before_ && now < *no_round_before_;
    if (now >= gathering_ends_ || (!is_too_early && !is_member_absent())) return form_round(now);
    if (is_too_early) deadline_ = std::min(*no_round_before_, gathering_ends_);
    return;
  }
  if (count < options_.nodes_min) {
    last_call_ends_.reset();
    if (count > 0 && !std::exchange(is_wait_said_, true))
      print("waiting for " + counted(options_.nodes_min - count, "more node") + ", for up to " +
            describe_duration(options_.join_timeout) + "; here: " + names_of_nodes());
  } else if (!last_call_ends_) {
    last_call_ends_ = now + options_.last_call_timeout;
    print("waiting " + describe_duration(options_.last_call_timeout) + " for up to " +
          counted(options_.nodes_max - count, "more node") + "; here: " + names_of_nodes());
  }
  deadline_ = std::min(last_call_ends_.value_or(gathering_ends_), gathering_ends_);
}

void Membership::end_gathering(TimePoint now) {
  const int count = count_available();
  if (now < gathering_ends_ || count >= options_.nodes_min) return gather(now);
  FinishJob verdict;
  verdict.exit_code = kRendezvousFailed;
  verdict.restarts_max = options_.restarts_max;
  verdict.what = "only " + std::to_string(count) + " of " + counted(options_.nodes_min, "node") + " came within " +
                 describe_duration(options_.join_timeout) + ": " + names_of_nodes();
  if (!reason_.empty()) verdict.what = reason_ + "; after that " + verdict.what;
  verdict.try_this =
      "look at the output of ddprun on the others: each must be started with the same --nnodes, --rdzv-id "
      "and endpoint; `--rdzv-conf=join_timeout=SECONDS` waits longer";
  finish(std::move(verdict), now);
}

// While a round runs with room for more: those who have come are taken in together, when the last call is over. Where
// the maximum is reached nobody else is waited for, but a round lasts as long as a last call even then, so that a node
// that comes and goes lets the others work. Not where a node has done its work already: the round is about to end.
void Membership::call_newcomers(TimePoint now) {
  if (phase_ != Phase::running) return;
  if (stop_signal_ != 0 || agreed_call_) return deadline_.reset();  // another round would be of no use
  if (!has_spares()) {  // as nearly always, also while thousands of members leave
    last_call_ends_.reset();
    return deadline_.reset();
  }
  std::string names;
  int newcomers = 0, members = 0;
  bool is_ending = has_member_left_ || !awaited_.empty();
  std::optional<TimePoint> next_fit;  // a host that is left out may take part again
  for (const auto& [id, node] : nodes_) {
    is_ending = is_ending || (node.is_member && node.has_ended);
    if (node.is_member) {
      ++members;
    } else if (const auto until = cool_down_.out_until(place_of(node), now)) {
      next_fit = next_fit ? std::min(*next_fit, *until) : *until;
    } else if (older_rounds_.count(id) == 0 && absences_.count(id) == 0 &&
               ++newcomers <= static_cast<int>(kNamesShown)) {
      names += (names.empty() ? "" : ", ") + node.hello.host_name;
    }
  }
  const bool has_room = members < options_.nodes_max;
  deadline_.reset();
  if (newcomers == 0 || !has_room || is_ending) {
    last_call_ends_.reset();
    if (has_room && !is_ending) deadline_ = next_fit;
    return;
  }
  const auto those = counted(newcomers, "more node") + (newcomers == 1 ? " has come: " : " have come: ") + names;
  const bool is_full = members + newcomers >= options_.nodes_max;
  const bool is_new = !last_call_ends_;
  if (is_new) last_call_ends_ = now + options_.last_call_timeout;
  if (is_full) last_call_ends_ = std::min(*last_call_ends_, round_began_ + options_.last_call_timeout);
  deadline_ = last_call_ends_;
  if (now < *last_call_ends_) {
    if (is_new)
      print(those + "; the next round begins in " +
            describe_duration(std::chrono::duration_cast<std::chrono::milliseconds>(*last_call_ends_ - now)));
    return;
  }
  growth_ = those;
  growth_stopped_ = job_time(now);
  end_happened_ = now;
  stop_round(SIGTERM, false, growth_, now);
}

// --- what nodes say ---

void Membership::take(const Heard& event, TimePoint now) {
  const auto found = nodes_.find(event.from);
  if (found == nodes_.end() || phase_ == Phase::finished) return;
  if (found->second.is_claimant) return hold_back(found->second, event.message);
  if (const auto* stop = std::get_if<StopAsked>(&event.message)) return take(event.from, *stop, now);
  if (const auto* ended = std::get_if<RoundEnded>(&event.message)) return take(event.from, *ended, now);
  if (!found->second.is_member) return;
  if (const auto* opened = std::get_if<StoreOpened>(&event.message)) take(event.from, *opened, now);
  if (const auto* started = std::get_if<RoundStarted>(&event.message)) take(event.from, *started, now);
  if (const auto* stepped = std::get_if<FirstStep>(&event.message)) take(event.from, *stepped, now);
  if (const auto* ready = std::get_if<StopReady>(&event.message)) take(event.from, *ready, now);
  if (const auto* failed = std::get_if<RoundFailed>(&event.message)) take(event.from, *failed, now);
}

std::string_view Membership::phase_name() const {
  constexpr std::string_view kNames[] = {"waiting for nodes", "starting", "running", "stopping", "finished"};
  return kNames[static_cast<std::size_t>(phase_)];
}

Membership::Summary Membership::summary() const {
  Summary out;
  out.phase = phase_name();
  out.round = round_;
  out.world_size = world_size_;
  out.nodes_min = options_.nodes_min;
  out.nodes_max = options_.nodes_max;
  out.restart_count = budget_.count();
  out.restarts_max = options_.restarts_max;
  out.last_reason = reason_;
  out.node_count = nodes_.size();
  return out;
}

Membership::View Membership::view() const {
  View out{summary(), {}};
  out.nodes.reserve(nodes_.size());
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
