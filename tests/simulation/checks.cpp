#include "tests/simulation/checks.hpp"

#include <algorithm>

#include "rendezvous/membership/membership.hpp"
#include "tests/simulation/node.hpp"

namespace ddp::simulation {

using namespace rendezvous;

namespace {

constexpr std::size_t kAddressesMax = 256;  // in one message

template <typename... Parts>
void require(bool holds, const Parts&... parts) {
  if (holds) return;
  std::string text;
  ((text += parts), ...);
  throw Violation(text);
}

void require_bounded(const ToAgent& message) {
  if (const auto* open = std::get_if<OpenStore>(&message))
    require(open->allow.size() <= kAddressesMax, "an open_store without bound");
  if (const auto* start = std::get_if<StartRound>(&message))
    require(start->successors.size() <= kSuccessorsMax, "a start_round without bound");
  if (const auto* stop = std::get_if<StopRound>(&message))
    require(stop->hung_ranks.size() <= kHungRanksMax, "a stop_round without bound");
  if (const auto* finish = std::get_if<FinishJob>(&message))
    require(finish->consequences.size() <= kFailuresMax &&
                (!finish->report || finish->report->rounds.size() <= kRoundsReportedMax),
            "a finish_job without bound");
}

}  // namespace

void Checks::is_told(const void* teller, const Node& node, const ToAgent& message) {
  require_bounded(message);
  if (const auto* start = std::get_if<StartRound>(&message)) {
    last_told_[teller] = start->round;
    begins_to_be_told(teller, node, *start);
  }
  const auto* finish = std::get_if<FinishJob>(&message);
  // Else it is a spare, or was counted as gone before its stop was heard (seed 109): it leaves alone.
  const bool is_in_round =
      last_told_.count(teller) != 0 && last_told_[teller] == node.round().round && returned_.count(&node) == 0;
  require(finish == nullptr || !finish->has_left || !is_in_round || !node.has_to_stop_job(), node.name(),
          " leaves the others at work, and was told to stop the job");
  if (finish != nullptr && !finish->has_left) {
    const auto last = last_told_.find(teller);  // not there where another membership began it
    if (finish->exit_code == kStoppedAtStep && last != last_told_.end()) check_that_all_ended_well(last->second);
    auto content = *finish;
    content.report.reset();  // not all get it
    const auto [verdict, is_first] = verdicts_.try_emplace(teller, content);
    require(is_first || verdict->second == content || node.is_told_to_stop(), "two verdicts of one membership");
    if (is_first && node.is_told_to_stop()) verdicts_.erase(verdict);  // perhaps its own alone, as a spare
  }
}

// A round may be told again, after a broken connection: the same, to the same node.
void Checks::begins_to_be_told(const void* teller, const Node& node, const StartRound& start) {
  auto& round = rounds_[start.round];
  if (round.members.empty()) {
    round.group_world_size = start.group_world_size;
    round.world_size = start.world_size;
    round.restart_count = start.restart_count;
    round.restarts_max = start.restarts_max;
    round.changes_of_members = changes_of_members_;
    round.away = away_from(teller);
  }
  const auto id = to_string(start.round);
  require(round.group_world_size == start.group_world_size && round.world_size == start.world_size, "round ", id,
          " has two world sizes");
  require(start.group_rank >= 0 && start.group_rank < start.group_world_size, "a group rank beyond the world of round ",
          id);
  const auto [member, is_new] = round.members.try_emplace(start.group_rank, &node);
  require(is_new || member->second == &node, "group rank ", std::to_string(start.group_rank), " of round ", id,
          " is given to ", member->second->name(), " and to ", node.name());
  round.ranks[start.rank_first] = node.workers().count();
  if (round.members.size() == static_cast<std::size_t>(round.group_world_size) && is_new)
    check_whole(start.round, round);
}

// All of it has been told: ranks, budget, and what its members keep of the round before.
void Checks::check_whole(const RoundId& id, const Round& round) {
  const auto name = to_string(id);
  int rank = 0;
  for (const auto& [first, workers] : round.ranks) {
    require(first == rank, "the ranks of round ", name, " leave a hole or overlap at rank ", std::to_string(rank));
    rank += workers;
  }
  require(rank == round.world_size, "the ranks of round ", name, " are not as many as its world size says");
  // With a window the count is of the whole job, and older restarts are free again.
  require(is_window_set_ || round.restart_count <= round.restarts_max, "round ", name, " is restart ",
          std::to_string(round.restart_count), " of at most ", std::to_string(round.restarts_max));
  RoundId before{};
  for (const auto& [group_rank, node] : round.members)
    if (const auto begun = begun_.find(node);
        begun != begun_.end() && begun->second < id && !was_disowned(begun->second))
      before = std::max(before, begun->second);
  const auto found = rounds_.find(before);
  // Also where a node that others have gone on without has come there: it knows no more of them.
  const bool has_begun_anew = found == rounds_.end() || (id.number == 0 && before.term != id.term);
  has_begun_once_more_ = has_begun_once_more_ || (is_endpoint_replaced_ && has_begun_anew);
  if (found == rounds_.end()) return;
  const auto& old = found->second;
  require(round.restart_count >= old.restart_count, "round ", name, " has forgotten restarts of round ",
          to_string(before));
  // Not all of the old one's nodes need have heard of it, and old.members lacks those. A node that never had a round
  // was none of them.
  bool are_the_same = round.members.size() == static_cast<std::size_t>(old.group_world_size);
  for (const auto& [group_rank, node] : round.members) are_the_same = are_the_same && begun_.count(node) != 0;
  for (const auto& [group_rank, node] : old.members) {
    const auto now = std::find_if(round.members.begin(), round.members.end(),
                                  [node = node](const auto& member) { return member.second == node; });
    are_the_same = are_the_same && now != round.members.end();
    // A round between, which never began, may have been the smaller one. Who never heard of its place can't state it.
    const auto begun = begun_.find(node);
    const bool is_next = id.number == before.number + 1 && begun != begun_.end() && begun->second == before;
    require(!is_next || now == round.members.end() || now->first == group_rank ||
                group_rank >= round.group_world_size || returned_.count(node) != 0,
            node->name(), " had group rank ", std::to_string(group_rank), " and has another in round ", name);
  }
  for (const auto& [group_rank, node] : round.members) returned_.erase(node);
  if (are_the_same && old.has_failed && round.changes_of_members == old.changes_of_members)
    require(round.restart_count > old.restart_count, "round ", name, " costs no restart, and nobody has come or gone");
}

void Checks::begins(const Node& node, const StartRound& start) {
  const auto id = to_string(start.round);
  require(!node.workers().is_any_of_group_left(), node.name(), " begins round ", id, " with processes of round ",
          to_string(node.workers().round()));
  const auto begun = begun_.find(&node);
  require(begun == begun_.end() || begun->second < start.round || was_disowned(begun->second), node.name(),
          " begins round ", id, " after round ", begun == begun_.end() ? "" : to_string(begun->second));
  begun_[&node] = start.round;
  for (const auto& [group_rank, member] : rounds_[start.round].members)
    require(
        !(member->workers().round() < start.round) || !member->is_alive() || !member->workers().is_any_of_group_left(),
        node.name(), " begins round ", id, " while processes of round ", to_string(member->workers().round()),
        " are left on ", member->name());
}

void Checks::spawns(const Node& node) {
  require(!node.workers().has_orphans(), node.name(), " starts workers beside what those before them have left");
}

void Checks::is_led_to(const Node& node, const RoundId& round, int host) const {
  const auto& known = rounds_.at(round).store_host;
  require(known == host, node.name(), " tells its workers of a store on host ", std::to_string(host),
          ", and that of round ", to_string(round), " is on ", known ? "host " + std::to_string(*known) : "none");
}

void Checks::stops_at(const RoundId& round, std::uint64_t call, std::optional<std::uint64_t> promised) {
  auto& its = rounds_[round].stop_call;
  require(!its || *its == call, "round ", to_string(round), " is to stop at two steps");
  require(promised && *promised <= call, "round ", to_string(round),
          " is to stop at a step that a worker may be beyond");
  its = call;
}

void Checks::check_that_all_ended_well(const RoundId& id) const {
  const auto& last = rounds_.at(id);
  require(last.ended_well == last.world_size, "not all workers of round ", to_string(id),
          " have stopped by themselves");
}

void Checks::collectives_complete(const std::vector<Node*>& nodes, const std::function<bool(int, int)>& is_open,
                                  const std::function<bool(Node&)>& may_be_unheard,
                                  const std::function<bool(const RoundId&)>& is_unknown) {
  // With all that its workers have done, or where nobody can learn of it: each of its nodes was killed, or is out of
  // reach of a daemon that was started after the round.
  const auto is_gone = [&] {
    const auto& members = rounds_.at(newest_complete_).members;
    const bool may_be_unknown = is_unknown(newest_complete_);
    return std::all_of(members.begin(), members.end(), [&](const auto& member) {
      const auto* const node = member.second;
      const auto alive = std::find(nodes.begin(), nodes.end(), node);
      return alive == nodes.end() ? !node->has_finished() : may_be_unknown && may_be_unheard(**alive);
    });
  };
  std::map<RoundId, std::vector<Node*>> at_work;
  complete_now_.clear();
  for (auto* node : nodes)
    if (node->workers().do_all_work()) at_work[node->workers().round()].push_back(node);
  for (const auto& [id, nodes_at_work] : at_work) {
    const auto& members = nodes_at_work;  // clang 14 captures no structured binding
    auto& round = rounds_[id];
    if (members.size() != static_cast<std::size_t>(round.group_world_size)) continue;
    const bool reach_each_other = std::all_of(members.begin(), members.end(), [&](const Node* a) {
      return std::all_of(members.begin(), members.end(),
                         [&](const Node* b) { return a->host() == b->host() || is_open(a->host(), b->host()); });
    });
    if (!reach_each_other) continue;
    complete_now_.insert(id);
    if (!std::exchange(round.was_complete, true)) ++rounds_completed_;
    if (id < newest_complete_ && disowned_.count(newest_complete_) == 0 && !is_gone())
      require(may_two_go_on() ||
                  std::all_of(members.begin(), members.end(), [&](Node* node) { return may_be_unheard(*node); }),
              "a collective of round ", to_string(id), " completes after one of round ", to_string(newest_complete_));
    else if (std::exchange(newest_complete_, id) != id)
      check_that_work_is_kept(id, nodes, may_be_unheard);
  }
}

bool Checks::is_member(const RoundId& round, const Node& node) const {
  const auto found = rounds_.find(round);
  return found != rounds_.end() && std::any_of(found->second.members.begin(), found->second.members.end(),
                                               [&](const auto& member) { return member.second == &node; });
}

int Checks::size_of(const RoundId& round) const {
  const auto found = rounds_.find(round);
  return found == rounds_.end() ? 0 : found->second.group_world_size;
}

// Of what workers in run_elastic have committed, which is in their memory, the newest has to be in a round that
// completes, while a worker that has it is left on a node that was in touch with the membership when that began the
// round.
void Checks::check_that_work_is_kept(const RoundId& id, const std::vector<Node*>& alive,
                                     const std::function<bool(Node&)>& may_be_unheard) const {
  if (may_two_go_on() || !are_all_elastic_) return;
  const auto& members = rounds_.at(id).members;
  std::uint64_t newest = 0;
  for (const auto& [group_rank, node] : members) newest = std::max(newest, node->workers().newest_commit());
  for (auto* node : alive)
    require(node->workers().newest_commit() <= newest || was_disowned(node->workers().round()) ||
                may_be_unheard(*node) || rounds_.at(id).away.count(node) != 0,
            "round ", to_string(id), " begins with commit ", std::to_string(newest), ", and a worker of ", node->name(),
            " has commit ", std::to_string(node->workers().newest_commit()));
}

}  // namespace ddp::simulation
