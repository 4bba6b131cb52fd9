#include "worker_runtime/core/bootstrap/meeting.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "rendezvous/io/cut.hpp"
#include "worker_runtime/core/bootstrap/meeting_holder.hpp"
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

constexpr std::chrono::milliseconds kKnockAgainFirst{5};  // after a refusal; doubles
constexpr std::chrono::milliseconds kKnockAgainMax{500};
// Of reaching rank 0's host, whose address may be of an earlier program.
constexpr std::chrono::seconds kAttemptLimit{5};

[[noreturn]] void fail_for_rank(const Membership& who, int holder, const std::string& how) {
  throw RankFailure(list_ranks({holder}) + ", which holds the meeting, " + how + where(who) +
                        "\ntry:   look at the end of the output of " + list_ranks({holder}),
                    {holder});
}

// At the door of a holder on this host.
class Guest {
 public:
  Guest(const Membership& who, int holder, const MeetingPlace& place, io::Deadline& deadline)
      : who_(who),
        holder_(holder),
        place_(place),
        deadline_(deadline),
        own_end_(own_end()),
        layout_(HostLayout::one_host(who.size)),
        peers_(static_cast<std::size_t>(who.size)) {
    peers_[static_cast<std::size_t>(who.rank)].pid = ::getpid();
  }

  // Whether there was a door to go through. A name without one is of an earlier program.
  bool knock(const std::string& name) {
    try {
      socket_ = connect_locally(name);
      return true;
    } catch (const std::system_error& error) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      if (error.code() == std::errc::connection_refused && !deadline_.passed(Clock::now())) return false;
      fail_for_holder(std::string("can't be reached: ") + error.what());
    }
  }

  // Empty at the deadline, after telling the holder, which then knows better than to think this rank lost.
  std::optional<Meeting> attend() {
    try {
      require_same_user();
      say({Message::Kind::hello, who_.rank, ::getpid(), {}}, own_end_.get());
      if (auto meeting = wait_for_the_others()) return meeting;
      say({Message::Kind::timed_out, who_.rank, 0, {}}, -1);
      return std::nullopt;
    } catch (const std::system_error& error) {
      fail_for_holder(std::string("broke off: ") + error.what());
    }
  }

 private:
  void require_same_user() const {
    if (uid_of_peer(socket_.get()) != ::geteuid())
      throw Error(process_group::list_ranks({holder_}) + " belongs to another user" + where(who_));
  }

  void say(const Message& message, int fd) { send_message(socket_.get(), message, fd, deadline_); }

  std::optional<Meeting> wait_for_the_others() {
    while (!deadline_.passed(Clock::now())) {
      std::array<pollfd, 2> polled{pollfd{socket_.get(), POLLIN, 0},
                                   pollfd{peers_[static_cast<std::size_t>(holder_)].pidfd.get(), POLLIN, 0}};
      poll_until(polled, deadline_);
      while (auto message = next_message()) {
        if (auto meeting = take(*message)) return meeting;
      }
      if (is_readable(polled[1])) fail_for_holder("ended");
    }
    return std::nullopt;
  }

  std::optional<Message> next_message() {
    try {
      return receive_message(socket_.get());
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception& error) {
      fail_for_holder(std::string("broke off: ") + error.what());
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
      case Message::Kind::timed_out: break;  // not for a guest
    }
    return std::nullopt;
  }

  Meeting meeting_with(io::UniqueFd shared_file) {
    Meeting meeting{std::move(shared_file), {}, layout_, {}};
    for (const int rank : meeting.layout.ranks_of(meeting.layout.host_of(who_.rank))) {
      meeting.peers.push_back(std::move(peers_[static_cast<std::size_t>(rank)]));
    }
    return meeting;
  }

  // Whatever becomes of the holder, it may have said why.
  [[noreturn]] void fail_for_holder(const std::string& how) const {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    fail_for_rank(who_, holder_, how);
  }

  Membership who_;
  int holder_;
  MeetingPlace place_;
  io::Deadline& deadline_;
  io::UniqueFd own_end_;
  io::UniqueFd socket_;
  HostLayout layout_;  // of a group on several hosts the holder tells it
  std::vector<Peer> peers_;
};

// At the door of rank 0 on another host.
class GuestFromAfar {
 public:
  GuestFromAfar(const Membership& who, const MeetingPlace& place, io::Deadline& deadline)
      : who_(who), place_(place), deadline_(deadline) {}

  // Whether rank 0 let this rank in. Nobody there, or nobody who knows the secret: an earlier program's door.
  bool knock(const Door& door) {
    if (door.endpoint.port == 0) fail_for_one_host();
    chair_.address = door.endpoint.address.empty() ? place_.network.store_address : door.endpoint.address;
    chair_.hello.purpose = Hello::Purpose::guest;
    chair_.hello.rank = who_.rank;
    chair_.hello.size = who_.size;
    put_text(chair_.hello.secret, door.secret);
    put_text(chair_.hello.group, place_.key_prefix);
    put_text(chair_.hello.host, host_identity());
    const auto now = Clock::now();
    io::Deadline attempt = deadline_.part(now, std::min(deadline_.end(), now + kAttemptLimit));
    try {
      chair_.socket = connect_tcp({chair_.address, door.endpoint.port}, chair_.hello, attempt);
      char welcome = 0;
      return receive_all(chair_.socket.get(), std::as_writable_bytes(std::span(&welcome, 1)), deadline_);
    } catch (const std::system_error&) {
    } catch (const ConnectionLost&) {
    }
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    return false;
  }

