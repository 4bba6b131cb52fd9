#include "rendezvous/store/client.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <iterator>
#include <system_error>

#include "base/cut.hpp"
#include "base/host_addresses.hpp"
#include "base/host_and_port.hpp"
#include "base/quiet_thread.hpp"

namespace ddp::store {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kBackoffFirst = 5ms;  // between attempts to connect; doubles
constexpr std::chrono::milliseconds kBackoffMax = 500ms;
constexpr std::chrono::seconds kAttemptLimit = 5s;  // of one connect(), so that a silent address leaves time for others
constexpr std::chrono::seconds kAnswerLimit = 5s;   // at least, for what the store owes at once after a wait
constexpr std::size_t kKeysShownMax = 8;            // in a message

// What the store owes at once after a wait, however little of the wait's own time is left.
base::Deadline answer_deadline_after(const base::Deadline& wait) {
  const auto now = Clock::now();
  return wait.part(now, std::max(wait.end(), now + kAnswerLimit));
}

std::string milliseconds_text(const base::Deadline& deadline) {
  return std::to_string(deadline.full_time().count()) + " ms";
}

std::string list_text(const std::vector<std::string>& keys) {
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kKeysShownMax); ++i) {
    text += (i == 0 ? "" : ", ") + key_text(keys[i]);
  }
  if (keys.size() > kKeysShownMax) text += " and " + std::to_string(keys.size() - kKeysShownMax) + " more";
  return text;
}

void require_key(std::string_view key) {
  if (key.size() <= kKeyBytesMax) return;
  throw InvalidArgument("the key " + key_text(key) + " has " + std::to_string(key.size()) +
                        " bytes; the store takes keys of at most " + std::to_string(kKeyBytesMax));
}

void require_value(std::string_view key, std::string_view value) {
  if (value.size() <= kValueBytesMax) return;
  throw InvalidArgument("the value for key " + key_text(key) + " has " + std::to_string(value.size()) +
                        " bytes; the store takes values of at most " + std::to_string(kValueBytesMax));
}

void require_list(std::size_t count, std::size_t bytes) {
  if (count <= kListCountMax && bytes <= kMessageBytesMax) return;
  throw InvalidArgument(std::to_string(count) + " keys of " + std::to_string(bytes) +
                        " bytes are too many at once; the store takes at most " + std::to_string(kListCountMax) +
                        " keys of together " + std::to_string(kMessageBytesMax) + " bytes");
}

void require_keys(const std::vector<std::string>& keys) {
  std::size_t bytes = 9;
  for (const auto& key : keys) {
    require_key(key);
    bytes += 8 + key.size();
  }
  require_list(keys.size(), bytes);
}

void require_entries(const std::vector<KeyValue>& entries) {
  std::size_t bytes = 9;
  for (const auto& [key, value] : entries) {
    require_key(key);
    require_value(key, value);
    bytes += 16 + key.size() + value.size();
  }
  require_list(entries.size(), bytes);
}

// A resolver can take longer than any deadline, and can't be interrupted: it runs in a thread of its own, which is left
// to itself when the deadline passes. A numeric address needs neither.
base::SocketAddresses resolve(const std::string& host, std::uint16_t port, TimePoint until) {
  if (auto numeric = base::look_up(host, port, AI_NUMERICHOST); numeric.error.empty()) return numeric;
  std::promise<base::SocketAddresses> promise;
  auto answer = promise.get_future();
  try {
    base::start_quiet_thread([promise = std::move(promise), host, port]() mutable {
      promise.set_value(base::look_up(host, port));
    }).detach();
  } catch (const std::system_error& error) {
    return {{}, std::string("no thread to look up the host in: ") + error.what()};
  }
  if (answer.wait_until(until) == std::future_status::ready) return answer.get();
  return {{}, "the resolver has not answered"};
}

int wait_for(int fd, short events, base::Deadline& deadline) {  // 0 at the deadline, -1 with errno
  while (true) {
    base::Cut* const cut = deadline.cut();
    pollfd entries[] = {{fd, events, 0}, {cut == nullptr ? -1 : cut->descriptor(), POLLIN, 0}};
    const int count = ::poll(entries, std::size(entries), deadline.poll_timeout_ms(Clock::now()));
    if (cut != nullptr) cut->throw_if_cut();
    if (count > 0) return 1;
    if (count < 0 && errno != EINTR) return -1;
    if (deadline.passed(Clock::now())) return 0;
  }
}

