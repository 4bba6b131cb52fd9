#include "worker_runtime/core/bootstrap/meeting_coordinator.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "base/random_key.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/core/bootstrap/meeting_messages.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::list_ranks;
using process_group::Membership;

class Coordinator {
 public:
  Coordinator(const Membership& who, const MeetingPlace& place, base::Deadline& deadline)
      : who_(who),
        place_(place),
        deadline_(deadline),
        name_("ddp-" + base::random_key()),
        listener_(listen_locally(name_, who.size)),
        own_end_(own_end()),
        followers_(static_cast<std::size_t>(who.size)),
        identities_(static_cast<std::size_t>(who.size)) {}

  Meeting coordinate_all() {
    identities_[0] = host_identity();
    if (who_.local_size != who_.size) open_to_other_hosts(base::random_key());
    place_.store.set(endpoint_key(place_, 0), encode({name_, identities_[0], secret_, own_endpoint_}), deadline_.end());
    for (int rank = 1; rank < who_.size; ++rank) awaited_.push_back(rank);
    while (!missing().empty()) wait_for_events();

    set_layout(HostLayout::from_identities(identities_));
    endpoints_[0] = own_endpoint_;
    send_layout();
    wait_until(
        [this] { return std::all_of(leaders_.begin(), leaders_.end(), [](auto& l) { return l.second.ready; }); });
    send_endpoints();
    link();
    wait_until(
        [this] { return std::all_of(leaders_.begin(), leaders_.end(), [](auto& l) { return l.second.linked; }); });
    return complete_with([this] {
      clear_keys();
      for (auto& [rank, leader] : leaders_) send_to_leader(rank, std::as_bytes(std::span(&kComplete, 1)));
    });
  }

  Meeting coordinate_host(HostLayout layout, CoordinatorLink rank0) {
    set_layout(std::move(layout));
    rank0_ = std::move(rank0);
    secret_ = text_in(rank0_->hello.secret);
    place_.store.set(endpoint_key(place_, who_.rank), encode({name_, "", "", {}}), deadline_.end());
    awaited_ = layout_.ranks_of(layout_.host_of(who_.rank));
    std::erase(awaited_, who_.rank);
    while (!missing().empty()) wait_for_events();

    open_to_other_hosts(secret_);
    FollowerMessage ready{FollowerMessage::Kind::ready, own_endpoint_.port, {}};
    put_text(ready.address, own_endpoint_.address);
    send_to_rank0(ready);
    wait_until([this] { return rank0_has_sent_; });
    receive_endpoints();
    link();
    send_to_rank0({FollowerMessage::Kind::linked, 0, {}});
    rank0_has_sent_ = false;
    wait_until([this] { return rank0_has_sent_; });
    char complete = 0;
    receive_from_rank0(std::as_writable_bytes(std::span(&complete, 1)));
    return complete_with([this] { place_.store.remove(endpoint_key(place_, who_.rank), deadline_.end()); });
  }

  std::vector<int> leaders() const {
    std::vector<int> ranks{who_.rank};
    for (int host = 0; host < layout_.host_count(); ++host) ranks.push_back(layout_.leader_of(host));
    return ranks;
  }

 private:
  struct LocalFollower {  // of this host
    base::UniqueFd socket;
    Peer peer;
  };
  struct Leader {  // of another host, or any rank there until all have come
    TcpSocket socket;
    bool ready = false;
    bool linked = false;
  };

