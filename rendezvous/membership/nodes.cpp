#include "rendezvous/membership/nodes.hpp"

#include <algorithm>

namespace ddp::rendezvous {
namespace {

using namespace std::chrono_literals;

// Of a node, for which the others wait; but that of the endpoint's own node is believed.
constexpr std::chrono::milliseconds kGraceMax = 1h;

}  // namespace

std::optional<NodeId> Nodes::find(const std::string& node_key) const {
  const auto found = node_key.empty() ? by_key_.end() : by_key_.find(node_key);
  if (found == by_key_.end()) return {};
  return found->second;
}

const Node& Nodes::add(NodeId id, Node node) {
  by_key_[node.hello.node_key] = id;
  if (node.hello.node_rank) wished_ranks_.insert(*node.hello.node_rank);
  return nodes_.emplace(id, std::move(node)).first->second;
}

Node Nodes::remove(NodeId id) {
  auto node = std::move(nodes_.extract(id).mapped());
  by_key_.erase(node.hello.node_key);
  if (const auto wish = node.hello.node_rank) wished_ranks_.erase(*wish);
  if (node.is_member()) --member_count_;
  end_absence(id);
  older_rounds_.erase(id);
  leaving_.erase(id);
  return node;
}

void Nodes::rename(NodeId before, NodeId id) {
  auto entry = nodes_.extract(before);
  entry.key() = id;
  by_key_[entry.mapped().hello.node_key] = id;
  nodes_.insert(std::move(entry));
  if (leaving_.erase(before) != 0) leaving_.insert(id);
  if (auto older = older_rounds_.extract(before); !older.empty()) {
    older.key() = id;
    older_rounds_.insert(std::move(older));
  }
}

void Nodes::make_member(NodeId id, int group_rank, MemberPart part) {
  auto& node = nodes_.at(id);
  if (!node.is_member()) ++member_count_;
  node.group_rank = group_rank;
  node.part = std::move(part);
  node.has_older_work = false;
}

void Nodes::end_membership(Node& node) {
  if (node.is_member()) --member_count_;
  node.part.reset();
}

void Nodes::forget_round() {
  for (auto& [id, node] : nodes_) {
    end_membership(node);
    node.group_rank.reset();
  }
}

std::vector<NodeId> Nodes::members() const {
  std::vector<std::pair<int, NodeId>> ranked;
  for (const auto& [id, node] : nodes_)
    if (node.is_member()) ranked.emplace_back(*node.group_rank, id);
  std::sort(ranked.begin(), ranked.end());
  std::vector<NodeId> out;
  for (const auto& [rank, id] : ranked) out.push_back(id);
  return out;
}

bool Nodes::is_member_absent() const {
  return std::any_of(absences_.begin(), absences_.end(),
                     [&](const auto& entry) { return nodes_.at(entry.first).is_member(); });
}

// Looks first at the node that was found the last time: ten thousand ends are not to be ten thousand walks over all
// nodes.
bool Nodes::is_anyone_running() {
  const auto runs = [](const auto& entry) { return entry.second.runs(); };
  auto found = std::find_if(nodes_.lower_bound(found_running_), nodes_.end(), runs);
  if (found == nodes_.end()) found = std::find_if(nodes_.begin(), nodes_.end(), runs);
  if (found != nodes_.end()) found_running_ = found->first;
  return found != nodes_.end();
}

std::vector<int> Nodes::running_group_ranks() const {
  std::vector<int> out;
  for (const auto& [id, node] : nodes_)
    if (node.runs()) out.push_back(*node.group_rank);
  return out;
}

std::chrono::milliseconds Nodes::longest_grace() const {
  std::chrono::milliseconds out{0};
  for (const auto& [id, node] : nodes_) {
    const auto its = node.is_endpoint_host ? node.hello.grace : std::min(node.hello.grace, kGraceMax);
    if (node.is_member()) out = std::max(out, its);
  }
  return out;
}

void Nodes::begin_absence(NodeId id, Absence absence) {
  end_absence(id);
  absence_ends_.emplace(absence.until, id);
  absences_[id] = std::move(absence);
}

bool Nodes::end_absence(NodeId id) {
  const auto found = absences_.find(id);
  if (found == absences_.end()) return false;
  absence_ends_.erase({found->second.until, id});
  absences_.erase(found);
  return true;
}

void Nodes::forget_absences() {
  absences_.clear();
  absence_ends_.clear();
}

const Nodes::Absence* Nodes::absence_of(NodeId id) const {
  const auto found = absences_.find(id);
  return found == absences_.end() ? nullptr : &found->second;
}

std::vector<NodeId> Nodes::gone(TimePoint now) const {
  std::vector<NodeId> out;
  for (const auto& [until, id] : absence_ends_) {
    if (now < until) break;
    out.push_back(id);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::optional<Nodes::TimePoint> Nodes::next_gone() const {
  if (absence_ends_.empty()) return {};
  return absence_ends_.begin()->first;
}

std::optional<std::uint32_t> Nodes::older_round(NodeId id) const {
  const auto found = older_rounds_.find(id);
  if (found == older_rounds_.end()) return {};
  return found->second;
}

bool Nodes::is_older_work_awaited() const {
  return std::any_of(older_rounds_.begin(), older_rounds_.end(),
                     [this](const auto& entry) { return nodes_.at(entry.first).has_older_work; });
}

std::set<NodeId> Nodes::holders_of_newest_work() const {
  std::int64_t newest = 0;
  std::set<NodeId> out;
  for (const auto& [id, node] : nodes_) {
    if (node.kept_in < newest || !is_available(id, node)) continue;
    if (node.kept_in > newest) out.clear();
    newest = node.kept_in;
    out.insert(id);
  }
  return out;
}

int Nodes::count_available() const {
  auto count = nodes_.size() - older_rounds_.size();
  for (const auto id : leaving_)
    if (older_rounds_.count(id) == 0) --count;
  if (!has_spares()) return static_cast<int>(count);
  for (const auto& [id, absence] : absences_) {
    const bool is_counted = older_rounds_.count(id) == 0 && !is_leaving(id);
    if (is_counted && !nodes_.at(id).is_member()) --count;
  }
  return static_cast<int>(count);
}

}  // namespace ddp::rendezvous
