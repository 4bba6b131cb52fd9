#include "worker_runtime/agent_link/agent_link.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>
#include <variant>

#include "worker_runtime/agent_link/termination.hpp"

namespace ddp::agent_link {

namespace {

// Says whether at least half of what the socket can hold unread is free.
bool is_half_free(int socket) {
  int unread = 0, room = 0;
  socklen_t length = sizeof room;
  return ::ioctl(socket, SIOCOUTQ, &unread) == 0 && ::getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &length) == 0 &&
         unread <= room / 2;
}

// "<descriptor>:<inode>"
struct Named {
  int descriptor = -1;
  std::uint64_t inode = 0;
};

std::optional<Named> parse(const std::string& text) {
  Named out;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, out.descriptor);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != ':' || out.descriptor < 0) return {};
  const auto second = std::from_chars(first.ptr + 1, end, out.inode);
  return second.ec == std::errc{} && second.ptr == end ? std::optional(out) : std::nullopt;
}

}  // namespace

base::UniqueFd take_inherited_socket(const std::string& text) {
  const auto named = parse(text);
  struct stat status {};
  if (!named || ::fstat(named->descriptor, &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode) || status.st_ino != named->inode) return {};
  // A copy: the one that was inherited may be needed again, and only what is named in the environment is known to be
  // ours.
  ::fcntl(named->descriptor, F_SETFD, FD_CLOEXEC);
  return base::UniqueFd(::fcntl(named->descriptor, F_DUPFD_CLOEXEC, 3));
}

AgentLink::AgentLink(base::UniqueFd socket)
    : socket_(std::move(socket)),
      listener_(socket_.get(), fork_guard_, [this](std::string_view packet) { hear(packet); }) {
  send(hello_);
}

// --- what the process says ---

void AgentLink::send(const worker_link::FromWorker& message) {
  if (in_forked_child()) return;  // it does not speak for its parent
  const auto packet = worker_link::encode(message);
  // Where the agent is gone, its guardian ends this process. An agent that stands still holds nobody up: the messages
  // that must arrive are few, and tell() leaves half of the socket to them.
  while (::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) {
  }
}

void AgentLink::take_seats(bool does) {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  listener_.start();
  const std::lock_guard hello_lock(hello_mutex_);
  hello_.takes_seats = does;
  send(hello_);
}

void AgentLink::depart(const worker_link::Departure& departure) {
  using Kind = worker_link::Departure::Kind;
  if (in_forked_child()) return;
  const std::lock_guard lock(hello_mutex_);
  const auto& before = hello_.departure;
  if (before && before->round == departure.round &&
      (before->kind != Kind::in_order || departure.kind == Kind::in_order))
    return;
  hello_.departure = departure;
  for (auto* ranks : {&hello_.departure->ranks, &hello_.departure->unreached, &hello_.departure->hung_ranks})
    if (ranks->size() > worker_link::kRanksMax) ranks->resize(worker_link::kRanksMax);
  send(hello_);
}

void AgentLink::tell(const Known& known) {
  if (in_forked_child()) return;
  const std::lock_guard lock(news_mutex_);
  if (!is_half_free(socket_.get())) return;  // the next message says all that this one would
  const auto message = news_.take(known, ProgressNews::Clock::now());
  if (!message) return;
  const auto packet = worker_link::encode(worker_link::FromWorker(*message));
  static_cast<void>(::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

// --- rounds and seats ---

void AgentLink::enter(std::uint32_t round, RoundOverHandler over) { seats_.enter(round, std::move(over)); }

void AgentLink::leave() {
  if (!in_forked_child()) seats_.leave();
}

std::map<std::string, std::string> AgentLink::wait_for_seat(std::chrono::milliseconds limit) {
  return seats_.wait(limit);
}

// --- stops ---

bool AgentLink::begin_round(std::uint32_t round) {
  if (in_forked_child()) return false;
  {
    const std::lock_guard lock(hello_mutex_);
    if (std::exchange(hello_.departure, {})) send(hello_);
  }
  {
    const std::lock_guard lock(mutex_);
    if (!stops_.begin_round(round)) return false;
    answer_stop();
  }
  const std::lock_guard lock(news_mutex_);
  news_.begin_round(round);
  return true;
}

bool AgentLink::should_stop(std::uint32_t round, std::chrono::milliseconds limit) {
  if (in_forked_child()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!stops_.is_in(round)) return false;
    if (!takes_stops_) take_stops();
  }
  if (!stops_.ask(limit)) return false;
  const std::lock_guard lock(mutex_);
  if (stops_.is_first_stop()) send(worker_link::LinkStopping{round});
  return true;
}

// These with the mutex held.
void AgentLink::take_stops() {
  listener_.start();
  keep_sigterm();  // before the agent relies on it
  takes_stops_ = true;
  {
    const std::lock_guard hello_lock(hello_mutex_);
    hello_.takes_stops = true;
    send(hello_);
  }
  answer_stop();
}

// A question that came before the process asked should_stop() is answered then.
void AgentLink::answer_stop() {
  if (!takes_stops_) return;
  if (const auto answer = stops_.answer()) send(*answer);
}

// --- what the agent says ---

void AgentLink::hear(std::string_view packet) {
  const std::lock_guard lock(mutex_);
  if (packet.empty()) return lose();
  if (const auto message = worker_link::parse_to_worker(packet))
    std::visit([this](const auto& content) { take(content); }, *message);  // of a later version: passed over
}

// These with the mutex held.
void AgentLink::lose() {
  seats_.lose_agent();
  stops_.give_up();
  sigterm_is_meant();  // nobody is left who would say so
}

void AgentLink::take(const worker_link::LinkRoundOver& message) {
  stops_.take(message);
  seats_.take(message);
}

void AgentLink::take(const worker_link::LinkSeat& message) { seats_.take(message); }

void AgentLink::take(const worker_link::LinkStop& message) {
  seats_.take(message);
  stops_.give_up();
  sigterm_is_meant();
}

void AgentLink::take(const worker_link::LinkPrepareStop& message) {
  stops_.take(message);
  answer_stop();
}

void AgentLink::take(const worker_link::LinkStopAt& message) { stops_.take(message); }

}  // namespace ddp::agent_link
