#include "worker_runtime/core/bootstrap/meeting_holder.hpp"

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

#include "rendezvous/io/random_key.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/bootstrap/meeting_words.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::list_ranks;
using process_group::Membership;

class Holder {
 public:
  Holder(const Membership& who, const MeetingPlace& place, io::Deadline& deadline)
      : who_(who),
        place_(place),
        deadline_(deadline),
        name_("ddp-" + io::random_key()),
        listener_(listen_locally(name_, who.size)),
        own_end_(own_end()),
        guests_(static_cast<std::size_t>(who.size)),
        identities_(static_cast<std::size_t>(who.size)) {}

  Meeting hold_for_all() {
    identities_[0] = host_identity();
    if (who_.local_size != who_.size) open_to_other_hosts(io::random_key());
    place_.store.set(door_key(place_, 0), encode({name_, identities_[0], secret_, own_endpoint_}), deadline_.end());
    for (int rank = 1; rank < who_.size; ++rank) awaited_.push_back(rank);
    while (!missing().empty()) wait_for_events();

    set_layout(HostLayout::from_identities(identities_));
    endpoints_[0] = own_endpoint_;
    tell_layout();
    wait_until(
        [this] { return std::all_of(leaders_.begin(), leaders_.end(), [](auto& l) { return l.second.ready; }); });
    tell_endpoints();
    link();
    wait_until(
        [this] { return std::all_of(leaders_.begin(), leaders_.end(), [](auto& l) { return l.second.linked; }); });
    return close_with([this] {
      clear_keys();
      for (auto& [rank, leader] : leaders_) tell_leader(rank, std::as_bytes(std::span(&kGo, 1)));
    });
  }

  Meeting hold_for_host(HostLayout layout, Chair chair) {
    set_layout(std::move(layout));
    chair_ = std::move(chair);
    secret_ = text_in(chair_->hello.secret);
    place_.store.set(door_key(place_, who_.rank), encode({name_, "", "", {}}), deadline_.end());
    awaited_ = layout_.ranks_of(layout_.host_of(who_.rank));
    std::erase(awaited_, who_.rank);
    while (!missing().empty()) wait_for_events();

    open_to_other_hosts(secret_);
    GuestWord ready{GuestWord::Kind::ready, own_endpoint_.port, {}};
    put_text(ready.address, own_endpoint_.address);
    tell_chair(ready);
    wait_until([this] { return chair_has_spoken_; });
    hear_endpoints();
    link();
    tell_chair({GuestWord::Kind::linked, 0, {}});
    chair_has_spoken_ = false;
    wait_until([this] { return chair_has_spoken_; });
    char go = 0;
    hear_chair(std::as_writable_bytes(std::span(&go, 1)));
    return close_with([this] { place_.store.remove(door_key(place_, who_.rank), deadline_.end()); });
  }

  std::vector<int> leaders() const {
    std::vector<int> ranks{who_.rank};
    for (int host = 0; host < layout_.host_count(); ++host) ranks.push_back(layout_.leader_of(host));
    return ranks;
  }

 private:
  struct GuestSeat {  // of this host
    io::UniqueFd socket;
    Peer peer;
  };
  struct Leader {  // of another host, or any rank there until all have come
    TcpSocket socket;
    bool ready = false;
    bool linked = false;
  };

