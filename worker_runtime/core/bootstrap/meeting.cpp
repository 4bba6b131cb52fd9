#include "worker_runtime/core/bootstrap/meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "base/cut.hpp"
#include "worker_runtime/core/bootstrap/long_wait.hpp"
#include "worker_runtime/core/bootstrap/meeting_coordinator.hpp"
#include "worker_runtime/core/bootstrap/meeting_messages.hpp"
#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::core {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::GroupMember;
using process_group::list_ranks;

constexpr std::chrono::milliseconds kRetryFirst{5};  // after a refusal; doubles
constexpr std::chrono::milliseconds kRetryMax{500};
// Of reaching rank 0's host, whose address may be of an earlier program.
constexpr std::chrono::seconds kAttemptLimit{5};

[[noreturn]] void fail_for_rank(const GroupMember& who, int coordinator, const std::string& how) {
  throw RankFailure(list_ranks({coordinator}) + ", which coordinates the start of the group, " + how + where(who) +
                        "\ntry:   look at the end of the output of " + list_ranks({coordinator}),
                    {coordinator});
}

// Follows a coordinator on this host.
class Follower {
 public:
  Follower(const GroupMember& who, int coordinator, const MeetingPlace& place, base::Deadline& deadline)
      : who_(who),
        coordinator_rank_(coordinator),
        place_(place),
        deadline_(deadline),
        own_end_(own_end()),
        layout_(HostLayout::one_host(who.size)),
        peers_(static_cast<std::size_t>(who.size)) {
    peers_[static_cast<std::size_t>(who.rank)].pid = ::getpid();
  }

  // False if nobody listens: the name is of an earlier program.
  bool connect(const std::string& name) {
    try {
      socket_ = connect_locally(name);
      return true;
    } catch (const std::system_error& error) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      if (error.code() == std::errc::connection_refused && !deadline_.passed(Clock::now())) return false;
      fail_for_coordinator(std::string("can't be reached: ") + error.what());
    }
  }

  // Empty at the deadline, after telling the coordinator, so that it does not report this rank as lost.
  std::optional<Meeting> follow() {
    try {
      require_same_user();
      send({Message::Kind::hello, who_.rank, ::getpid(), {}}, own_end_.get());
      if (auto meeting = wait_for_all()) return meeting;
      send({Message::Kind::timed_out, who_.rank, 0, {}}, -1);
      return std::nullopt;
    } catch (const std::system_error& error) {
      fail_for_coordinator(std::string("broke off: ") + error.what());
    }
  }

 private:
  void require_same_user() const {
    if (uid_of_peer(socket_.get()) != ::geteuid())
      throw Error(process_group::list_ranks({coordinator_rank_}) + " belongs to another user" + where(who_));
  }

  void send(const Message& message, int fd) { send_message(socket_.get(), message, fd, deadline_); }

  std::optional<Meeting> wait_for_all() {
    while (!deadline_.passed(Clock::now())) {
      std::array<pollfd, 2> polled{pollfd{socket_.get(), POLLIN, 0},
                                   pollfd{peers_[static_cast<std::size_t>(coordinator_rank_)].pidfd.get(), POLLIN, 0}};
      poll_until(polled, deadline_);
      while (auto message = next_message()) {
        if (auto meeting = take(*message)) return meeting;
      }
      if (is_readable(polled[1])) fail_for_coordinator("ended");
    }
    return std::nullopt;
  }

  std::optional<Message> next_message() {
    try {
      return receive_message(socket_.get());
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception& error) {
      fail_for_coordinator(std::string("broke off: ") + error.what());
    }
  }

  std::optional<Meeting> take(Message& message) {
    switch (message.kind) {
      case Message::Kind::greeting:
      case Message::Kind::peer:
        if (message.rank >= 0 && message.rank < who_.size) {
          peers_[static_cast<std::size_t>(message.rank)] = {message.pid, std::move(message.fd)};
        }
        break;
      case Message::Kind::layout: layout_ = read_layout_file(message.fd.get(), who_.size); break;
      case Message::Kind::complete: return meeting_with(std::move(message.fd));
      case Message::Kind::hello:
      case Message::Kind::timed_out: break;  // not for a follower
    }
    return std::nullopt;
  }

  Meeting meeting_with(base::UniqueFd shared_file) {
    Meeting meeting{std::move(shared_file), {}, layout_, {}};
    for (const int rank : meeting.layout.ranks_of(meeting.layout.host_of(who_.rank))) {
      meeting.peers.push_back(std::move(peers_[static_cast<std::size_t>(rank)]));
    }
    return meeting;
  }

  // The coordinator's own reason goes first, if it published one.
  [[noreturn]] void fail_for_coordinator(const std::string& how) const {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    fail_for_rank(who_, coordinator_rank_, how);
  }

  GroupMember who_;
  int coordinator_rank_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  base::UniqueFd own_end_;
  base::UniqueFd socket_;
  HostLayout layout_;  // one host, unless the coordinator sends another
  std::vector<Peer> peers_;
};