// With nobody listening, a port from the range that clients get theirs from can be given to this very socket, which
// then is connected to itself.
bool is_connected_to_itself(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_length) != 0) return false;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_length) != 0) return false;
  return here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

struct Attempt {
  base::UniqueFd socket;  // empty where it failed
  std::string reason;     // why
};

Attempt connect_to(const sockaddr_storage& address, base::Deadline deadline) {
  base::UniqueFd socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {{}, std::strerror(errno)};
  const socklen_t address_length = address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), address_length) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return {{}, std::strerror(errno)};
    const int ready = wait_for(socket.get(), POLLOUT, deadline);
    if (ready == 0) return {{}, "no answer within " + milliseconds_text(deadline)};
    int error = ready < 0 ? errno : 0;
    socklen_t length = sizeof error;
    if (ready > 0) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return {{}, std::strerror(error)};
  }
  if (is_connected_to_itself(socket.get())) return {{}, std::strerror(ECONNREFUSED)};
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {std::move(socket), ""};
}

// The peer hung up during the handshake: worth another try, unlike a peer that answers nonsense.
struct HungUp {
  std::string reason;
};

}  // namespace

Client Client::connect(const ClientOptions& options) {
  if (options.host.empty() || options.port == 0) {
    throw InvalidArgument("the store's host or port is missing: \"" + options.host + "\", " +
                          std::to_string(options.port));
  }
  const std::string peer = base::host_and_port(options.host, options.port);
  base::Deadline deadline(Clock::now(), options.deadline);
  deadline.cut_by(options.cut);
  std::string reason = "no time left to try";
  for (auto backoff = kBackoffFirst; !deadline.passed(Clock::now()); backoff = std::min(2 * backoff, kBackoffMax)) {
    const auto resolved = resolve(options.host, options.port, deadline.end());
    if (!resolved.error.empty()) reason = resolved.error;
    for (const auto& address : resolved.addresses) {
      const auto now = Clock::now();
      auto attempt = connect_to(address, deadline.part(now, std::min(deadline.end(), now + kAttemptLimit)));
      if (!attempt.socket) {
        reason = attempt.reason;
        continue;
      }
      Client client(std::move(attempt.socket), peer, options.cut);
      try {
        client.handshake(deadline);
        return client;
      } catch (const HungUp& hung_up) {
        reason = hung_up.reason;
      }
    }
    if (options.tries_once) throw StoreError(reason);
    base::sleep_until(std::min(deadline.end(), Clock::now() + backoff), options.cut);
  }
  throw TimeoutError("no connection to the store at " + peer + " within " + milliseconds_text(deadline) +
                     " (last: " + reason + "); check that the host is right and that this one can reach that port");
}

base::Deadline Client::deadline_at(TimePoint end) const {
  base::Deadline deadline(Clock::now(), end);
  deadline.cut_by(cut_);
  return deadline;
}

// What the two tell is that the peer speaks this protocol, and of this version.
void Client::handshake(base::Deadline& deadline) {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  std::uint32_t answer = 0;
  try {
    send(command::Validate{}, deadline);
    send(command::Ping{nonce}, deadline);
    char bytes[sizeof answer];
    receive(bytes, sizeof bytes, deadline);
    answer = decode_u32({bytes, sizeof bytes});
  } catch (const StoreError&) {
    throw HungUp{
        "it hung up during the handshake: no store, or one that refuses this host, see DDPRUN_STORE_ALLOW "
        "(--store-allow)"};
  }
  if (answer != nonce) fail("the answer to the handshake is wrong, so there is no PyTorch-compatible store");
}

void Client::set(std::string_view key, std::string_view value, TimePoint until) {
  require_key(key);
  require_value(key, value);
  auto deadline = deadline_at(until);
  send(command::Set{std::string(key), std::string(value)}, deadline);
}

std::string Client::get(std::string_view key, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  wait_for_keys({std::string(key)}, deadline);
  auto answer_deadline = answer_deadline_after(deadline);
  send(command::Get{std::string(key)}, answer_deadline);
  return receive_value(answer_deadline);
}

std::int64_t Client::add(std::string_view key, std::int64_t delta, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  send(command::Add{std::string(key), delta}, deadline);
  return receive_integer(deadline);
}