  // Other leaders may connect as soon as they know where, which can be before this one has heard of them.
  void set_layout(HostLayout layout) {
    layout_ = std::move(layout);
    const auto hosts = static_cast<std::size_t>(layout_.host_count());
    endpoints_.resize(hosts);
    if (hosts > 1) links_.resize(hosts);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (const int rank : awaited_) {
      if (!guests_[static_cast<std::size_t>(rank)].socket && !leaders_.contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  void wait_until(const std::function<bool()>& condition) {
    while (!condition()) wait_for_events();
  }

  // What can happen: somebody connects, a stranger says who it is, a guest is lost or, from another host, speaks.
  void wait_for_events() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const auto& stranger : strangers_) polled.push_back({stranger.get(), POLLIN, 0});
    const std::size_t guests_from = polled.size();
    std::vector<int> seated;
    for (int rank = 0; rank < who_.size; ++rank) {
      const GuestSeat& seat = guests_[static_cast<std::size_t>(rank)];
      // Seats of this host are watched from the start, so that a limit of open files shows at once and not by and by.
      if (!seat.socket && (who_.local_size != who_.size || rank == who_.rank)) continue;
      seated.push_back(rank);
      polled.push_back({seat.peer.pidfd.get(), POLLIN, 0});
      polled.push_back({seat.socket.get(), POLLIN, 0});  // guests say only one thing more, or hang up
    }
    const std::size_t leaders_from = polled.size();
    for (const auto& [rank, leader] : leaders_) polled.push_back({leader.socket.get(), POLLIN, 0});
    if (chair_) polled.push_back({chair_->socket.get(), POLLIN, 0});
    const std::size_t acceptor_from = polled.size();
    if (acceptor_) acceptor_->add_to(polled);
    const auto now = Clock::now();
    poll_until(polled, wait_.is_told() ? deadline_ : deadline_.part(now, std::max(now, wait_.first_end())));
    if (wait_.is_long()) wait_.tell(list_ranks(late_ranks()));

    std::vector<int> lost;
    for (std::size_t i = 0; i < seated.size(); ++i) {
      const pollfd* const of_guest = &polled[guests_from + 2 * i];
      if (is_readable(of_guest[1]) && has_timed_out(of_guest[1].fd)) fail_for_missing();
      if (is_readable(of_guest[0]) || is_readable(of_guest[1])) lost.push_back(seated[i]);
    }
    std::size_t at = leaders_from;
    for (auto& [rank, leader] : leaders_) {
      if (is_readable(polled[at++]) && !listen_to_leader(rank, leader)) lost.push_back(rank);
    }
    if (!lost.empty()) fail_for_lost(lost);
    if (chair_ && is_readable(polled[at])) listen_to_chair();

    std::vector<io::UniqueFd> silent;
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      if (!is_readable(polled[1 + i]) || !listen_to(strangers_[i])) silent.push_back(std::move(strangers_[i]));
    }
    strangers_ = std::move(silent);
    if (is_readable(polled[0])) {
      while (auto socket = accept_locally(listener_.get())) strangers_.push_back(std::move(socket));
    }
    if (acceptor_) {
      for (auto& arrival : acceptor_->take(std::span(polled).subspan(acceptor_from))) welcome_from_afar(arrival);
    }
    if (deadline_.passed(Clock::now())) fail_for_missing();
  }

  // A guest's deadline may pass a moment before this rank's.
  static bool has_timed_out(int guest) {
    try {
      const auto message = receive_message(guest);
      return message && message->kind == Message::Kind::timed_out;
    } catch (const std::exception&) {
      return false;
    }
  }

  // Whether there is nothing more to hear from this socket as a stranger's.
  bool listen_to(io::UniqueFd& socket) {
    std::optional<Message> hello;
    try {
      hello = receive_message(socket.get());
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception&) {
      return true;  // it hung up, or is no rank of ours
    }
    if (!hello) return false;
    const bool is_awaited = std::find(awaited_.begin(), awaited_.end(), hello->rank) != awaited_.end();
    if (hello->kind != Message::Kind::hello || !hello->fd || !is_awaited) return true;
    welcome(*hello, std::move(socket));
    return true;
  }

  void welcome(Message& hello, io::UniqueFd socket) {
    GuestSeat& seat = guests_[static_cast<std::size_t>(hello.rank)];
    if (!is_free(hello.rank)) {
      strangers_.push_back(std::move(socket));  // open until the verdict can be read
      fail_for_two_of(hello.rank, ": pids " + std::to_string(seat.peer.pid) + " and " + std::to_string(hello.pid));
    }
    seat = {std::move(socket), {hello.pid, std::move(hello.fd)}};
    identities_[static_cast<std::size_t>(hello.rank)] = identities_[0];
    tell_present(hello.rank, {Message::Kind::greeting, who_.rank, ::getpid(), {}}, own_end_.get());
  }

  bool is_free(int rank) const { return !guests_[static_cast<std::size_t>(rank)].socket && !leaders_.contains(rank); }