  // Makes room for the links at once: other leaders may connect before this one has received their endpoints.
  void set_layout(HostLayout layout) {
    layout_ = std::move(layout);
    const auto hosts = static_cast<std::size_t>(layout_.host_count());
    endpoints_.resize(hosts);
    if (hosts > 1) links_.resize(hosts);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (const int rank : awaited_) {
      if (!followers_[static_cast<std::size_t>(rank)].socket && !leaders_.contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  void wait_until(const std::function<bool()>& condition) {
    while (!condition()) wait_for_events();
  }

  // Takes in new connections, the Hello of each, messages of followers, and the end of followers.
  void wait_for_events() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const auto& connection : unidentified_) polled.push_back({connection.get(), POLLIN, 0});
    const std::size_t followers_from = polled.size();
    std::vector<int> watched;
    for (int rank = 0; rank < who_.size; ++rank) {
      const LocalFollower& follower = followers_[static_cast<std::size_t>(rank)];
      // Reserves two entries for each rank of this host from the start, so that a limit of open files shows at once.
      if (!follower.socket && (who_.local_size != who_.size || rank == who_.rank)) continue;
      watched.push_back(rank);
      polled.push_back({follower.peer.pidfd.get(), POLLIN, 0});
      polled.push_back({follower.socket.get(), POLLIN, 0});  // a follower sends at most one more message
    }
    const std::size_t leaders_from = polled.size();
    for (const auto& [rank, leader] : leaders_) polled.push_back({leader.socket.get(), POLLIN, 0});
    if (rank0_) polled.push_back({rank0_->socket.get(), POLLIN, 0});
    const std::size_t acceptor_from = polled.size();
    if (acceptor_) acceptor_->add_to(polled);
    const auto now = Clock::now();
    poll_until(polled, wait_.is_told() ? deadline_ : deadline_.part(now, std::max(now, wait_.first_end())));
    if (wait_.is_long()) wait_.tell(list_ranks(late_ranks()));

    std::vector<int> lost;
    for (std::size_t i = 0; i < watched.size(); ++i) {
      const pollfd* const of_follower = &polled[followers_from + 2 * i];
      if (is_readable(of_follower[1]) && has_timed_out(of_follower[1].fd)) fail_for_missing();
      if (is_readable(of_follower[0]) || is_readable(of_follower[1])) lost.push_back(watched[i]);
    }
    std::size_t at = leaders_from;
    for (auto& [rank, leader] : leaders_) {
      if (is_readable(polled[at++]) && !receive_from_leader(rank, leader)) lost.push_back(rank);
    }
    if (!lost.empty()) fail_for_lost(lost);
    if (rank0_ && is_readable(polled[at])) watch_rank0();

    std::vector<base::UniqueFd> silent;
    for (std::size_t i = 0; i < unidentified_.size(); ++i) {
      if (!is_readable(polled[1 + i]) || !identify(unidentified_[i])) silent.push_back(std::move(unidentified_[i]));
    }
    unidentified_ = std::move(silent);
    if (is_readable(polled[0])) {
      while (auto socket = accept_locally(listener_.get())) unidentified_.push_back(std::move(socket));
    }
    if (acceptor_) {
      for (auto& arrival : acceptor_->take(std::span(polled).subspan(acceptor_from))) accept_remote(arrival);
    }
    if (deadline_.passed(Clock::now())) fail_for_missing();
  }

  // The deadline of a follower may pass a moment before that of this rank.
  static bool has_timed_out(int follower) {
    try {
      const auto message = receive_message(follower);
      return message && message->kind == Message::Kind::timed_out;
    } catch (const std::exception&) {
      return false;
    }
  }

  // False while nothing has come: then the socket stays among the unidentified.
  bool identify(base::UniqueFd& socket) {
    std::optional<Message> hello;
    try {
      hello = receive_message(socket.get());
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception&) {
      return true;  // closed, or a protocol error: it is no rank of this group
    }
    if (!hello) return false;
    const bool is_awaited = std::find(awaited_.begin(), awaited_.end(), hello->rank) != awaited_.end();
    if (hello->kind != Message::Kind::hello || !hello->fd || !is_awaited) return true;
    accept(*hello, std::move(socket));
    return true;
  }

  void accept(Message& hello, base::UniqueFd socket) {
    LocalFollower& follower = followers_[static_cast<std::size_t>(hello.rank)];
    if (!is_free(hello.rank)) {
      unidentified_.push_back(std::move(socket));  // open until the verdict can be read
      fail_for_two_of(hello.rank, ": pids " + std::to_string(follower.peer.pid) + " and " + std::to_string(hello.pid));
    }
    follower = {std::move(socket), {hello.pid, std::move(hello.fd)}};
    identities_[static_cast<std::size_t>(hello.rank)] = identities_[0];
    send_or_fail(hello.rank, {Message::Kind::greeting, who_.rank, ::getpid(), {}}, own_end_.get());
  }

  bool is_free(int rank) const {
    return !followers_[static_cast<std::size_t>(rank)].socket && !leaders_.contains(rank);
  }

  // A connection from another host: of a follower, or a link of another leader.
  void accept_remote(Acceptor::Arrival& arrival) {
    const int rank = arrival.hello.rank;
    if (arrival.hello.size != who_.size) {
      duplicates_.push_back(std::move(arrival.socket));  // open until the verdict can be read
      throw InvalidArgument("rank " + std::to_string(rank) + " was told of " + std::to_string(arrival.hello.size) +
                            " ranks, rank " + std::to_string(who_.rank) + " of " + std::to_string(who_.size) +
                            where(who_) + "\ntry:   the same WORLD_SIZE for every rank");
    }
    if (rank < 1 || rank >= who_.size) return;
    if (arrival.hello.purpose == Hello::Purpose::follower) {
      const bool is_awaited = std::find(awaited_.begin(), awaited_.end(), rank) != awaited_.end();
      if (rank0_ || !is_awaited) return;
      if (!is_free(rank)) {
        duplicates_.push_back(std::move(arrival.socket));  // open until the verdict can be read
        fail_for_two_of(rank, "");
      }
      identities_[static_cast<std::size_t>(rank)] = "remote " + text_in(arrival.hello.host);
      leaders_[rank].socket = std::move(arrival.socket);
      send_to_leader(rank, std::as_bytes(std::span(&kAccepted, 1)));
      return;
    }
    if (links_.empty() || layout_.leader_of(layout_.host_of(rank)) != rank) return;
    LinkSockets& link = links_[static_cast<std::size_t>(layout_.host_of(rank))];
    (arrival.hello.purpose == Hello::Purpose::data ? link.data : link.news) = std::move(arrival.socket);
  }

  // False if the leader is lost. Waits up to the deadline for the rest of a message.
  bool receive_from_leader(int rank, Leader& leader) {
    FollowerMessage message;
    try {
      if (!receive_all(leader.socket.get(), std::as_writable_bytes(std::span(&message, 1)), deadline_)) return true;
    } catch (const ConnectionLost&) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      return false;
    }
    switch (message.kind) {
      case FollowerMessage::Kind::timed_out: fail_for_missing();
      case FollowerMessage::Kind::ready:
        if (layout_.size() == 0 || leader.ready) break;
        leader.ready = true;
        endpoints_[static_cast<std::size_t>(layout_.host_of(rank))] = {text_in(message.address),
                                                                       static_cast<std::uint16_t>(message.port)};
        return true;
      case FollowerMessage::Kind::linked:
        if (!leader.ready || leader.linked) break;
        leader.linked = true;
        return true;
    }
    throw RankFailure("rank " + std::to_string(rank) + " sent what no rank sends at this point" + where(who_) +
                          "\ntry:   start all ranks with the same version of libddp",
                      {rank});
  }

