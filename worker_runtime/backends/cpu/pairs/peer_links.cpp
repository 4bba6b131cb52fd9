#include "worker_runtime/backends/cpu/pairs/peer_links.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "ddp/error.hpp"
#include "rendezvous/io/event_fd.hpp"
#include "rendezvous/io/throw_errno.hpp"
#include "worker_runtime/backends/cpu/hosts/host_links.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using core::connect_tcp;
using core::ConnectionLost;
using core::Endpoint;
using core::expect_signs_of_life;
using core::listen_tcp;
using core::Listener;
using core::poll_until;
using core::put_text;
using core::receive_some;
using core::send_some;
using core::TcpSocket;

constexpr std::chrono::microseconds kTryFor{50};  // then it sleeps, and being woken costs 5 to 10 us
constexpr std::chrono::seconds kSleepMax{5};      // little beside what finding a silent host takes (kSilenceMax)
constexpr int kStepsByLook = 64;                  // while data moves, the clock and the door are looked at now and then

constexpr std::size_t kSecretWords = 3;
constexpr std::size_t kPortWord = 2;  // behind the address, before the secret

using AddressBytes = std::array<std::uint8_t, 16>;

// An IPv4 address as an IPv6 one; zeroes for an empty text, and for one with a scope, as addresses of one link have.
AddressBytes encode_address(const std::string& text) {
  AddressBytes bytes{};
  if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return ::inet_pton(AF_INET, text.c_str(), bytes.data() + 12) == 1 ? bytes : AddressBytes{};
}

std::string decode_address(const AddressBytes& bytes) {
  if (bytes == AddressBytes{}) return "";
  std::array<char, INET6_ADDRSTRLEN> text{};
  in6_addr address{};
  std::memcpy(&address, bytes.data(), bytes.size());
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    ::inet_ntop(AF_INET, bytes.data() + 12, text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, bytes.data(), text.data(), text.size());
  }
  return text.data();
}

// Whether a peer, or the way to it, refuses a connection; else this process does.
bool is_loss(const std::error_code& code) {
  constexpr std::array kLosses{ECONNREFUSED, ECONNRESET, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, EPIPE};
  return std::find(kLosses.begin(), kLosses.end(), code.value()) != kLosses.end();
}

void put_secret(Hello& hello, const PeerLinks::Announcement& of) {
  hello.secret.fill(0);
  std::memcpy(hello.secret.data(), of.data() + kPortWord + 1, kSecretWords * sizeof(std::uint64_t));
}

}  // namespace

// Before the data of a message. A change of it, or of Answer, changes Hello::magic.
struct PeerLinks::Post {
  std::uint64_t number = 0;
  FingerprintWords call{};
};

struct PeerLinks::Answer {
  enum class Word : std::uint32_t { none, taken, mismatch, farewell };
  Word word = Word::none;
  Presence presence = Presence::here;  // of a farewell
  std::uint64_t number = 0;
  FingerprintWords call{};
};

struct PeerLinks::Link {
  TcpSocket out, in;  // opened here, and by the peer
  std::uint64_t sent = 0, received = 0;

  Answer answer;  // the last one but for a farewell
  std::array<std::byte, sizeof(Answer)> heard{};
  std::size_t heard_bytes = 0;  // of the next one
  bool is_lost = false;         // it takes nothing more, or has said farewell
  bool is_over = false;         // nor will anything more come back
  Presence presence = Presence::here;
};

struct PeerLinks::Transfer {
  Fingerprint call;
  int peer = 0;
  std::uint64_t number = 0;     // 0 until it has begun
  Post post;                    // sent, or received
  Answer answer;                // that a receive ends with
  std::array<iovec, 2> rest{};  // what is still to be moved: of a post and of its data, or of an answer
  bool has_met = false;

  bool is_send() const { return call.kind == CollectiveKind::send; }
  bool has_rest() const { return rest[0].iov_len + rest[1].iov_len > 0; }
  void advance(std::size_t bytes) {
    for (iovec& part : rest) {
      const std::size_t now = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + now;
      part.iov_len -= now;
      bytes -= now;
    }
  }
};

