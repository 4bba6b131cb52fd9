#include "worker_runtime/cpu_backend/meeting.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <thread>

#include "worker_runtime/cpu_backend/local_socket.hpp"
#include "worker_runtime/cpu_backend/shared_memory.hpp"
#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using process_group::list_ranks;
using process_group::Membership;

constexpr std::chrono::seconds kAskStore{2};              // beside the deadline, for what only makes an error better
constexpr std::chrono::milliseconds kKnockAgainFirst{5};  // after a refusal; doubles
constexpr std::chrono::milliseconds kKnockAgainMax{500};

std::string random_name() {
  std::array<unsigned char, 16> random{};
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  std::string name = "ddp-";
  for (const unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 0xf];
  }
  return name;
}

std::string here_key(const MeetingPlace& place, int rank) { return place.key_prefix + "here/" + std::to_string(rank); }

// Holds the name of rank 0's socket; nothing where the meeting has failed, and the verdict says why.
std::string socket_key(const MeetingPlace& place) { return place.key_prefix + "socket"; }

std::string verdict_key(const MeetingPlace& place) { return place.key_prefix + "verdict"; }

std::string where(const Membership& who) {
  return "\nwhere: the meeting of the process group, rank " + std::to_string(who.rank) + " of " +
         std::to_string(who.size) + ", pid " + std::to_string(::getpid());
}

std::string missing_text(const std::vector<int>& missing, const io::Deadline& deadline) {
  return list_ranks(missing) + " did not come within " + std::to_string(deadline.full_time().count()) + " ms";
}

constexpr const char* kMissingAdvice =
    "\ntry:   look at the output of the missing ranks; a longer InitOptions::timeout helps where they only start late";

constexpr const char* kLimitsAdvice = "\ntry:   compare the limits of this process (`ulimit -a`) with what it uses";

bool is_readable(const pollfd& polled) { return polled.revents != 0; }

// Why the meeting failed, for guests present and late: "lost 1 3\n" and the message of the error.
std::string verdict_of(const std::exception& error) {
  std::string head = "refused";
  std::vector<int> ranks;
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
    head = "timeout";
    ranks = timeout->ranks();
  } else if (const auto* failure = dynamic_cast<const RankFailure*>(&error)) {
    head = "lost";
    ranks = failure->ranks();
  }
  for (const int rank : ranks) head += " " + std::to_string(rank);
  return head + "\n" + error.what();
}

[[noreturn]] void throw_verdict(const std::string& verdict) {
  const std::size_t line = std::min(verdict.find('\n'), verdict.size());
  const std::string text = verdict.substr(std::min(line + 1, verdict.size()));
  std::istringstream head(verdict.substr(0, line));
  std::string kind;
  head >> kind;
  const std::vector<int> ranks{std::istream_iterator<int>(head), {}};
  if (kind == "timeout") throw TimeoutError(text, ranks);
  if (kind == "lost") throw RankFailure(text, ranks);
  throw Error(text);
}

// This rank's own error matters more than one in telling it.
void publish_verdict(const MeetingPlace& place, const std::exception& error) {
  try {
    const auto end = Clock::now() + kAskStore;
    place.store.set(verdict_key(place), verdict_of(error), end);
    place.store.set(socket_key(place), "", end);
  } catch (const Error&) {
    return;
  }
}

