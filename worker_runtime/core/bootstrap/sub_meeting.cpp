#include "worker_runtime/core/bootstrap/sub_meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "base/random_key.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::GroupMember;

constexpr int kForeignConnectionsMax = 16;  // in the backlog of a leader's unix socket, beside its ranks

// Where a leader listens.
struct LeaderEndpoints {
  std::array<char, 48> socket{};   // name of its unix socket
  std::array<char, 64> address{};  // the rest of a group on several hosts; see Endpoint
  std::uint32_t port = 0;
  std::array<char, 36> secret{};  // rank 0's is the group's
};

using Refusal = std::array<char, 160>;  // why a rank can't do its part; empty where it can

template <class T>
std::vector<T> gather(const ParentGroup& parent, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::vector<std::byte> bytes = parent.gather(std::as_bytes(std::span(&own, 1)));
  std::vector<T> all(static_cast<std::size_t>(parent.who.size));
  std::memcpy(all.data(), bytes.data(), bytes.size());
  return all;
}

// Takes a step on every rank of the parent. If one rank fails, all throw. If the death of a rank is the reason, they
// throw what the parent group failed with; the dead rank may have taken the step itself.
template <class Step>
void together(const ParentGroup& parent, const Step& step) {
  Refusal own{};
  try {
    step();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    put_text(own, text.empty() ? "it does not say why" : text.substr(0, text.find('\n')));
  }
  const std::vector<Refusal> all = gather(parent, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string refusal = text_in(all[rank]);
    if (refusal.empty()) continue;
    gather(parent, own);  // throws unless all are alive
    throw Error("rank " + std::to_string(rank) + " can't be part of a new group: " + refusal +
                "\nwhere: a split of the process group, rank " + std::to_string(parent.who.rank) + " of " +
                std::to_string(parent.who.size) + ", pid " + std::to_string(::getpid()) + kLimitsAdvice);
  }
}

// The part of a rank that is in a new group of two or more.
class Member {
 public:
  Member(const ParentGroup& parent, const NewGroup& made, base::Deadline& deadline)
      : parent_(parent),
        made_(made),
        deadline_(deadline),
        layout_(layout_of(parent.layout, made.ranks)),
        host_(layout_.host_of(made.who.rank)),
        leader_(layout_.leader_of(host_)) {}

  void open() {
    if (!is_leader()) return;
    const auto& here = layout_.ranks_of(host_);
    file_ = shared_file_of(parent_.make_shared_file, layout_, host_);
    if (here.size() > 1) {
      const std::string name = "ddp-" + base::random_key();
      listener_ = listen_locally(name, static_cast<int>(here.size()) + kForeignConnectionsMax);
      put_text(endpoints_.socket, name);
    }
    if (layout_.host_count() == 1) return;
    Listener listener = listen_tcp(parent_.network);
    put_text(endpoints_.address, listener.endpoint.address);
    endpoints_.port = listener.endpoint.port;
    put_text(endpoints_.secret, base::random_key());
    port_ = std::move(listener.socket);
  }

  const LeaderEndpoints& endpoints() const { return endpoints_; }

  void connect(const std::vector<LeaderEndpoints>& endpoints) {
    if (!is_leader()) return connect_to_leader(text_in(endpoints_of(endpoints, leader_).socket));
    if (layout_.host_count() == 1) return;
    const std::string secret = text_in(endpoints_of(endpoints, 0).secret);
    acceptor_.emplace(std::move(port_), hello(secret, RankHello::Purpose::data));
    links_.resize(static_cast<std::size_t>(layout_.host_count()));
    for (int host = 0; host < host_; ++host) {
      LinkSockets& link = links_[static_cast<std::size_t>(host)];
      const LeaderEndpoints& endpoint = endpoints_of(endpoints, layout_.leader_of(host));
      link.data = connect_link(endpoint, hello(secret, RankHello::Purpose::data));
      link.news = connect_link(endpoint, hello(secret, RankHello::Purpose::news));
    }
  }

  void accept() {
    if (!is_leader()) return;
    hand_out_file();
    while (!is_linked()) {
      std::vector<pollfd> polled;
      acceptor_->add_to(polled);
      poll_until(polled, deadline_);
      for (auto& arrival : acceptor_->take(polled)) add_link(arrival);
      if (deadline_.passed(Clock::now()) && !is_linked()) throw Error("no connection came from another host");
    }
    acceptor_.reset();
    listener_.reset();
  }

  Meeting receive_meeting() {
    if (!is_leader()) {
      auto message = receive_message(socket_.get());
      if (!message || message->kind != Message::Kind::complete)
        throw Error("its leader has not said that the meeting is complete");
      file_ = std::move(message->fd);
      socket_.reset();
    }
    Meeting meeting{std::move(file_), {}, layout_, std::move(links_)};
    for (const int rank : layout_.ranks_of(host_)) meeting.peers.push_back(peer(parent_rank(rank)));
    return meeting;
  }