  // Who opened a connection from another host: a rank that comes to the meeting, or a leader that links up.
  void welcome_from_afar(Acceptor::Arrival& arrival) {
    const int rank = arrival.hello.rank;
    if (arrival.hello.size != who_.size) {
      doubles_.push_back(std::move(arrival.socket));  // open until the verdict can be read
      throw InvalidArgument("rank " + std::to_string(rank) + " was told of " + std::to_string(arrival.hello.size) +
                            " ranks, rank " + std::to_string(who_.rank) + " of " + std::to_string(who_.size) +
                            where(who_) + "\ntry:   the same WORLD_SIZE for every rank");
    }
    if (rank < 1 || rank >= who_.size) return;
    if (arrival.hello.purpose == Hello::Purpose::guest) {
      const bool is_awaited = std::find(awaited_.begin(), awaited_.end(), rank) != awaited_.end();
      if (chair_ || !is_awaited) return;
      if (!is_free(rank)) {
        doubles_.push_back(std::move(arrival.socket));  // open until the verdict can be read
        fail_for_two_of(rank, "");
      }
      identities_[static_cast<std::size_t>(rank)] = "afar " + text_in(arrival.hello.host);
      leaders_[rank].socket = std::move(arrival.socket);
      tell_leader(rank, std::as_bytes(std::span(&kWelcome, 1)));
      return;
    }
    if (links_.empty() || layout_.leader_of(layout_.host_of(rank)) != rank) return;
    LinkSockets& link = links_[static_cast<std::size_t>(layout_.host_of(rank))];
    (arrival.hello.purpose == Hello::Purpose::data ? link.data : link.news) = std::move(arrival.socket);
  }