void Client::wait(const std::vector<std::string>& keys, TimePoint until) {
  require_keys(keys);
  if (keys.empty()) return;  // the reference's server reads the first of an empty list
  auto deadline = deadline_at(until);
  wait_for_keys(keys, deadline);
}

void Client::wait_for_keys(const std::vector<std::string>& keys, base::Deadline& deadline) {
  send(command::Wait{keys}, deadline);
  if (is_released(deadline)) return;
  throw TimeoutError("waited " + milliseconds_text(deadline) + " for " + list_text(keys) + " in the store at " + peer_ +
                     "; the rank that sets it may have failed or not got there");
}

bool Client::wait_unless(std::string_view key, int wake) {
  require_key(key);
  auto deadline = deadline_at(Clock::now() + kAnswerLimit);
  send(command::Wait{{std::string(key)}}, deadline);
  pollfd entries[] = {
      {socket_.get(), POLLIN, 0}, {wake, POLLIN, 0}, {cut_ == nullptr ? -1 : cut_->descriptor(), POLLIN, 0}};
  while (::poll(entries, std::size(entries), -1) < 0) {
    if (errno != EINTR) fail(std::strerror(errno));
  }
  if (cut_ != nullptr) cut_->throw_if_cut();
  if (entries[0].revents == 0) {
    cancel_wait();
    return false;
  }
  auto answer_deadline = deadline_at(Clock::now() + kAnswerLimit);
  if (const char answer = receive_byte(answer_deadline); answer != kWaitFulfilled) {
    fail("it answered " + std::to_string(answer) + " to a wait");
  }
  return true;
}

// Waits for the answer to a WAIT or BARRIER; false, with the wait cancelled, where it has not come by the deadline.
bool Client::is_released(base::Deadline& deadline) {
  const int ready = wait_for(socket_.get(), POLLIN, deadline);
  if (ready < 0) fail(std::strerror(errno));
  if (ready == 0) {
    cancel_wait();
    return false;
  }
  if (const char answer = receive_byte(deadline); answer != kWaitFulfilled) {
    fail("it answered " + std::to_string(answer) + " to a wait");
  }
  return true;
}

// Reads up to the answer of CANCEL_WAIT. The wait's own may come before it; the keys came too late all the same.
void Client::cancel_wait() {
  auto deadline = deadline_at(Clock::now() + kAnswerLimit);
  send(command::CancelWait{}, deadline);
  while (true) {
    const char answer = receive_byte(deadline);
    if (answer == kWaitCancelled) return;
    if (answer != kWaitFulfilled) fail("it answered " + std::to_string(answer) + " to the end of a wait");
  }
}

bool Client::check(const std::vector<std::string>& keys, TimePoint until) {
  require_keys(keys);
  if (keys.empty()) return true;
  auto deadline = deadline_at(until);
  send(command::Check{keys}, deadline);
  const char answer = receive_byte(deadline);
  if (answer != kReady && answer != kNotReady) fail("it answered " + std::to_string(answer) + " to a check");
  return answer == kReady;
}

std::string Client::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                TimePoint until) {
  require_key(key);
  require_value(key, expected);
  require_value(key, desired);
  auto deadline = deadline_at(until);
  send(command::CompareSet{std::string(key), std::string(expected), std::string(desired)}, deadline);
  return receive_value(deadline);
}

bool Client::remove(std::string_view key, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  send(command::Remove{std::string(key)}, deadline);
  return receive_integer(deadline) > 0;
}

std::int64_t Client::key_count(TimePoint until) {
  auto deadline = deadline_at(until);
  send(command::KeyCount{}, deadline);
  return receive_integer(deadline);
}

void Client::append(std::string_view key, std::string_view value, TimePoint until) {
  require_key(key);
  require_value(key, value);
  auto deadline = deadline_at(until);
  send(command::Append{std::string(key), std::string(value)}, deadline);
}

std::vector<std::string> Client::multi_get(const std::vector<std::string>& keys, TimePoint until) {
  require_keys(keys);
  if (keys.empty()) return {};
  auto deadline = deadline_at(until);
  wait_for_keys(keys, deadline);
  auto answer_deadline = answer_deadline_after(deadline);
  send(command::MultiGet{keys}, answer_deadline);
  return receive_values(keys.size(), answer_deadline);
}