 private:
  static HostLayout layout_of(const HostLayout& of_parent, const std::vector<int>& ranks) {
    std::vector<std::string> hosts;
    for (const int rank : ranks) hosts.push_back(std::to_string(of_parent.host_of(rank)));
    return HostLayout::from_identities(hosts);
  }

  bool is_leader() const { return leader_ == made_.who.rank; }
  int parent_rank(int rank) const { return made_.ranks[static_cast<std::size_t>(rank)]; }

  const LeaderEndpoints& endpoints_of(const std::vector<LeaderEndpoints>& endpoints, int rank) const {
    return endpoints[static_cast<std::size_t>(parent_rank(rank))];
  }

  Peer peer(int rank) const {
    if (rank == parent_.who.rank) return {::getpid(), {}};
    return {parent_.pids[static_cast<std::size_t>(rank)], parent_.duplicate_pidfd(rank)};
  }

  void connect_to_leader(const std::string& name) {
    socket_ = connect_locally(name, Backlog::has_room);
    if (uid_of_peer(socket_.get()) != ::geteuid()) throw Error("another user listens in the place of its leader");
    send_message(socket_.get(), {Message::Kind::hello, made_.who.rank, ::getpid(), {}}, -1, deadline_);
  }

  // Every rank of this host has connected in the step before.
  void hand_out_file() {
    std::vector<int> awaited = layout_.ranks_of(host_);
    std::erase(awaited, made_.who.rank);
    while (!awaited.empty()) {
      const base::UniqueFd socket = accept_locally(listener_.get());
      if (!socket) throw Error("not all ranks of its host have connected");
      const int rank = rank_at(socket.get());
      if (std::erase(awaited, rank) == 0) continue;  // a foreign connection
      send_message(socket.get(), {Message::Kind::complete, made_.who.rank, ::getpid(), {}}, file_.get(), deadline_);
    }
  }

  static int rank_at(int socket) {
    try {
      const auto message = receive_message(socket);
      return message && message->kind == Message::Kind::hello ? message->rank : -1;
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception&) {  // it is closed, or a protocol error
      return -1;
    }
  }

  RankHello hello(const std::string& secret, RankHello::Purpose purpose) const {
    RankHello hello;
    hello.purpose = purpose;
    hello.rank = made_.who.rank;
    hello.size = made_.who.size;
    put_text(hello.secret, secret);
    put_text(hello.group, made_.who.name);
    return hello;
  }

  TcpSocket connect_link(const LeaderEndpoints& endpoint, const RankHello& hello) {
    const std::string address = text_in(endpoint.address);
    return connect_tcp(
        {address.empty() ? parent_.network.store_address : address, static_cast<std::uint16_t>(endpoint.port)}, hello,
        deadline_);
  }

  void add_link(Acceptor::Arrival& arrival) {
    const int rank = arrival.hello.rank;
    if (rank <= made_.who.rank || rank >= made_.who.size || layout_.leader_of(layout_.host_of(rank)) != rank) return;
    LinkSockets& link = links_[static_cast<std::size_t>(layout_.host_of(rank))];
    (arrival.hello.purpose == RankHello::Purpose::data ? link.data : link.news) = std::move(arrival.socket);
  }

  bool is_linked() const {
    for (std::size_t host = 0; host < links_.size(); ++host) {
      if (static_cast<int>(host) != host_ && !(links_[host].data && links_[host].news)) return false;
    }
    return true;
  }

  const ParentGroup& parent_;
  const NewGroup& made_;
  base::Deadline& deadline_;
  HostLayout layout_;  // of the new group
  int host_;           // there, as is the next
  int leader_;
  LeaderEndpoints endpoints_;  // a leader's, as are the next
  base::UniqueFd file_;        // and in the end everybody's
  base::UniqueFd listener_;
  TcpSocket port_;
  std::optional<Acceptor> acceptor_;  // at that port
  std::vector<LinkSockets> links_;    // by host
  base::UniqueFd socket_;             // to the leader
};

}  // namespace

void meet_within(const ParentGroup& parent, const NewGroup& made, const GroupSteps& group, base::Deadline& deadline) {
  std::optional<Member> member;
  if (made.ranks.size() > 1) member.emplace(parent, made, deadline);
  together(parent, [&] {
    if (member) member->open();
  });
  const std::vector<LeaderEndpoints> endpoints = gather(parent, member ? member->endpoints() : LeaderEndpoints{});
  together(parent, [&] {
    if (member) member->connect(endpoints);
  });
  together(parent, [&] {
    if (member) member->accept();
  });
  std::optional<Meeting> meeting;
  together(parent, [&] {
    if (made.ranks.empty()) return;
    meeting = member ? member->receive_meeting() : meet_alone(parent.make_shared_file);
    meeting->network = parent.network;
    for (const int rank : made.ranks) meeting->job_ranks.push_back(parent.job_ranks[static_cast<std::size_t>(rank)]);
    group.make(*meeting);
  });
  together(parent, [&] {
    if (meeting) group.begin(std::move(*meeting));
  });
}

}  // namespace ddp::core