PeerLinks::PeerLinks(int rank, int size, const NetworkOptions& network, const std::string& group, Questions questions)
    : rank_(rank),
      questions_(std::move(questions)),
      store_address_(network.store_address),
      announced_(static_cast<std::size_t>(size)),
      links_(static_cast<std::size_t>(size)),
      wake_(io::make_event()) {
  hello_.purpose = Hello::Purpose::pair;
  hello_.rank = rank;
  hello_.size = size;
  put_text(hello_.group, group);
  const auto secret = std::as_writable_bytes(std::span(own_).subspan(kPortWord + 1));
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    io::throw_errno("getrandom");
  }
  try {
    Listener listener = listen_tcp(network);
    const AddressBytes address = encode_address(listener.endpoint.address);
    if (address == AddressBytes{} && !listener.endpoint.address.empty()) {
      throw Error("the address " + listener.endpoint.address + " means something on one link only" +
                  "\ntry:   another interface by DDP_SOCKET_IFNAME, or a store at an address that all hosts know");
    }
    std::memcpy(own_.data(), address.data(), address.size());
    own_[kPortWord] = listener.endpoint.port;
    Hello expected = hello_;
    put_secret(expected, own_);
    listener_ = listener.socket.get();
    acceptor_.emplace(std::move(listener.socket), expected);
  } catch (const Error& error) {
    no_listener_ = error.what();
  }
}

PeerLinks::~PeerLinks() = default;

void PeerLinks::learn(int rank, const Announcement& announcement) {
  announced_[static_cast<std::size_t>(rank)] = announcement;
}

PeerLinks::Link& PeerLinks::link_to(int peer) { return links_[static_cast<std::size_t>(peer)]; }

PairEnd PeerLinks::run(std::span<const Collective> calls, io::Deadline& deadline) {
  const std::lock_guard lock(run_mutex_);
  begin(calls);
  bool is_idle = false;
  Clock::time_point idle_since{};
  for (const std::size_t i : order_.active()) {
    if (end_ || connect(transfers_[i].peer, deadline)) continue;
    deadline.passed(Clock::now()) ? end_waiting(PairEnd::Kind::timed_out) : end_with(PairEnd::Kind::lost, i);
  }
  int moved_count = 0;
  while (!end_ && !order_.active().empty()) {
    if (questions_.must_stop()) {
      end_waiting(PairEnd::Kind::interrupted);
    } else if (advance()) {
      is_idle = false;
      if (++moved_count % kStepsByLook == 0) look_up(deadline);
    } else if (deadline.passed(Clock::now())) {
      end_waiting(PairEnd::Kind::timed_out);
    } else if (!is_idle) {
      is_idle = true;
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since < kTryFor) {
      ::sched_yield();
    } else if (!find_cut_off()) {
      wait(deadline);
    }
  }
  return end_.value_or(PairEnd{});
}

void PeerLinks::begin(std::span<const Collective> calls) {
  end_.reset();
  transfers_.clear();
  std::vector<int> peers;
  for (const Collective& call : calls) {
    peers.push_back(call.root);
    Transfer transfer;
    transfer.call = core::fingerprint_of(call);
    transfer.peer = call.root;
    transfer.rest[1] = transfer.is_send() ? iovec{const_cast<void*>(call.input.data), call.input.bytes()}
                                          : iovec{call.output.data, call.output.bytes()};
    transfers_.push_back(std::move(transfer));
  }
  order_.begin(calls, peers, static_cast<int>(links_.size()));
}

void PeerLinks::require_listeners(int peer) const {
  if (!acceptor_) throw Error("this rank has no port for messages from other hosts: " + no_listener_);
  if (announced_[static_cast<std::size_t>(peer)][kPortWord] != 0) return;
  throw Error("rank " + std::to_string(peer) +
              " has no port for messages from other hosts\ntry:   look at its error in the same call; a wider "
              "DDPRUN_PORT_RANGE");
}

// Whether the peer can be reached. One that is there, if busy, lets the system answer for it.
bool PeerLinks::connect(int peer, io::Deadline& deadline) {
  Link& link = link_to(peer);
  if (link.out) return true;
  const Announcement& announced = announced_[static_cast<std::size_t>(peer)];
  AddressBytes address{};
  std::memcpy(address.data(), announced.data(), address.size());
  Endpoint endpoint{decode_address(address), static_cast<std::uint16_t>(announced[kPortWord])};
  if (endpoint.address.empty()) endpoint.address = store_address_;
  Hello hello = hello_;
  put_secret(hello, announced);
  try {
    const auto now = Clock::now();
    io::Deadline until = deadline.part(now, std::max(now, deadline.end()));
    until.cut_by(&cut_);
    TcpSocket socket = connect_tcp(endpoint, hello, until);
    expect_signs_of_life(socket.get(), kSilenceMax);
    const std::lock_guard lock(link_mutex_);
    if (!is_closed_) link.out = std::move(socket);
    return true;
  } catch (const AbortedError&) {
    return true;  // run() asks must_stop()
  } catch (const std::system_error& error) {
    if (is_loss(error.code())) return false;
    throw Error("no connection to rank " + std::to_string(peer) + " on another host: " + error.what() +
                "\ntry:   a higher limit of open files, `ulimit -n`");
  }
}