  // Empty at the deadline, after telling rank 0, which then knows better than to think this rank lost.
  std::optional<HostLayout> hear_layout() {
    std::vector<std::int32_t> host_of(static_cast<std::size_t>(who_.size));
    try {
      if (receive_all(chair_.socket.get(), std::as_writable_bytes(std::span(host_of)), deadline_)) {
        return HostLayout({host_of.begin(), host_of.end()});
      }
      const GuestWord word{GuestWord::Kind::timed_out, 0, {}};
      static_cast<void>(send_some(chair_.socket.get(), std::as_bytes(std::span(&word, 1))));
      return std::nullopt;
    } catch (const ConnectionLost&) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      fail_for_rank(who_, 0, "broke off");
    }
  }

  Chair take_chair() { return std::move(chair_); }

 private:
  [[noreturn]] void fail_for_one_host() const {
    throw InvalidArgument(
        "LOCAL_WORLD_SIZE says that all ranks share a host, but rank 0 and this rank can't share memory" + where(who_) +
        "\ntry:   a LOCAL_WORLD_SIZE that counts the ranks of one container or network namespace");
  }

  Membership who_;
  MeetingPlace place_;
  io::Deadline& deadline_;
  Chair chair_;
};

// Ranks that never told the store that they are here; empty if the store does not answer.
std::vector<int> missing_in_store(const Membership& who, const MeetingPlace& place) {
  std::vector<int> missing;
  try {
    for (int rank = 0; rank < who.size; ++rank) {
      if (!place.store.check({here_key(place, rank)}, Clock::now() + kAskStore)) missing.push_back(rank);
    }
  } catch (const Error&) {
    missing.clear();
  }
  // This rank has said it: the keys are cleared, and everybody was here.
  if (std::find(missing.begin(), missing.end(), who.rank) != missing.end()) missing.clear();
  return missing;
}

// Tries doors until one opens. Empty at the deadline.
template <class Knock>
std::optional<Door> find_door(const Membership& who, int holder, const MeetingPlace& place, io::Deadline& deadline,
                              const Knock& knock) {
  LongWait wait(who.rank, who.size, deadline);
  const auto wait_for_door = [&] {
    const auto key = door_key(place, holder);
    if (!wait.is_long()) {
      try {
        return place.store.get(key, wait.first_end());
      } catch (const TimeoutError&) {
        if (wait.first_end() == deadline.end()) throw;
      }
    }
    wait.tell(process_group::list_ranks({holder}));
    return place.store.get(key, deadline.end());
  };
  for (auto pause = kKnockAgainFirst;; pause = std::min(2 * pause, kKnockAgainMax)) {
    std::string text;
    try {
      text = wait_for_door();
    } catch (const TimeoutError&) {
      return std::nullopt;
    }
    if (text.empty()) {  // the meeting has failed
      if (const auto verdict = read_verdict(place)) throw_verdict(*verdict);
      fail_for_rank(who, holder, "gave up");
    }
    const Door door = decode_door(text);
    if (knock(door)) return door;
    if (deadline.passed(Clock::now())) return std::nullopt;
    io::sleep_until(std::min(deadline.end(), Clock::now() + pause), deadline.cut());
  }
}

// Empty at the deadline.
std::optional<Meeting> attend_meeting(const Membership& who, const MeetingPlace& place, io::Deadline& deadline) {
  const std::string identity = host_identity();
  Guest guest(who, 0, place, deadline);
  GuestFromAfar from_afar(who, place, deadline);
  const auto door = find_door(who, 0, place, deadline, [&](const Door& found) {
    return found.identity == identity ? guest.knock(found.socket) : from_afar.knock(found);
  });
  if (!door) return std::nullopt;
  if (door->identity == identity) return guest.attend();

  auto layout = from_afar.hear_layout();
  if (!layout) return std::nullopt;
  const int leader = layout->leader_of(layout->host_of(who.rank));
  if (leader == who.rank) {
    return hold_meeting_of_host(who, place, std::move(*layout), from_afar.take_chair(), deadline);
  }
  Guest of_leader(who, leader, place, deadline);
  const auto knock = [&](const Door& found) { return of_leader.knock(found.socket); };
  if (!find_door(who, leader, place, deadline, knock)) return std::nullopt;
  return of_leader.attend();
}

}  // namespace

Meeting meet(const Membership& membership, const MeetingPlace& place, io::Deadline& deadline) {
  place.store.set(here_key(place, membership.rank), "", deadline.end());
  try {
    std::optional<Meeting> meeting =
        membership.rank == 0 ? hold_meeting(membership, place, deadline) : attend_meeting(membership, place, deadline);
    if (meeting) {
      meeting->network = place.network;
      return std::move(*meeting);
    }
  } catch (const std::system_error& error) {
    throw Error(std::string("the ranks can't meet: ") + error.what() + where(membership) + kLimitsAdvice);
  }
  throw_did_not_join(membership, missing_in_store(membership, place), deadline);
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