  void watch_rank0() {
    char next = 0;
    if (::recv(rank0_->socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
      rank0_has_sent_ = true;
    } else {
      fail_for_rank0();
    }
  }

  void send_layout() {
    std::vector<std::int32_t> host_of;
    for (int rank = 0; rank < who_.size; ++rank) host_of.push_back(layout_.host_of(rank));
    for (auto& [rank, leader] : leaders_) send_to_leader(rank, std::as_bytes(std::span(host_of)));
    std::erase_if(leaders_,
                  [this](auto& each) { return layout_.leader_of(layout_.host_of(each.first)) != each.first; });
  }

  void send_endpoints() {
    std::vector<LeaderEndpoint> all(endpoints_.size());
    for (std::size_t host = 0; host < all.size(); ++host) {
      all[host].port = endpoints_[host].port;
      put_text(all[host].address, endpoints_[host].address);
    }
    for (auto& [rank, leader] : leaders_) send_to_leader(rank, std::as_bytes(std::span(all)));
  }

  void receive_endpoints() {
    std::vector<LeaderEndpoint> all(endpoints_.size());
    receive_from_rank0(std::as_writable_bytes(std::span(all)));
    for (std::size_t host = 0; host < all.size(); ++host) {
      endpoints_[host] = {text_in(all[host].address), static_cast<std::uint16_t>(all[host].port)};
    }
    endpoints_[0].address = rank0_->address;  // where this rank has reached it
  }

  void open_to_other_hosts(const std::string& secret) {
    auto listener = listen_tcp(place_.network);
    own_endpoint_ = listener.endpoint;
    secret_ = secret;
    Hello expected;
    put_text(expected.secret, secret_);
    put_text(expected.group, place_.key_prefix);
    acceptor_.emplace(std::move(listener.socket), expected);
  }

  // Connects to the leaders of the hosts before this one, and waits for those behind it.
  void link() {
    if (layout_.host_count() == 1) return;
    const int own_host = layout_.host_of(who_.rank);
    for (int host = 0; host < own_host; ++host) {
      LinkSockets& link = links_[static_cast<std::size_t>(host)];
      link.data = connect_to(host, Hello::Purpose::data);
      link.news = connect_to(host, Hello::Purpose::news);
    }
    wait_until([&] {
      for (int host = 0; host < layout_.host_count(); ++host) {
        const LinkSockets& link = links_[static_cast<std::size_t>(host)];
        if (host != own_host && (!link.data || !link.news)) return false;
      }
      return true;
    });
  }

  TcpSocket connect_to(int host, Hello::Purpose purpose) {
    Hello hello;
    hello.purpose = purpose;
    hello.rank = who_.rank;
    hello.size = who_.size;
    put_text(hello.secret, secret_);
    put_text(hello.group, place_.key_prefix);
    Endpoint endpoint = endpoints_[static_cast<std::size_t>(host)];
    if (endpoint.address.empty()) endpoint.address = place_.network.store_address;
    try {
      return connect_tcp(endpoint, hello, deadline_);
    } catch (const std::system_error& error) {
      const int leader = layout_.leader_of(host);
      throw RankFailure(
          "rank " + std::to_string(leader) + ", which leads its host, can't be reached at " + endpoint.address +
              " port " + std::to_string(endpoint.port) + ": " + error.code().message() + where(who_) +
              "\ntry:   let the hosts of the job reach each other (DDP_SOCKET_IFNAME names the interface, "
              "DDPRUN_PORT_RANGE the ports)",
          {leader});
    }
  }

  // Calls `before_complete` before any follower learns that the meeting is complete.
  Meeting complete_with(const std::function<void()>& before_complete) {
    const std::vector<int>& here = layout_.ranks_of(layout_.host_of(who_.rank));
    const int host = layout_.host_of(who_.rank);
    Meeting meeting{shared_file_of(place_.make_shared_file, layout_, host), {}, layout_, {}};
    if (layout_.host_count() > 1) {
      const base::UniqueFd file = make_layout_file(layout_);
      for (const int follower : here) send_or_fail(follower, {Message::Kind::layout, who_.rank, 0, {}}, file.get());
    }
    for (const int follower : here) send_peers_to(follower, here);
    before_complete();
    for (const int follower : here) send_complete(follower, meeting.shared_file.get());
    followers_[static_cast<std::size_t>(who_.rank)].peer.pid = ::getpid();
    for (const int rank : here) meeting.peers.push_back(std::move(followers_[static_cast<std::size_t>(rank)].peer));
    meeting.links = std::move(links_);
    return meeting;
  }

  void send_peers_to(int follower, const std::vector<int>& here) {
    for (const int rank : here) {
      if (rank == follower || rank == who_.rank || follower == who_.rank) continue;
      const Peer& peer = followers_[static_cast<std::size_t>(rank)].peer;
      send_or_fail(follower, {Message::Kind::peer, rank, peer.pid, {}}, peer.pidfd.get());
    }
  }

  // Ignores a lost follower: from here on the group itself notices that, and some ranks may be in it already.
  void send_complete(int follower, int shared_file) {
    if (follower != who_.rank) send(follower, {Message::Kind::complete, who_.rank, ::getpid(), {}}, shared_file);
  }

  // False if the follower has closed its connection.
  bool send(int follower, const Message& message, int fd) {
    try {
      send_message(followers_[static_cast<std::size_t>(follower)].socket.get(), message, fd, deadline_);
      return true;
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::broken_pipe || error.code() == std::errc::connection_reset) return false;
      throw;
    }
  }

