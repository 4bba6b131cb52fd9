#include "worker_runtime/core/bootstrap/meeting_coordinator.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/core/bootstrap/leader_links.hpp"
#include "worker_runtime/core/bootstrap/local_acceptor.hpp"
#include "worker_runtime/core/bootstrap/local_followers.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/core/bootstrap/meeting_errors.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/bootstrap/remote_followers.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::GroupMember;
using process_group::list_ranks;

// The course of a meeting: what comes after what, and which ranks are waited for. The connections are its parts'.
class Coordinator {
 public:
  Coordinator(const GroupMember& who, const MeetingPlace& place, base::Deadline& deadline)
      : who_(who), place_(place), deadline_(deadline), acceptor_(who.size), local_(who, deadline) {}

  Meeting coordinate_all() {
    const std::string identity = host_identity();
    remote_.emplace(who_, place_, deadline_);
    CoordinatorEndpoint published{acceptor_.name(), identity, "", {}};
    if (who_.local_size != who_.size) {
      open_to_other_hosts(base::random_key());
      published.secret = listener_->secret;
      published.tcp = listener_->endpoint;
    }
    place_.store.set(endpoint_key(place_, 0), encode(published), deadline_.end());
    for (int rank = 1; rank < who_.size; ++rank) awaited_.push_back(rank);
    wait_until([this] { return missing().empty(); });

    std::vector<std::string> identities(static_cast<std::size_t>(who_.size), identity);
    for (const int rank : awaited_) {
      if (remote_->has(rank)) identities[static_cast<std::size_t>(rank)] = remote_->identity_of(rank);
    }
    set_layout(HostLayout::from_identities(identities));
    remote_->send_layout(layout_);
    wait_until([this] { return remote_->are_ready(); });
    remote_->send_endpoints(layout_, published.tcp);
    wait_until([this] { return links_->are_complete(); });
    wait_until([this] { return remote_->unlinked().empty(); });
    return complete_with([this] {
      clear_keys();
      remote_->send_complete();
    });
  }

  Meeting coordinate_host(HostLayout layout, CoordinatorLink rank0) {
    set_layout(std::move(layout));
    rank0_.emplace(std::move(rank0), who_, place_, deadline_);
    place_.store.set(endpoint_key(place_, who_.rank), encode({acceptor_.name(), "", "", {}}), deadline_.end());
    awaited_ = layout_.ranks_of(layout_.host_of(who_.rank));
    std::erase(awaited_, who_.rank);
    wait_until([this] { return missing().empty(); });

    open_to_other_hosts(rank0_->secret());
    FollowerMessage ready{FollowerMessage::Kind::ready, listener_->endpoint.port, {}};
    put_text(ready.address, listener_->endpoint.address);
    rank0_->send(ready);
    wait_until([this] { return rank0_->has_sent(); });
    links_->connect(receive_endpoints(), place_, listener_->secret, deadline_);
    wait_until([this] { return links_->are_complete(); });
    rank0_->send({FollowerMessage::Kind::linked, 0, {}});
    wait_until([this] { return rank0_->has_sent(); });
    char complete = 0;
    rank0_->receive(std::as_writable_bytes(std::span(&complete, 1)));
    return complete_with([this] { place_.store.remove(endpoint_key(place_, who_.rank), deadline_.end()); });
  }

  // Those whose endpoints followers read.
  std::vector<int> leaders() const {
    std::vector<int> ranks{who_.rank};
    for (int host = 0; host < layout_.host_count(); ++host) ranks.push_back(layout_.leader_of(host));
    return ranks;
  }

  [[noreturn]] void fail_for_missing() const { throw_did_not_join(who_, late_ranks(), deadline_); }

 private:
  // Where this rank listens for ranks of other hosts, whose RankHello is to carry the secret.
  struct Listening {
    std::string secret;
    Endpoint endpoint;
    Acceptor acceptor;
  };