// Follows rank 0 from another host.
class RemoteFollower {
 public:
  RemoteFollower(const GroupMember& who, const MeetingPlace& place, base::Deadline& deadline)
      : who_(who), place_(place), deadline_(deadline) {}

  // Whether rank 0 accepted this rank. If nobody listens, or nobody who knows the secret, the endpoint is of an earlier
  // program.
  bool connect(const CoordinatorEndpoint& endpoint) {
    if (endpoint.tcp.port == 0) fail_for_one_host();
    coordinator_.address = endpoint.tcp.address.empty() ? place_.network.store_address : endpoint.tcp.address;
    coordinator_.hello.purpose = RankHello::Purpose::follower;
    coordinator_.hello.rank = who_.rank;
    coordinator_.hello.size = who_.size;
    put_text(coordinator_.hello.secret, endpoint.secret);
    put_text(coordinator_.hello.group, place_.key_prefix);
    put_text(coordinator_.hello.host, host_identity());
    const auto now = Clock::now();
    base::Deadline attempt = deadline_.part(now, std::min(deadline_.end(), now + kAttemptLimit));
    try {
      coordinator_.socket = connect_tcp({coordinator_.address, endpoint.tcp.port}, coordinator_.hello, attempt);
      char accepted = 0;
      return receive_all(coordinator_.socket.get(), std::as_writable_bytes(std::span(&accepted, 1)), deadline_);
    } catch (const std::system_error&) {
    } catch (const ConnectionLost&) {
    }
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    return false;
  }

  // Empty at the deadline, after telling rank 0, so that it does not report this rank as lost.
  std::optional<HostLayout> receive_layout() {
    std::vector<std::int32_t> host_of(static_cast<std::size_t>(who_.size));
    try {
      if (receive_all(coordinator_.socket.get(), std::as_writable_bytes(std::span(host_of)), deadline_)) {
        return HostLayout({host_of.begin(), host_of.end()});
      }
      const FollowerMessage message{FollowerMessage::Kind::timed_out, 0, {}};
      static_cast<void>(send_some(coordinator_.socket.get(), std::as_bytes(std::span(&message, 1))));
      return std::nullopt;
    } catch (const ConnectionLost&) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      fail_for_rank(who_, 0, "broke off");
    }
  }

  CoordinatorLink take_link() { return std::move(coordinator_); }

 private:
  [[noreturn]] void fail_for_one_host() const {
    throw InvalidArgument(
        "LOCAL_WORLD_SIZE says that all ranks share a host, but rank 0 and this rank can't share memory" + where(who_) +
        "\ntry:   a LOCAL_WORLD_SIZE that counts the ranks of one container or network namespace");
  }

  GroupMember who_;
  MeetingPlace place_;
  base::Deadline& deadline_;
  CoordinatorLink coordinator_;
};

// Ranks that have not registered in the store; empty if the store does not answer.
std::vector<int> missing_in_store(const GroupMember& who, const MeetingPlace& place) {
  std::vector<int> missing;
  try {
    for (int rank = 0; rank < who.size; ++rank) {
      if (place.store.add(here_key(place, rank), 0, Clock::now() + kAskStore) == 0) missing.push_back(rank);
    }
  } catch (const Error&) {
    missing.clear();
  }
  // This rank has registered. If its key is gone, the coordinator has removed all keys, so all ranks were here.
  if (std::find(missing.begin(), missing.end(), who.rank) != missing.end()) missing.clear();
  return missing;
}

