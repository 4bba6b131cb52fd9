#include "worker_runtime/agent_link/agent_link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/event_fd.hpp"
#include "base/quiet_thread.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/agent_link/termination.hpp"

namespace ddp::agent_link {

namespace {

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

AgentLink::AgentLink(base::UniqueFd socket) : socket_(std::move(socket)), stop_(base::make_event()) { say_hello(); }

AgentLink::~AgentLink() {
  if (in_forked_child()) {
    if (thread_.joinable()) thread_.detach();  // it is the parent's
    return;
  }
  base::ring(stop_);
  if (thread_.joinable()) thread_.join();
}

// --- what the process says ---

void AgentLink::say(const worker_link::ToAgent& message) {
  if (in_forked_child()) return;  // it does not speak for its parent
  const auto packet = worker_link::encode(message);
  while (::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }  // where the agent is gone, its guardian ends this process
}

void AgentLink::say_hello() { say(hello_); }

void AgentLink::take_seats(bool does) {
  if (in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  start_to_listen();
  hello_.takes_seats = does;
  say_hello();
}

void AgentLink::tell(const Known& known) {
  if (in_forked_child()) return;
  const std::lock_guard lock(news_mutex_);
  const auto message = news_.take(known, ProgressNews::Clock::now());
  if (!message) return;
  const auto packet = worker_link::encode(worker_link::ToAgent(*message));
  // It holds nobody up where the agent stands still: the next message says all that this one does.
  static_cast<void>(::send(socket_.get(), packet.data(), packet.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

// --- rounds and seats ---

void AgentLink::enter(std::uint32_t round, RoundOverHandler over) {
  const std::lock_guard lock(mutex_);
  round_ = round;
  over_ = std::move(over);
  if (last_over_ && last_over_->round == round) over_(last_over_->why);
}

void AgentLink::leave() {
  if (fork_guard_.in_forked_child()) return;
  const std::lock_guard lock(mutex_);
  round_.reset();
  over_ = nullptr;
}

std::map<std::string, std::string> AgentLink::wait_for_seat(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, limit, [&] { return seat_ || end_; }))
    throw TimeoutError(
        "ddprun gave this process no part in a next round within " + std::to_string(limit.count()) +
        " ms\ntry:   look at ddprun's output; ElasticOptions::seat_timeout is to be longer than its join_timeout");
  if (end_) throw AbortedError("the job ends: " + *end_);
  return std::exchange(seat_, std::nullopt)->variables;
}

// --- stops ---

bool AgentLink::begin_round(std::uint32_t round) {
  if (in_forked_child()) return false;
  {
    const std::lock_guard lock(mutex_);
    if (stop_round_ == round) return false;
    stop_round_ = round;
    has_said_stopping_ = false;
    stop_point_.begin_round();
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
    if (stop_round_ != round) return false;
    if (!hello_.takes_stops) take_stops();
  }
  if (!stop_point_.ask(limit)) return false;
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_said_stopping_, true)) say(worker_link::Stopping{round});
  return true;
}

// These with the mutex held.
void AgentLink::take_stops() {
  start_to_listen();
  keep_sigterm();  // before the agent relies on it
  hello_.takes_stops = true;
  say_hello();
  answer_stop();
}

// A question that came before the process had a group of its round, or asked should_stop(), is answered then.
void AgentLink::answer_stop() {
  if (!last_prepare_ || stop_round_ != last_prepare_->round || !hello_.takes_stops) return;
  say(worker_link::StopReady{last_prepare_->round, stop_point_.prepare()});
}

// --- what the agent says ---

// With the mutex held. What has come before is read then.
void AgentLink::start_to_listen() {
  if (thread_.joinable()) return;
  try {
    thread_ = base::start_quiet_thread([this] { listen(); });
  } catch (const std::system_error& error) {
    throw Error(std::string("no thread that listens to ddprun: ") + error.what() +
                "\ntry:   a higher limit (ulimit -u)");
  }
}

void AgentLink::listen() {
  pollfd polled[] = {{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
  while (true) {
    if (::poll(polled, 2, -1) < 0) continue;  // EINTR, the only error there can be
    if (polled[1].revents != 0) return;
    if (polled[0].revents != 0 && !read()) polled[0].fd = -1;  // nobody is there any more
  }
}

// Whether there is more to come.
bool AgentLink::read() {
  std::vector<char> packet(worker_link::kPacketBytesMax);
  const auto length = ::recv(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  const std::lock_guard lock(mutex_);
  if (length <= 0) {
    lose();
    return false;
  }
  if (const auto message = worker_link::parse_to_worker({packet.data(), static_cast<std::size_t>(length)}))
    std::visit([this](const auto& content) { take(content); }, *message);  // of a later version: passed over
  return true;
}

// These with the mutex held.
void AgentLink::lose() {
  if (!end_) end_ = "ddprun has ended, or does not listen to this process any more";
  changed_.notify_all();
  stop_point_.give_up();
  sigterm_is_meant();  // nobody is left who would say so
}

void AgentLink::take(const worker_link::RoundOver& message) {
  last_over_ = message;
  if (stop_round_ == message.round) stop_point_.give_up();
  if (round_ == message.round) over_(message.why);
}

void AgentLink::take(const worker_link::Seat& message) {
  seat_ = message;
  changed_.notify_all();
}

void AgentLink::take(const worker_link::Stop& message) {
  end_ = message.why.empty() ? "it was stopped" : message.why;
  changed_.notify_all();
  stop_point_.give_up();
  sigterm_is_meant();
}

void AgentLink::take(const worker_link::PrepareStop& message) {
  last_prepare_ = message;
  answer_stop();
}

void AgentLink::take(const worker_link::StopAt& message) {
  if (stop_round_ == message.round) stop_point_.decide(message.call);
}

}  // namespace ddp::agent_link