  // Whether it is still there. One that stops in the middle of a word is waited for to the deadline.
  bool listen_to_leader(int rank, Leader& leader) {
    GuestWord word;
    try {
      if (!receive_all(leader.socket.get(), std::as_writable_bytes(std::span(&word, 1)), deadline_)) return true;
    } catch (const ConnectionLost&) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      return false;
    }
    switch (word.kind) {
      case GuestWord::Kind::timed_out: fail_for_missing();
      case GuestWord::Kind::ready:
        if (layout_.size() == 0 || leader.ready) break;
        leader.ready = true;
        endpoints_[static_cast<std::size_t>(layout_.host_of(rank))] = {text_in(word.address),
                                                                       static_cast<std::uint16_t>(word.port)};
        return true;
      case GuestWord::Kind::linked:
        if (!leader.ready || leader.linked) break;
        leader.linked = true;
        return true;
    }
    throw RankFailure("rank " + std::to_string(rank) + " sent what no rank sends at this point" + where(who_) +
                          "\ntry:   start all ranks with the same version of libddp",
                      {rank});
  }

  void listen_to_chair() {
    char next = 0;
    if (::recv(chair_->socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) == 1) {
      chair_has_spoken_ = true;
    } else {
      fail_for_chair();
    }
  }

  void tell_layout() {
    std::vector<std::int32_t> host_of;
    for (int rank = 0; rank < who_.size; ++rank) host_of.push_back(layout_.host_of(rank));
    for (auto& [rank, leader] : leaders_) tell_leader(rank, std::as_bytes(std::span(host_of)));
    std::erase_if(leaders_,
                  [this](auto& each) { return layout_.leader_of(layout_.host_of(each.first)) != each.first; });
  }

  void tell_endpoints() {
    std::vector<LeaderEndpoint> all(endpoints_.size());
    for (std::size_t host = 0; host < all.size(); ++host) {
      all[host].port = endpoints_[host].port;
      put_text(all[host].address, endpoints_[host].address);
    }
    for (auto& [rank, leader] : leaders_) tell_leader(rank, std::as_bytes(std::span(all)));
  }

  void hear_endpoints() {
    std::vector<LeaderEndpoint> all(endpoints_.size());
    hear_chair(std::as_writable_bytes(std::span(all)));
    for (std::size_t host = 0; host < all.size(); ++host) {
      endpoints_[host] = {text_in(all[host].address), static_cast<std::uint16_t>(all[host].port)};
    }
    endpoints_[0].address = chair_->address;  // it has proved to lead there
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

  // `before_letting_go` is what nobody may hear of success before.
  Meeting close_with(const std::function<void()>& before_letting_go) {
    const std::vector<int>& here = layout_.ranks_of(layout_.host_of(who_.rank));
    const int host = layout_.host_of(who_.rank);
    Meeting meeting{shared_file_of(place_.make_shared_file, layout_, host), {}, layout_, {}};
    if (layout_.host_count() > 1) {
      const io::UniqueFd file = make_layout_file(layout_);
      for (const int guest : here) tell_present(guest, {Message::Kind::layout, who_.rank, 0, {}}, file.get());
    }
    for (const int guest : here) introduce_others_to(guest, here);
    before_letting_go();
    for (const int guest : here) let_go(guest, meeting.shared_file.get());
    guests_[static_cast<std::size_t>(who_.rank)].peer.pid = ::getpid();
    for (const int rank : here) meeting.peers.push_back(std::move(guests_[static_cast<std::size_t>(rank)].peer));
    meeting.links = std::move(links_);
    return meeting;
  }

  void introduce_others_to(int guest, const std::vector<int>& here) {
    for (const int rank : here) {
      if (rank == guest || rank == who_.rank || guest == who_.rank) continue;
      const Peer& peer = guests_[static_cast<std::size_t>(rank)].peer;
      tell_present(guest, {Message::Kind::peer, rank, peer.pid, {}}, peer.pidfd.get());
    }
  }

  // The group notices one that is lost from here on: some may be in it already.
  void let_go(int guest, int shared_file) {
    if (guest != who_.rank) tell(guest, {Message::Kind::complete, who_.rank, ::getpid(), {}}, shared_file);
  }

  // Whether the guest was there to be told.
  bool tell(int guest, const Message& message, int fd) {
    try {
      send_message(guests_[static_cast<std::size_t>(guest)].socket.get(), message, fd, deadline_);
      return true;
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::broken_pipe || error.code() == std::errc::connection_reset) return false;
      throw;
    }
  }

  void tell_present(int guest, const Message& message, int fd) {
    if (guest != who_.rank && !tell(guest, message, fd)) fail_for_lost({guest});
  }

  void tell_leader(int rank, std::span<const std::byte> bytes) {
    try {
      if (send_all(leaders_[rank].socket.get(), bytes, deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_lost({rank});
    }
    fail_for_missing();
  }

  void tell_chair(const GuestWord& word) {
    try {
      if (send_all(chair_->socket.get(), std::as_bytes(std::span(&word, 1)), deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_chair();
    }
    fail_for_missing();
  }

  void hear_chair(std::span<std::byte> bytes) {
    try {
      if (receive_all(chair_->socket.get(), bytes, deadline_)) return;
    } catch (const ConnectionLost&) {
      fail_for_chair();
    }
    fail_for_missing();
  }

  // Another program may meet under the same keys once these processes have ended, in the same worker.
  void clear_keys() {
    place_.store.remove(door_key(place_, 0), deadline_.end());
    place_.store.remove(verdict_key(place_), deadline_.end());
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

  [[noreturn]] void fail_for_chair() const {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    throw RankFailure(
        "rank 0, which holds the meeting, broke off" + where(who_) + "\ntry:   look at the end of the output of rank 0",
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
  io::Deadline& deadline_;
  LongWait wait_{who_.rank, who_.size, deadline_};
  std::string name_;
  io::UniqueFd listener_;
  io::UniqueFd own_end_;
  std::vector<int> awaited_;             // ranks that are to come through one of the doors
  std::vector<GuestSeat> guests_;        // by rank; those who have come, of this host
  std::vector<io::UniqueFd> strangers_;  // connected, but have not said who they are

  // Only with ranks on other hosts.
  std::vector<std::string> identities_;  // by rank, of its host
  HostLayout layout_;
  std::string secret_;
  Endpoint own_endpoint_;
  std::optional<Acceptor> acceptor_;
  std::map<int, Leader> leaders_;   // rank 0: by rank
  std::vector<TcpSocket> doubles_;  // and others that were refused
  std::optional<Chair> chair_;      // another leader: its connection to rank 0
  bool chair_has_spoken_ = false;
  std::vector<Endpoint> endpoints_;  // by host, of its leader
  std::vector<LinkSockets> links_;   // by host
};

template <class Hold>
Meeting hold_or_tell(const Membership& who, const MeetingPlace& place, io::Deadline& deadline, const Hold& hold) {
  std::optional<Holder> holder;  // its sockets close after the verdict is out, which sends the guests to read it
  try {
    return hold(holder.emplace(who, place, deadline));
  } catch (const std::exception& error) {
    publish_verdict(place, holder ? holder->leaders() : std::vector<int>{who.rank}, error);
    throw;
  }
}

}  // namespace

Meeting hold_meeting(const Membership& who, const MeetingPlace& place, io::Deadline& deadline) {
  return hold_or_tell(who, place, deadline, [](Holder& holder) { return holder.hold_for_all(); });
}

Meeting hold_meeting_of_host(const Membership& who, const MeetingPlace& place, HostLayout layout, Chair chair,
                             io::Deadline& deadline) {
  return hold_or_tell(who, place, deadline,
                      [&](Holder& holder) { return holder.hold_for_host(std::move(layout), std::move(chair)); });
}

}  // namespace ddp::core