std::optional<std::string> read_verdict(const MeetingPlace& place) {
  try {
    const auto end = Clock::now() + kAskStore;
    if (place.store.check({verdict_key(place)}, end)) return place.store.get(verdict_key(place), end);
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

// Rank 0's side.
class Host {
 public:
  Host(const Membership& who, const MeetingPlace& place, io::Deadline& deadline)
      : who_(who),
        place_(place),
        deadline_(deadline),
        name_(random_name()),
        listener_(listen_locally(name_, who.size)),
        own_pidfd_(own_pidfd()),
        peers_(static_cast<std::size_t>(who.size)),
        sockets_(static_cast<std::size_t>(who.size)) {
    peers_[0].pid = ::getpid();
  }

  Meeting hold() {
    place_.store.set(socket_key(place_), name_, deadline_.end());
    while (!missing().empty()) wait_for_events();
    Meeting meeting{SharedMemory::make_file(who_.size), {}};
    for (int guest = 1; guest < who_.size; ++guest) introduce_others_to(guest);
    clear_keys();
    for (int guest = 1; guest < who_.size; ++guest) let_go(guest, meeting.shared_file.get());
    meeting.peers = std::move(peers_);
    return meeting;
  }

 private:
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < who_.size; ++rank) {
      if (!sockets_[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  // Three kinds of things can happen: somebody connects, a stranger says who it is, a guest is lost.
  void wait_for_events() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const auto& stranger : strangers_) polled.push_back({stranger.get(), POLLIN, 0});
    const std::size_t guests_from = polled.size();
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      polled.push_back({peers_[rank].pidfd.get(), POLLIN, 0});
      polled.push_back({sockets_[rank].get(), POLLIN, 0});  // guests say only one thing more, or hang up
    }
    poll_until(polled, deadline_);

    std::vector<int> lost;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      const pollfd* const of_guest = &polled[guests_from + 2 * (rank - 1)];
      if (is_readable(of_guest[1]) && has_timed_out(sockets_[rank].get())) fail_for_missing();
      if (is_readable(of_guest[0]) || is_readable(of_guest[1])) lost.push_back(static_cast<int>(rank));
    }
    if (!lost.empty()) fail_for_lost(lost);

    std::vector<io::UniqueFd> silent;
    for (std::size_t i = 0; i < strangers_.size(); ++i) {
      if (!is_readable(polled[1 + i]) || !listen_to(strangers_[i])) silent.push_back(std::move(strangers_[i]));
    }
    strangers_ = std::move(silent);
    if (is_readable(polled[0])) {
      while (auto socket = accept_locally(listener_.get())) strangers_.push_back(std::move(socket));
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
    if (hello->kind != Message::Kind::hello || !hello->fd || hello->rank < 1 || hello->rank >= who_.size) return true;
    welcome(*hello, std::move(socket));
    return true;
  }

  void welcome(Message& hello, io::UniqueFd socket) {
    const auto rank = static_cast<std::size_t>(hello.rank);
    if (sockets_[rank]) {
      strangers_.push_back(std::move(socket));  // open until the verdict can be read
      throw InvalidArgument("two processes say that they are rank " + std::to_string(hello.rank) + ": pids " +
                            std::to_string(peers_[rank].pid) + " and " + std::to_string(hello.pid) + where(who_) +
                            "\ntry:   give every process a RANK of its own");
    }
    peers_[rank] = {hello.pid, std::move(hello.fd)};
    sockets_[rank] = std::move(socket);
    const bool is_there = tell(hello.rank, {Message::Kind::greeting, 0, peers_[0].pid, {}}, own_pidfd_.get());
    if (!is_there) fail_for_lost({hello.rank});
  }

  void introduce_others_to(int guest) {
    for (int rank = 1; rank < who_.size; ++rank) {
      if (rank == guest) continue;
      const Peer& peer = peers_[static_cast<std::size_t>(rank)];
      const bool is_there = tell(guest, {Message::Kind::peer, rank, peer.pid, {}}, peer.pidfd.get());
      if (!is_there) fail_for_lost({guest});
    }
  }

  // The group notices one that is lost from here on: some may be in it already.
  void let_go(int guest, int shared_file) { tell(guest, {Message::Kind::complete, 0, peers_[0].pid, {}}, shared_file); }

  // Whether the guest was there to be told.
  bool tell(int guest, const Message& message, int fd) {
    try {
      send_message(sockets_[static_cast<std::size_t>(guest)].get(), message, fd, deadline_);
      return true;
    } catch (const std::system_error& error) {
      if (error.code() == std::errc::broken_pipe || error.code() == std::errc::connection_reset) return false;
      throw;
    }
  }

  // Another program may meet under the same keys once these processes have ended, in the same worker.
  void clear_keys() {
    place_.store.remove(socket_key(place_), deadline_.end());
    place_.store.remove(verdict_key(place_), deadline_.end());
    for (int rank = 0; rank < who_.size; ++rank) place_.store.remove(here_key(place_, rank), deadline_.end());
  }

  [[noreturn]] void fail_for_lost(const std::vector<int>& lost) const {
    throw RankFailure(list_ranks(lost) + " ended before all ranks had met" + where(who_) +
                          "\ntry:   look at the end of the output of " + list_ranks(lost),
                      lost);
  }

  [[noreturn]] void fail_for_missing() const {
    throw TimeoutError(missing_text(missing(), deadline_) + where(who_) + kMissingAdvice, missing());
  }

  Membership who_;
  MeetingPlace place_;
  io::Deadline& deadline_;
  std::string name_;
  io::UniqueFd listener_;
  io::UniqueFd own_pidfd_;
  std::vector<Peer> peers_;              // by rank; those who have come
  std::vector<io::UniqueFd> sockets_;    // by rank
  std::vector<io::UniqueFd> strangers_;  // connected, but have not said who they are
};

Meeting hold_meeting(const Membership& who, const MeetingPlace& place, io::Deadline& deadline) {
  std::optional<Host> host;  // its sockets close after the verdict is out, which sends the guests to read it
  try {
    return host.emplace(who, place, deadline).hold();
  } catch (const std::exception& error) {
    publish_verdict(place, error);
    throw;
  }
}

// Every other rank's side.
class Guest {
 public:
  Guest(const Membership& who, const MeetingPlace& place, io::Deadline& deadline)
      : who_(who),
        place_(place),
        deadline_(deadline),
        own_pidfd_(own_pidfd()),
        peers_(static_cast<std::size_t>(who.size)) {
    peers_[static_cast<std::size_t>(who.rank)].pid = ::getpid();
  }

  // Whether there was a door to go through. A name without one is that of a host that failed, or of an earlier program.
  bool knock(const std::string& name) {
    if (name.empty()) fail_for_host("closed its door");
    try {
      socket_ = connect_locally(name);
      return true;
    } catch (const std::system_error& error) {
      if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
      if (error.code() == std::errc::connection_refused && !deadline_.passed(Clock::now())) return false;
      fail_for_host(std::string("can't be reached: ") + error.what());
    }
  }

  // Empty at the deadline, after telling the host, which then knows better than to think this rank lost.
  std::optional<Meeting> attend() {
    try {
      require_same_user();
      say({Message::Kind::hello, who_.rank, ::getpid(), {}}, own_pidfd_.get());
      if (auto meeting = wait_for_the_others()) return meeting;
      say({Message::Kind::timed_out, who_.rank, 0, {}}, -1);
      return std::nullopt;
    } catch (const std::system_error& error) {
      fail_for_host(std::string("broke off: ") + error.what());
    }
  }

 private:
  void require_same_user() const {
    if (uid_of_peer(socket_.get()) != ::geteuid()) throw Error("rank 0 belongs to another user" + where(who_));
  }

  void say(const Message& message, int fd) { send_message(socket_.get(), message, fd, deadline_); }

  std::optional<Meeting> wait_for_the_others() {
    while (!deadline_.passed(Clock::now())) {
      std::array<pollfd, 2> polled{pollfd{socket_.get(), POLLIN, 0}, pollfd{peers_[0].pidfd.get(), POLLIN, 0}};
      poll_until(polled, deadline_);
      while (auto message = next_message()) {
        if (auto meeting = take(*message)) return meeting;
      }
      if (is_readable(polled[1])) fail_for_host("ended");
    }
    return std::nullopt;
  }

  std::optional<Message> next_message() {
    try {
      return receive_message(socket_.get());
    } catch (const NoDescriptorLeft&) {
      throw;
    } catch (const std::exception& error) {
      fail_for_host(std::string("broke off: ") + error.what());
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
      case Message::Kind::complete: return Meeting{std::move(message.fd), std::move(peers_)};
      case Message::Kind::hello:
      case Message::Kind::timed_out: break;  // not for a guest
    }
    return std::nullopt;
  }

  // Whatever becomes of the host, it may have said why.
  [[noreturn]] void fail_for_host(const std::string& how) const {
    if (const auto verdict = read_verdict(place_)) throw_verdict(*verdict);
    throw RankFailure(
        "rank 0, which holds the meeting, " + how + where(who_) + "\ntry:   look at the end of the output of rank 0",
        {0});
  }

  Membership who_;
  MeetingPlace place_;
  io::Deadline& deadline_;
  io::UniqueFd own_pidfd_;
  io::UniqueFd socket_;
  std::vector<Peer> peers_;
};

// Those who never told the store that they are here; nobody where the store does not answer.
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

[[noreturn]] void fail_for_missing(const Membership& who, const MeetingPlace& place, const io::Deadline& deadline) {
  const auto missing = missing_in_store(who, place);
  const std::string what = missing.empty()
                               ? "the ranks did not meet within " + std::to_string(deadline.full_time().count()) + " ms"
                               : missing_text(missing, deadline);
  throw TimeoutError(what + where(who) + kMissingAdvice, missing);
}

std::optional<std::string> name_of_host(const MeetingPlace& place, const io::Deadline& deadline) {
  try {
    return place.store.get(socket_key(place), deadline.end());
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
}

// Empty at the deadline.
std::optional<Meeting> attend_meeting(const Membership& who, const MeetingPlace& place, io::Deadline& deadline) {
  Guest guest(who, place, deadline);
  for (auto pause = kKnockAgainFirst;; pause = std::min(2 * pause, kKnockAgainMax)) {
    const auto name = name_of_host(place, deadline);
    if (!name) return std::nullopt;
    if (guest.knock(*name)) return guest.attend();
    std::this_thread::sleep_until(std::min(deadline.end(), Clock::now() + pause));
  }
}

}  // namespace

Meeting meet(const Membership& membership, const MeetingPlace& place, io::Deadline& deadline) {
  place.store.set(here_key(place, membership.rank), "", deadline.end());
  try {
    if (membership.rank == 0) return hold_meeting(membership, place, deadline);
    if (auto meeting = attend_meeting(membership, place, deadline)) return std::move(*meeting);
  } catch (const std::system_error& error) {
    throw Error(std::string("the ranks can't meet: ") + error.what() + where(membership) + kLimitsAdvice);
  }
  fail_for_missing(membership, place, deadline);
}

Meeting meet_alone() {
  try {
    Meeting meeting{SharedMemory::make_file(1), {}};
    meeting.peers.push_back({::getpid(), {}});
    return meeting;
  } catch (const std::system_error& error) {
    throw Error(std::string("no shared memory for a group of one: ") + error.what() + kLimitsAdvice);
  }
}

}  // namespace ddp::cpu_backend