// One step of every transfer that is under way: whether anything has moved, or ended.
bool PeerLinks::advance() {
  bool has_moved = false;
  for (std::size_t i = 0; i < order_.active().size() && !end_;) {
    const std::size_t call = order_.active()[i];
    Transfer& transfer = transfers_[call];
    Link& link = link_to(transfer.peer);
    has_moved = hear_answers(link) || has_moved;
    const Step step = transfer.is_send() ? step_send(transfer, link) : step_receive(transfer, link);
    has_moved = has_moved || step != Step::idle;
    if (step == Step::complete) {
      order_.complete(i);
      continue;
    }
    if (step == Step::mismatch) end_with(PairEnd::Kind::mismatch, call);
    if (step == Step::lost || (step == Step::idle && link.is_lost)) end_with(PairEnd::Kind::lost, call);
    ++i;
  }
  return has_moved;
}

PeerLinks::Step PeerLinks::step_send(Transfer& transfer, Link& link) {
  if (transfer.number == 0) {
    transfer.number = ++link.sent;
    transfer.post = {transfer.number, encode(transfer.call)};
    transfer.rest[0] = {&transfer.post, sizeof(Post)};
  }
  const bool is_answered = link.answer.word != Answer::Word::none && link.answer.number == transfer.number;
  if (is_answered) {
    transfer.answer = link.answer;
    return link.answer.word == Answer::Word::taken ? Step::complete : Step::mismatch;
  }
  if (!transfer.has_rest()) return Step::idle;
  const std::size_t before = transfer.rest[0].iov_len + transfer.rest[1].iov_len;
  if (!send_rest(transfer, link.out.get())) link.is_lost = true;  // an answer may have come before
  return transfer.rest[0].iov_len + transfer.rest[1].iov_len < before ? Step::moved : Step::idle;
}

PeerLinks::Step PeerLinks::step_receive(Transfer& transfer, Link& link) {
  if (transfer.number == 0) {
    transfer.number = ++link.received;
    transfer.rest[0] = {&transfer.post, sizeof(Post)};
  }
  if (transfer.answer.word != Answer::Word::none) return give_answer(transfer, link);
  if (!link.in) return Step::idle;
  try {
    bool has_moved = false;
    for (iovec& part : transfer.rest) {
      if (part.iov_len == 0) continue;
      const auto room = std::span(static_cast<std::byte*>(part.iov_base), part.iov_len);
      const std::size_t now = receive_some(link.in.get(), room);
      part = {room.data() + now, room.size() - now};
      has_moved = has_moved || now > 0;
      if (part.iov_len > 0) return has_moved ? Step::moved : Step::idle;
      if (&part != &transfer.rest[0]) continue;
      const Fingerprint sent = core::decode(transfer.post.call);
      transfer.has_met = true;
      if (transfer.post.number != transfer.number) {
        link.presence = Presence::protocol_error;
        return Step::lost;
      }
      if (sent.type == transfer.call.type && sent.count == transfer.call.count) continue;
      transfer.answer = {Answer::Word::mismatch, Presence::here, transfer.number, encode(transfer.call)};
      break;
    }
  } catch (const ConnectionLost&) {
    return Step::lost;
  }
  if (transfer.answer.word == Answer::Word::none) {
    transfer.answer = {Answer::Word::taken, Presence::here, transfer.number, {}};
  }
  transfer.rest = {iovec{&transfer.answer, sizeof(Answer)}, iovec{}};
  return give_answer(transfer, link);
}

PeerLinks::Step PeerLinks::give_answer(Transfer& transfer, Link& link) {
  const std::lock_guard lock(link_mutex_);
  if (is_closed_) return Step::idle;
  if (!send_rest(transfer, link.in.get())) return Step::lost;
  if (transfer.has_rest()) return Step::idle;
  return transfer.answer.word == Answer::Word::taken ? Step::complete : Step::mismatch;
}