  void send_or_fail(int follower, const Message& message, int fd) {
    if (follower != who_.rank && !send(follower, message, fd)) fail_for_lost({follower});
  }

  void send_to_leader(int rank, std::span<const std::byte> bytes) {
    try {
      if (send_all(leaders_[rank].socket.get(), bytes, deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_lost({rank});
    }
    fail_for_missing();
  }

  void send_to_rank0(const FollowerMessage& message) {
    try {
      if (send_all(rank0_->socket.get(), std::as_bytes(std::span(&message, 1)), deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_rank0();
    }
    fail_for_missing();
  }

  void receive_from_rank0(std::span<std::byte> bytes) {
    try {
      if (receive_all(rank0_->socket.get(), bytes, deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_rank0();
    }
    fail_for_missing();
  }

  // A later program in the same workers may meet under the same keys.
  void clear_keys() {
    place_.store.remove(endpoint_key(place_, 0), deadline_.end());
    place_.store.remove(verdict_key(place_), deadline_.end());
    place_.store.remove(verdict_count_key(place_), deadline_.end());
    for (int rank = 0; rank < who_.size; ++rank) place_.store.remove(here_key(place_, rank), deadline_.end());
  }

  [[noreturn]] void fail_for_two_of(int rank, const std::string& who_they_are) const {
    throw InvalidArgument("two processes say that they are rank " + std::to_string(rank) + who_they_are + where(who_) +
                          "\ntry:   give every process a RANK of its own");
  }

  [[noreturn]] void fail_for_lost(const std::vector<int>& lost) const {
    throw RankFailure(list_ranks(lost) + " ended before all ranks had met" + where(who_) +
                          "\ntry:   look at the end of the output of " + list_ranks(lost),
                      lost);
  }

  [[noreturn]] void fail_for_rank0() const {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    throw RankFailure("rank 0, which coordinates the start of the group, broke off" + where(who_) +
                          "\ntry:   look at the end of the output of rank 0",
                      {0});
  }

  std::vector<int> late_ranks() const {
    std::vector<int> late = missing();
    if (late.empty()) {  // all have come, but some leader is not done
      for (const auto& [rank, leader] : leaders_) {
        if (!leader.linked) late.push_back(rank);
      }
    }
    if (late.empty()) late.push_back(0);
    return late;
  }

  [[noreturn]] void fail_for_missing() const { throw_did_not_join(who_, late_ranks(), deadline_); }

  Membership who_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  LongWait wait_{who_.rank, who_.size, deadline_};
  std::string name_;
  base::UniqueFd listener_;
  base::UniqueFd own_end_;
  std::vector<int> awaited_;                  // ranks that are to connect
  std::vector<LocalFollower> followers_;      // by rank; empty but for those of this host that have connected
  std::vector<base::UniqueFd> unidentified_;  // connected, without a Hello yet

  // Only with ranks on other hosts.
  std::vector<std::string> identities_;  // by rank, of its host
  HostLayout layout_;
  std::string secret_;
  Endpoint own_endpoint_;
  std::optional<Acceptor> acceptor_;
  std::map<int, Leader> leaders_;         // rank 0: by rank
  std::vector<TcpSocket> duplicates_;     // refused, and open until the verdict is published
  std::optional<CoordinatorLink> rank0_;  // another leader: its connection to rank 0
  bool rank0_has_sent_ = false;
  std::vector<Endpoint> endpoints_;  // by host, of its leader
  std::vector<LinkSockets> links_;   // by host
};

template <class Coordinate>
Meeting coordinate_or_tell(const Membership& who, const MeetingPlace& place, base::Deadline& deadline,
                           const Coordinate& coordinate) {
  // Its sockets close after the verdict is published: followers read the verdict when their connection closes.
  std::optional<Coordinator> coordinator;
  try {
    return coordinate(coordinator.emplace(who, place, deadline));
  } catch (const std::exception& error) {
    publish_verdict(place, coordinator ? coordinator->leaders() : std::vector<int>{who.rank}, error);
    throw;
  }
}

}  // namespace

Meeting coordinate_meeting(const Membership& who, const MeetingPlace& place, base::Deadline& deadline) {
  return coordinate_or_tell(who, place, deadline,
                            [](Coordinator& coordinator) { return coordinator.coordinate_all(); });
}

Meeting coordinate_host(const Membership& who, const MeetingPlace& place, HostLayout layout, CoordinatorLink rank0,
                        base::Deadline& deadline) {
  return coordinate_or_tell(who, place, deadline, [&](Coordinator& coordinator) {
    return coordinator.coordinate_host(std::move(layout), std::move(rank0));
  });
}

}  // namespace ddp::core