  void open_to_other_hosts(const std::string& secret) {
    auto listener = listen_tcp(place_.network);
    RankHello expected;
    put_text(expected.secret, secret);
    put_text(expected.group, place_.key_prefix);
    listener_.emplace(Listening{secret, listener.endpoint, Acceptor(std::move(listener.socket), expected)});
  }

  void set_layout(HostLayout layout) {
    layout_ = std::move(layout);
    links_.emplace(who_, layout_);
  }

  bool is_here(int rank) const { return local_.has(rank) || (remote_ && remote_->has(rank)); }

  bool is_awaited(int rank) const { return std::find(awaited_.begin(), awaited_.end(), rank) != awaited_.end(); }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    std::copy_if(awaited_.begin(), awaited_.end(), std::back_inserter(ranks),
                 [this](int rank) { return !is_here(rank); });
    return ranks;
  }

  std::vector<int> late_ranks() const {
    std::vector<int> late = missing();
    if (late.empty() && remote_) late = remote_->unlinked();  // all have come, but some leader is not done
    if (late.empty()) late.push_back(0);
    return late;
  }

  void wait_until(const std::function<bool()>& condition) {
    while (!condition()) wait_for_events();
  }

  // Takes in new connections, the RankHello of each, messages of followers, and the end of followers.
  void wait_for_events() {
    std::vector<pollfd> polled;
    local_.add_to(polled);
    const std::size_t remote_from = polled.size();
    if (remote_) remote_->add_to(polled);
    const std::size_t rank0_at = polled.size();
    if (rank0_) polled.push_back({rank0_->descriptor(), POLLIN, 0});
    const std::size_t acceptor_from = polled.size();
    acceptor_.add_to(polled);
    const std::size_t listener_from = polled.size();
    if (listener_) listener_->acceptor.add_to(polled);
    const auto now = Clock::now();
    poll_until(polled, wait_.is_told() ? deadline_ : deadline_.part(now, std::max(now, wait_.first_end())));
    if (wait_.is_long()) wait_.tell(list_ranks(late_ranks()));

    const std::span<const pollfd> ready(polled);
    std::vector<int> lost = local_.take_lost(ready);
    if (remote_) {
      const auto elsewhere = remote_->take(ready.subspan(remote_from));
      lost.insert(lost.end(), elsewhere.begin(), elsewhere.end());
    }
    if (!lost.empty()) throw_lost(who_, lost);
    if (rank0_ && is_readable(ready[rank0_at])) rank0_->look();
    acceptor_.take(ready.subspan(acceptor_from), [this](auto& hello, auto& socket) { accept_local(hello, socket); });
    if (listener_) {
      for (auto& arrival : listener_->acceptor.take(ready.subspan(listener_from))) accept_remote(arrival);
    }
    if (deadline_.passed(Clock::now())) fail_for_missing();
  }

  // Leaves the socket where it is if it throws: it stays open until the verdict can be read.
  void accept_local(Message& hello, base::UniqueFd& socket) {
    if (!is_awaited(hello.rank)) return;
    if (is_here(hello.rank)) {
      throw_two_of(who_, hello.rank,
                   ": pids " + std::to_string(local_.pid_of(hello.rank)) + " and " + std::to_string(hello.pid));
    }
    local_.add(hello, std::move(socket));
  }

  // A connection from another host: of a follower, or a link of another leader.
  void accept_remote(Acceptor::Arrival& arrival) {
    const int rank = arrival.hello.rank;
    if (arrival.hello.size != who_.size) {
      refused_.push_back(std::move(arrival.socket));
      throw InvalidArgument("rank " + std::to_string(rank) + " was told of " + std::to_string(arrival.hello.size) +
                            " ranks, rank " + std::to_string(who_.rank) + " of " + std::to_string(who_.size) +
                            where(who_) + "\ntry:   the same WORLD_SIZE for every rank");
    }
    if (rank < 1 || rank >= who_.size) return;
    if (arrival.hello.purpose != RankHello::Purpose::follower) {
      if (links_) links_->add(arrival);
      return;
    }
    if (!remote_ || !is_awaited(rank)) return;
    if (is_here(rank)) {
      refused_.push_back(std::move(arrival.socket));
      throw_two_of(who_, rank, "");
    }
    remote_->add(arrival);
  }

  // By host, of its leader.
  std::vector<Endpoint> receive_endpoints() {
    std::vector<LeaderEndpoint> all(static_cast<std::size_t>(layout_.host_count()));
    rank0_->receive(std::as_writable_bytes(std::span(all)));
    std::vector<Endpoint> endpoints;
    for (const auto& each : all) endpoints.push_back({text_in(each.address), static_cast<std::uint16_t>(each.port)});
    endpoints[0].address = rank0_->address();  // where this rank has reached it
    return endpoints;
  }

  // Calls `before_complete` before any follower learns that the meeting is complete.
  Meeting complete_with(const std::function<void()>& before_complete) {
    const int host = layout_.host_of(who_.rank);
    const std::vector<int>& here = layout_.ranks_of(host);
    Meeting meeting{shared_file_of(place_.make_shared_file, layout_, host), {}, layout_, {}};
    if (layout_.host_count() > 1) local_.send_layout(layout_, here);
    local_.send_peers(here);
    before_complete();
    local_.send_complete(here, meeting.shared_file.get());
    meeting.peers = local_.take_peers(here);
    meeting.links = links_->take();
    return meeting;
  }

  // A later program in the same workers may meet under the same keys.
  void clear_keys() {
    place_.store.remove(endpoint_key(place_, 0), deadline_.end());
    place_.store.remove(verdict_key(place_), deadline_.end());
    place_.store.remove(verdict_count_key(place_), deadline_.end());
    for (int rank = 0; rank < who_.size; ++rank) place_.store.remove(here_key(place_, rank), deadline_.end());
  }

  GroupMember who_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  LongWait wait_{who_.rank, who_.size, deadline_};
  std::vector<int> awaited_;  // ranks that are to connect
  LocalAcceptor acceptor_;
  LocalFollowers local_;
  HostLayout layout_;                      // empty until it is known
  std::optional<LeaderLinks> links_;       // once the layout is known
  std::optional<Listening> listener_;      // only with ranks on other hosts
  std::vector<TcpSocket> refused_;         // open until the verdict can be read
  std::optional<RemoteFollowers> remote_;  // of rank 0
  std::optional<Rank0Link> rank0_;         // of another leader
};