// As much as goes at once. False where the connection is lost.
bool PeerLinks::send_rest(Transfer& transfer, int socket) {
  while (transfer.has_rest()) {
    msghdr message{};
    message.msg_iov = transfer.rest.data();
    message.msg_iovlen = transfer.rest.size();
    const ssize_t count = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      transfer.advance(static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
  return true;
}

// What has come back on the connection that this rank opened. Whether it says anything new.
bool PeerLinks::hear_answers(Link& link) {
  bool has_heard = false;
  try {
    while (link.out && link.presence == Presence::here) {
      const std::size_t now = receive_some(link.out.get(), std::span(link.heard).subspan(link.heard_bytes));
      if (now == 0) break;
      link.heard_bytes += now;
      if (link.heard_bytes < link.heard.size()) continue;
      link.heard_bytes = 0;
      has_heard = true;
      Answer answer;
      std::memcpy(&answer, link.heard.data(), sizeof answer);
      if (answer.word == Answer::Word::taken || answer.word == Answer::Word::mismatch) {
        link.answer = answer;
        continue;
      }
      const bool is_farewell = answer.word == Answer::Word::farewell && answer.presence != Presence::here &&
                               answer.presence < Presence::protocol_error;
      link.presence = is_farewell ? answer.presence : Presence::protocol_error;
      link.is_lost = true;
    }
  } catch (const ConnectionLost&) {
    link.is_lost = link.is_over = true;
  }
  return has_heard;
}

// Whoever closes its connections says why on one of them, and that may come later than the end of another.
void PeerLinks::hear_farewell(Link& link) {
  const auto now = Clock::now();
  io::Deadline until(now, now + kAnswerMax);
  while (link.out && !questions_.must_stop()) {
    hear_answers(link);
    if (link.presence != Presence::here || link.is_over) return;
    std::array<pollfd, 2> polled{{{link.out.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    poll_until(polled, until);
    if (polled[1].revents != 0) io::take_rings(wake_.get());
    if (until.passed(Clock::now())) return;
  }
}

// In the midst of what moves: time may be up, and a peer of another call be waiting to be taken in.
void PeerLinks::look_up(io::Deadline& deadline) {
  if (end_ || order_.active().empty()) return;
  if (deadline.passed(Clock::now())) return end_waiting(PairEnd::Kind::timed_out);
  const bool is_any_awaited = std::any_of(order_.active().begin(), order_.active().end(), [this](std::size_t call) {
    return !transfers_[call].is_send() && !link_to(transfers_[call].peer).in;
  });
  if (is_any_awaited) take_in_at_once();
}

// Ends the run where the host of a peer has gone silent.
bool PeerLinks::find_cut_off() {
  for (const std::size_t call : order_.active()) {
    if (!questions_.is_cut_off(transfers_[call].peer)) continue;
    end_with(PairEnd::Kind::lost, call);
    return true;
  }
  return false;
}

// Not for long while data is on its way: its connection says nothing of a host that goes silent, and the leader that
// finds that out wakes nobody who sleeps on sockets.
void PeerLinks::wait(io::Deadline& deadline) {
  bool is_any_sent = false;
  polled_.clear();
  for (const std::size_t call : order_.active()) {
    const Transfer& transfer = transfers_[call];
    const Link& link = link_to(transfer.peer);
    const bool is_sending = transfer.has_rest() && (transfer.is_send() || transfer.answer.word != Answer::Word::none);
    const bool is_answering = is_sending && !transfer.is_send();
    is_any_sent = is_any_sent || transfer.is_send();
    const int out_events = POLLIN | (is_sending && !is_answering ? POLLOUT : 0);
    polled_.push_back({link.out.get(), static_cast<short>(out_events), 0});
    if (!transfer.is_send() && link.in) {
      polled_.push_back({link.in.get(), static_cast<short>(is_answering ? POLLOUT : POLLIN), 0});
    }
  }
  polled_.push_back({wake_.get(), POLLIN, 0});
  const std::size_t acceptor_from = polled_.size();
  acceptor_->add_to(polled_);
  const auto now = Clock::now();
  poll_until(polled_, is_any_sent ? deadline.part(now, std::min(deadline.end(), now + kSleepMax)) : deadline);
  if (polled_[acceptor_from - 1].revents != 0) io::take_rings(wake_.get());
  if (!questions_.must_stop()) take_in(std::span(polled_).subspan(acceptor_from));
}

// Those who have opened a connection to this rank, whatever for.
void PeerLinks::take_in(std::span<const pollfd> polled) {
  std::vector<Acceptor::Arrival> arrivals;
  try {
    arrivals = acceptor_->take(polled);
  } catch (const std::system_error& error) {
    if (questions_.must_stop()) return;  // close() has shut the door
    throw Error(std::string("a connection from another host can't be taken in: ") + error.what() +
                "\ntry:   a higher limit of open files, `ulimit -n`");
  }
  for (Acceptor::Arrival& arrival : arrivals) {
    const auto peer = static_cast<std::size_t>(arrival.hello.rank);
    const bool is_one = arrival.hello.purpose == Hello::Purpose::pair && arrival.hello.rank != rank_ &&
                        arrival.hello.rank >= 0 && peer < links_.size() && arrival.hello.size == hello_.size;
    if (!is_one || links_[peer].in) continue;
    expect_signs_of_life(arrival.socket.get(), kSilenceMax);
    const std::lock_guard lock(link_mutex_);
    links_[peer].in = std::move(arrival.socket);
  }
}

void PeerLinks::take_in_at_once() {
  polled_.clear();
  acceptor_->add_to(polled_);
  if (::poll(polled_.data(), polled_.size(), 0) > 0) take_in(polled_);
}

// Those who knocked while this rank had nothing to do with them, so that they hear the farewell too.
void PeerLinks::take_in_late() {
  try {
    for (int step = 0; step < 2; ++step) take_in_at_once();  // the connection, then its Hello
  } catch (const std::exception&) {                          // without a farewell they see the end of a connection
  }
}

void PeerLinks::end_with(PairEnd::Kind kind, std::size_t call) {
  const Transfer& transfer = transfers_[call];
  Link& link = link_to(transfer.peer);
  if (kind == PairEnd::Kind::lost) {
    hear_farewell(link);
    // It may have found a mismatch before, in another call than the one that now misses it.
    for (const std::size_t i : order_.active()) {
      const Transfer& other = transfers_[i];
      const bool is_cause = other.peer == transfer.peer && other.is_send() && other.number != 0 &&
                            link.answer.word == Answer::Word::mismatch && link.answer.number == other.number;
      if (is_cause) return end_with(PairEnd::Kind::mismatch, i);
    }
    if (questions_.must_stop()) kind = PairEnd::Kind::interrupted;
  }
  PairEnd end;
  end.kind = kind;
  end.call = call;
  end.number = transfer.number != 0 ? transfer.number : (transfer.is_send() ? link.sent : link.received) + 1;
  end.has_met = transfer.has_met;
  if (kind == PairEnd::Kind::mismatch)
    end.theirs = core::decode(transfer.is_send() ? link.answer.call : transfer.post.call);
  if (kind == PairEnd::Kind::lost) {
    end.presence = link.presence == Presence::here ? Presence::unreachable : link.presence;
  }
  end_ = end;
}

void PeerLinks::end_waiting(PairEnd::Kind kind) {
  std::vector<std::size_t> awaited = order_.awaited([this](std::size_t i) { return transfers_[i].has_met; });
  end_with(kind, awaited.front());
  end_->awaited = std::move(awaited);
}

void PeerLinks::wake() { io::ring(wake_); }

void PeerLinks::close(Presence how) {
  cut_.cut("the group is given up");
  wake();
  if (const std::unique_lock running(run_mutex_, std::try_to_lock); running && acceptor_) take_in_late();
  const std::lock_guard lock(link_mutex_);
  if (std::exchange(is_closed_, true)) return;
  const Answer farewell{Answer::Word::farewell, how, 0, {}};
  const auto bytes = std::as_bytes(std::span(&farewell, 1));
  for (Link& link : links_) {
    try {
      if (link.in) static_cast<void>(send_some(link.in.get(), bytes));
    } catch (const ConnectionLost&) {
    }
    if (link.in) ::shutdown(link.in.get(), SHUT_WR);
    if (link.out) ::shutdown(link.out.get(), SHUT_WR);
  }
  if (listener_ >= 0) ::shutdown(listener_, SHUT_RDWR);  // ends those that wait to be taken in
}

}  // namespace ddp::cpu_backend