// Reads the coordinator's endpoint and connects, until that succeeds. Empty at the deadline.
template <class Connect>
std::optional<CoordinatorEndpoint> find_coordinator(const GroupMember& who, int coordinator, const MeetingPlace& place,
                                                    base::Deadline& deadline, const Connect& connect) {
  LongWait wait(who.rank, who.size, deadline);
  const auto wait_for_endpoint = [&] {
    const auto key = endpoint_key(place, coordinator);
    if (!wait.is_long()) {
      try {
        return place.store.get(key, wait.first_end());
      } catch (const TimeoutError&) {
        if (wait.first_end() == deadline.end()) throw;
      }
    }
    wait.tell(process_group::list_ranks({coordinator}));
    return place.store.get(key, deadline.end());
  };
  for (auto pause = kRetryFirst;; pause = std::min(2 * pause, kRetryMax)) {
    std::string text;
    try {
      text = wait_for_endpoint();
    } catch (const TimeoutError&) {
      return std::nullopt;
    }
    if (text.empty()) {  // the meeting has failed, and the verdict is in the store
      if (const auto verdict = read_verdict(place)) throw_verdict(*verdict);
      fail_for_rank(who, coordinator, "gave up");
    }
    const CoordinatorEndpoint endpoint = decode_endpoint(text);
    if (connect(endpoint)) return endpoint;
    if (deadline.passed(Clock::now())) return std::nullopt;
    base::sleep_until(std::min(deadline.end(), Clock::now() + pause), deadline.cut());
  }
}

// Empty at the deadline.
std::optional<Meeting> follow_meeting(const GroupMember& who, const MeetingPlace& place, base::Deadline& deadline) {
  const std::string identity = host_identity();
  Follower follower(who, 0, place, deadline);
  RemoteFollower remote(who, place, deadline);
  const auto endpoint = find_coordinator(who, 0, place, deadline, [&](const CoordinatorEndpoint& found) {
    return found.identity == identity ? follower.connect(found.socket) : remote.connect(found);
  });
  if (!endpoint) return std::nullopt;
  if (endpoint->identity == identity) return follower.follow();

  auto layout = remote.receive_layout();
  if (!layout) return std::nullopt;
  const int leader = layout->leader_of(layout->host_of(who.rank));
  if (leader == who.rank) {
    return coordinate_host(who, place, std::move(*layout), remote.take_link(), deadline);
  }
  Follower of_leader(who, leader, place, deadline);
  const auto connect = [&](const CoordinatorEndpoint& found) { return of_leader.connect(found.socket); };
  if (!find_coordinator(who, leader, place, deadline, connect)) return std::nullopt;
  return of_leader.follow();
}

}  // namespace

Meeting meet(const GroupMember& member, const MeetingPlace& place, base::Deadline& deadline) {
  place.store.add(here_key(place, member.rank), 1, deadline.end());
  try {
    std::optional<Meeting> meeting =
        member.rank == 0 ? coordinate_meeting(member, place, deadline) : follow_meeting(member, place, deadline);
    if (meeting) {
      meeting->network = place.network;
      return std::move(*meeting);
    }
  } catch (const std::system_error& error) {
    throw Error(std::string("the ranks can't meet: ") + error.what() + where(member) + kLimitsAdvice);
  }
  throw_did_not_join(member, missing_in_store(member, place), deadline);
}

Meeting meet_alone(const MakeSharedFile& make_shared_file) {
  try {
    auto layout = HostLayout::one_host(1);
    Meeting meeting{shared_file_of(make_shared_file, layout, 0), {}, layout, {}};
    meeting.peers.push_back({::getpid(), {}});
    return meeting;
  } catch (const std::system_error& error) {
    throw Error(std::string("no shared memory for a group of one: ") + error.what() + kLimitsAdvice);
  }
}

}  // namespace ddp::core