template <class Coordinate>
Meeting coordinate_or_tell(const GroupMember& who, const MeetingPlace& place, base::Deadline& deadline,
                           const Coordinate& coordinate) {
  // Its sockets close after the verdict is published: followers read the verdict when their connection closes.
  std::optional<Coordinator> coordinator;
  try {
    coordinator.emplace(who, place, deadline);
    try {
      return coordinate(*coordinator);
    } catch (const MeetingTimedOut&) {
      coordinator->fail_for_missing();
    }
  } catch (const std::exception& error) {
    publish_verdict(place, coordinator ? coordinator->leaders() : std::vector<int>{who.rank}, error);
    throw;
  }
}

}  // namespace

Meeting coordinate_meeting(const GroupMember& who, const MeetingPlace& place, base::Deadline& deadline) {
  return coordinate_or_tell(who, place, deadline,
                            [](Coordinator& coordinator) { return coordinator.coordinate_all(); });
}

Meeting coordinate_host(const GroupMember& who, const MeetingPlace& place, HostLayout layout, CoordinatorLink rank0,
                        base::Deadline& deadline) {
  return coordinate_or_tell(who, place, deadline, [&](Coordinator& coordinator) {
    return coordinator.coordinate_host(std::move(layout), std::move(rank0));
  });
}

}  // namespace ddp::core