void Client::multi_set(const std::vector<KeyValue>& entries, TimePoint until) {
  require_entries(entries);
  if (entries.empty()) return;
  auto deadline = deadline_at(until);
  send(command::MultiSet{entries}, deadline);
}

void Client::queue_push(std::string_view key, std::string_view value, TimePoint until) {
  require_key(key);
  require_value(key, value);
  auto deadline = deadline_at(until);
  send(command::QueuePush{std::string(key), std::string(value)}, deadline);
}

std::optional<std::string> Client::queue_pop(std::string_view key, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  wait_for_keys({std::string(key)}, deadline);
  auto answer_deadline = answer_deadline_after(deadline);
  send(command::QueuePop{std::string(key)}, answer_deadline);
  if (receive_integer(answer_deadline) <= 0) return std::nullopt;
  return receive_value(answer_deadline);
}

std::int64_t Client::queue_length(std::string_view key, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  send(command::QueueLength{std::string(key)}, deadline);
  return receive_integer(deadline);
}

std::vector<std::string> Client::list_keys(TimePoint until) {
  auto deadline = deadline_at(until);
  send(command::ListKeys{}, deadline);
  return receive_values(static_cast<std::uint64_t>(receive_integer(deadline)), deadline);
}

void Client::barrier(std::string_view key, std::int64_t size, TimePoint until) {
  require_key(key);
  auto deadline = deadline_at(until);
  send(command::Barrier{std::string(key), size}, deadline);
  if (is_released(deadline)) return;
  throw TimeoutError("waited " + milliseconds_text(deadline) + " in the barrier " + key_text(key) + " of " +
                     std::to_string(size) + " in the store at " + peer_ + "; a rank may have failed or not got there");
}

void Client::send(const Command& command, base::Deadline& deadline) {
  if (!socket_) throw StoreError("the connection to the store at " + peer_ + " was closed by an earlier error");
  const std::string bytes = encode(command);
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket_.get(), &bytes[sent], bytes.size() - sent, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      wait_ready(POLLOUT, deadline);
    } else if (errno != EINTR) {
      fail(std::strerror(errno));
    }
  }
}

void Client::receive(char* bytes, std::size_t count, base::Deadline& deadline) {
  while (count > 0) {
    const ssize_t received = ::recv(socket_.get(), bytes, count, 0);
    if (received > 0) {
      bytes += received;
      count -= static_cast<std::size_t>(received);
    } else if (received == 0) {
      fail("it closed the connection");
    } else if (errno == EAGAIN) {
      wait_ready(POLLIN, deadline);
    } else if (errno != EINTR) {
      fail(std::strerror(errno));
    }
  }
}

char Client::receive_byte(base::Deadline& deadline) {
  char byte = 0;
  receive(&byte, 1, deadline);
  return byte;
}

std::int64_t Client::receive_integer(base::Deadline& deadline) {
  char bytes[8];
  receive(bytes, sizeof bytes, deadline);
  return static_cast<std::int64_t>(decode_u64({bytes, sizeof bytes}));
}

std::string Client::receive_value(base::Deadline& deadline) {
  const auto length = static_cast<std::uint64_t>(receive_integer(deadline));
  if (length > kMessageBytesMax) fail("it announced a value of " + std::to_string(length) + " bytes");
  std::string value(length, '\0');
  receive(value.data(), value.size(), deadline);
  return value;
}

std::vector<std::string> Client::receive_values(std::uint64_t count, base::Deadline& deadline) {
  std::vector<std::string> values;
  std::size_t bytes = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    values.push_back(receive_value(deadline));
    bytes += 8 + values.back().size();
    if (bytes > kMessageBytesMax) fail("its answer is beyond " + std::to_string(kMessageBytesMax) + " bytes");
  }
  return values;
}

// The stream may be mid-message when time is up, so the connection ends there.
void Client::wait_ready(short events, base::Deadline& deadline) {
  const int ready = wait_for(socket_.get(), events, deadline);
  if (ready > 0) return;
  if (ready < 0) fail(std::strerror(errno));
  socket_.reset();
  throw TimeoutError("no answer from the store at " + peer_ + " within " + milliseconds_text(deadline) +
                     "; its host may be down or overloaded");
}

void Client::fail(const std::string& why) {
  socket_.reset();
  throw StoreError("the connection to the store at " + peer_ + " broke: " + why);
}

}  // namespace ddp::store
