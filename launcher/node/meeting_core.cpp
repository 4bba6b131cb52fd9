#include "launcher/node/meeting_core.hpp"

#include <algorithm>
#include <utility>

#include "base/address.hpp"
#include "base/loopback.hpp"
#include "launcher/node/node_words.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kOwnerLimit{5}, kLookUpPause{1};
constexpr std::chrono::seconds kAddressLimit{15};  // more than Slurm's controller has for its answer
// A ddprun that was killed has its ports until the kernel has freed its memory. Its replacement may start before that.
constexpr std::chrono::milliseconds kInUseLimit{1'000}, kOpenPause{100};

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

bool is_this_host(const std::string& endpoint_host, const std::vector<std::string>& resolved,
                  const std::vector<std::string>& own, const std::string& host_name) {
  if (base::is_loopback_host(endpoint_host) || endpoint_host == host_name) return true;
  // A short name and a long one of the same host; two hosts of one short name differ in what they resolve to.
  if (resolved.empty() && first_label(endpoint_host) == first_label(host_name)) return true;
  return std::any_of(resolved.begin(), resolved.end(), [&](const std::string& address) {
    return !base::is_loopback_host(address) && std::find(own.begin(), own.end(), address) != own.end();
  });
}

std::string own_endpoint_address(const std::string& endpoint_host, int port_count,
                                 const std::function<std::vector<std::string>()>& own) {
  if (port_count != 1) return {};
  if (base::is_loopback_host(endpoint_host)) return base::with_loopback_address(endpoint_host);
  const auto address = base::parse_address(endpoint_host);
  if (!address) return {};
  const auto of_host = own();
  return std::find(of_host.begin(), of_host.end(), address->text()) != of_host.end() ? address->text() : "";
}

MeetingCore::Actions MeetingCore::step(const Event& event, TimePoint now) {
  out_.clear();
  std::visit([this, now](const auto& what) { take(what, now); }, event);
  return std::exchange(out_, {});
}

MeetingCore::Actions MeetingCore::tick(TimePoint now) {
  out_.clear();
  if (open_again_at_ && now >= *open_again_at_) {
    open_again_at_.reset();
    out_.emplace_back(OpenEndpoint{});
  }
  if (!deadline_ || now < *deadline_) return std::exchange(out_, {});
  deadline_.reset();
  switch (wait_) {
    case Wait::for_address:
      out_.emplace_back(GiveUpLookUp{});
      take_own_address({.own = options_.own, .error = still_looked_up_text(options_.endpoint_host)});
      break;
    case Wait::for_owner:
      if (has_joined_) break;
      out_.emplace_back(Print{serves_without_address_text(options_.endpoint_host)});
      open_endpoint(true);
      break;
    case Wait::before_look_up: look_up(); break;
  }
  return std::exchange(out_, {});
}

std::optional<MeetingCore::TimePoint> MeetingCore::next_deadline() const {
  if (!deadline_ || !open_again_at_) return deadline_ ? deadline_ : open_again_at_;
  return std::min(*deadline_, *open_again_at_);
}

void MeetingCore::wait(Wait wait, std::chrono::milliseconds limit, TimePoint now) {
  wait_ = wait;
  deadline_ = now + limit;
}

void MeetingCore::look_up() {
  is_looking_up_ = true;
  out_.emplace_back(LookUp{});
}

// Under Slurm the endpoint's name need not resolve, and workers here need an address then. Others can come meanwhile.
void MeetingCore::take(const Begin&, TimePoint now) {
  if (!options_.serves) return look_up();
  if (!*options_.serves) return join();
  if (options_.may_be_slurm_node) {
    look_up();
    wait(Wait::for_address, kAddressLimit, now);
  }
  open_endpoint(options_.may_have_daemon);
}

void MeetingCore::take(const LookedUp& event, TimePoint now) {
  if (!std::exchange(is_looking_up_, false)) return;
  if (options_.serves) return take_own_address(event);
  if (has_joined_) return;
  address_ = event.slurm_address;
  if (is_this_host(options_.endpoint_host, event.addresses, event.own, options_.host_name)) return open_endpoint(true);
  if (!is_joining_) join();
  // The endpoint's address may be one that no host knows as its own (NAT, a service's): then it leads to node rank 0.
  // But it may also be that of another node, which is given the time to come first.
  if (options_.is_node_rank_0) return wait(Wait::for_owner, kOwnerLimit, now);
  // The name may become known, as that of a pod does some time after its start, and then be this host's.
  if (event.addresses.empty()) wait(Wait::before_look_up, kLookUpPause, now);
}

void MeetingCore::take_own_address(const LookedUp& answer) {
  is_looking_up_ = false;
  deadline_.reset();
  address_ = answer.slurm_address;
  if (answer.error) {
    address_ = options_.local_address;
    if (address_.empty() && !answer.own.empty()) address_ = answer.own.front();
    out_.emplace_back(Print{no_address_text(*answer.error, address_)});
  }
  hand_on_held_round();
}

void MeetingCore::open_endpoint(bool or_join) {
  joins_else_ = or_join;
  out_.emplace_back(OpenEndpoint{});
}

void MeetingCore::take(const EndpointOpened&, TimePoint) {
  serves_ = holds_endpoint_ = true;
  is_joining_ = false;
  host({.is_first = true});
}

// By another agent of this host, or a daemon; or by who has nothing to do with the job. Nothing tells these from an
// agent that is about to end, so the endpoint is opened again for a while, until this node has joined.
void MeetingCore::take(const EndpointTaken& event, TimePoint now) {
  if (joins_else_ && !is_joining_) join();
  if (event.is_in_use && !in_use_until_) in_use_until_ = now + kInUseLimit;
  if (event.is_in_use && now < *in_use_until_) {
    open_again_at_ = now + kOpenPause;
    return;
  }
  give_up_look_up();
  if (!joins_else_) out_.emplace_back(Lose{event.what, event.try_this});
}

void MeetingCore::give_up_look_up() {
  if (std::exchange(is_looking_up_, false)) out_.emplace_back(GiveUpLookUp{});
  deadline_.reset();
}

void MeetingCore::join() {
  is_joining_ = true;
  out_.emplace_back(Join{});
}

void MeetingCore::take(const Heard& event, TimePoint) {
  has_joined_ = has_joined_ || std::holds_alternative<rendezvous::Welcome>(event.message);
  if (has_joined_ && std::exchange(open_again_at_, std::nullopt)) give_up_look_up();
  const auto* start = std::get_if<rendezvous::StartRound>(&event.message);
  if (start != nullptr)
    for (const auto& successor : start->successors)
      if (successor.group_rank == start->group_rank) standby_address_ = successor.address;
  // This node's workers are to connect to the endpoint here, whose address is still being looked up.
  if (start != nullptr && serves_ && is_looking_up_ && start->master_address.empty()) {
    held_start_ = *start;
    return;
  }
  hand_on_held_round();
  out_.emplace_back(HandOn{event.message});
}

void MeetingCore::hand_on_held_round() {
  if (held_start_) out_.emplace_back(HandOn{*std::exchange(held_start_, std::nullopt)});
}

// Connections for the endpoint come to the port on which this node has stood by.
void MeetingCore::take(const ToServe& event, TimePoint) {
  serves_ = true;
  is_next_host_ = !holds_endpoint_;
  host({.is_next = is_next_host_, .lost = event.lost});
}

void MeetingCore::host(StartHosting how) {
  out_.emplace_back(std::move(how));
  if (early_farewell_) out_.emplace_back(TellHost{*std::exchange(early_farewell_, std::nullopt)});
}

// Of the endpoint's host it may be why this node is about to serve the job.
void MeetingCore::take(const GuardianSaid& event, TimePoint) {
  if (serves_)
    out_.emplace_back(TellHost{event.node});
  else if (event.is_of_host)
    early_farewell_ = event.node;
}

void MeetingCore::take(const SteppedDown& event, TimePoint) {
  serves_ = false;
  hand_on_held_round();  // so that it is ended here like any other
  out_.emplace_back(Print{serves_no_longer_text(event.why)});
  out_.emplace_back(StopHosting{event});
}

// Whether it is of another job is then for the membership to say.
MeetingCore::Direction MeetingCore::direct(const std::string& run_id,
                                           const std::optional<rendezvous::Session::Target>& joined) const {
  if (serves_) return Here{};
  if (run_id != options_.run_id || !joined) return Nowhere{};
  return rendezvous::Elsewhere{joined->address, joined->port};
}

// Workers may take `localhost` for ::1, where another user of the host may listen.
std::string MeetingCore::endpoint_host(const std::string& of_connection) const {
  if (serves_ && is_next_host_) return standby_address_;
  if (!serves_) return base::with_loopback_address(of_connection.empty() ? options_.endpoint_host : of_connection);
  return base::with_loopback_address(address_.empty() ? options_.endpoint_host : address_);
}

}  // namespace ddp::launcher
