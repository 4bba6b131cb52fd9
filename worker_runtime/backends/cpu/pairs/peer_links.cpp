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

#include "base/event_fd.hpp"
#include "base/throw_errno.hpp"
#include "ddp/error.hpp"
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
constexpr int kStepsByLook = 64;  // while data moves, the clock and new connections are looked at now and then

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

// Before the data of a message; see words_of(). A change of it, or of Answer, changes Hello::magic.
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

  Post post;  // the next that comes, and how much of it is there
  std::size_t post_bytes = 0;
  bool is_taken = false;  // a receive has met the one before: its data is still to come, or its answer to go
  bool has_post() const { return post_bytes == sizeof(Post); }

  Answer answer;  // the last one but for a farewell
  std::array<std::byte, sizeof(Answer)> heard{};
  std::size_t heard_bytes = 0;  // of the next one
  bool is_lost = false;         // it takes nothing more, or has said farewell
  bool is_over = false;         // nor will anything more come back
  Presence presence = Presence::here;
};

struct PeerLinks::Transfer {
  Fingerprint call;
  int tag = 0;
  bool is_from_any = false;
  iovec own{};  // the caller's memory

  int peer = 0;                                  // kAnyPeer in a receive from any until it has met a message
  std::uint64_t number = 0;                      // 0 until it has begun; of a receive, until it has met a message
  std::optional<KeptMessages::Message> to_keep;  // that it has met, in the way of its own
  std::optional<Fingerprint> kept_call;          // of a mismatch: that of a kept message
  Post post;                                     // sent, or received
  Answer answer;                                 // that a receive ends with
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
      wake_(base::make_event()) {
  hello_.purpose = Hello::Purpose::pair;
  hello_.rank = rank;
  hello_.size = size;
  put_text(hello_.group, group);
  const auto secret = std::as_writable_bytes(std::span(own_).subspan(kPortWord + 1));
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    base::throw_errno("getrandom");
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

PairEnd PeerLinks::run(std::span<const Collective> calls, base::Deadline& deadline) {
  const std::lock_guard lock(run_mutex_);
  any_peers_ = {};
  first_ = nullptr;
  return run_to_end(calls, deadline);
}

PairEnd PeerLinks::receive_from_any(const Collective& call, std::span<const int> peers, FirstMessage& first,
                                    base::Deadline& deadline) {
  const std::lock_guard lock(run_mutex_);
  any_peers_ = peers;
  first_ = &first;
  return run_to_end({&call, 1}, deadline);
}

PairEnd PeerLinks::run_to_end(std::span<const Collective> calls, base::Deadline& deadline) {
  begin(calls);
  bool is_idle = false;
  Clock::time_point idle_since{};
  for (const std::size_t i : order_.active()) {
    for (const int peer : peers_of(transfers_[i])) {
      if (end_ || connect(peer, deadline)) continue;
      if (transfers_[i].is_from_any && has_left(peer)) continue;
      if (deadline.passed(Clock::now())) {
        end_waiting(PairEnd::Kind::timed_out);
      } else {
        end_with(PairEnd::Kind::lost, i, peer);
      }
    }
  }
  int moved_count = 0;
  while (!end_ && !order_.active().empty()) {
    if (questions_.must_stop()) {
      end_waiting(PairEnd::Kind::interrupted);
    } else if (advance()) {
      is_idle = false;
      if (++moved_count % kStepsByLook == 0) look_up(deadline);
    } else if (end_) {
      break;
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
  return end_.value_or(PairEnd{.peer = transfers_.front().is_from_any ? transfers_.front().peer : kAnyPeer});
}

// Whom it is about: one; of a receive from any, all until it has met one.
std::span<const int> PeerLinks::peers_of(const Transfer& transfer) const {
  return transfer.peer == kAnyPeer ? any_peers_ : std::span(&transfer.peer, 1);
}

void PeerLinks::begin(std::span<const Collective> calls) {
  end_.reset();
  transfers_.clear();
  std::vector<int> peers;
  for (const Collective& call : calls) {
    peers.push_back(is_from_any(call) ? kAnyPeer : call.root);
    Transfer transfer;
    transfer.call = core::fingerprint_of(call);
    transfer.tag = call.tag;
    transfer.is_from_any = is_from_any(call);
    transfer.peer = peers.back();
    transfer.rest[1] = transfer.is_send() ? iovec{const_cast<void*>(call.input.data), call.input.bytes()}
                                          : iovec{call.output.data, call.output.bytes()};
    transfer.own = transfer.rest[1];
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
bool PeerLinks::connect(int peer, base::Deadline& deadline) {
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
    base::Deadline until = deadline.part(now, std::max(now, deadline.end()));
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

// Whether a peer that takes no connection, or has dropped it without a word, has left in good order. Its host tells
// that at about the same time.
bool PeerLinks::has_left(int peer) {
  const auto presence = questions_.await_end(peer, Clock::now() + kAnswerMax,
                                             [this] { return questions_.must_stop() || first_->is_taken(); });
  if (!presence) return first_->is_taken();  // where a message has come, the end of this rank matters no more
  Link& link = link_to(peer);
  link.presence = *presence;
  link.is_lost = link.is_over = true;
  return *presence == Presence::left;
}

// One step of every transfer that is under way: whether anything has moved, or ended.
bool PeerLinks::advance() {
  bool has_moved = false;
  for (std::size_t i = 0; i < order_.active().size() && !end_;) {
    const std::size_t call = order_.active()[i];
    for (const int peer : peers_of(transfers_[call])) has_moved = hear_answers(link_to(peer)) || has_moved;
    const bool is_send = transfers_[call].is_send();
    const Step step = is_send ? step_send(transfers_[call], link_to(transfers_[call].peer)) : step_receive(i);
    has_moved = has_moved || step != Step::idle;
    if (order_.active()[i] != call) continue;  // another receive takes the message that has come
    Transfer& transfer = transfers_[call];
    if (step == Step::complete) {
      if (!is_send && transfer.peer != kAnyPeer) link_to(transfer.peer).is_taken = false;
      if (transfer.to_keep) {
        keep(transfer);
        ++i;
      } else {
        order_.complete(i);
      }
      continue;
    }
    if (step == Step::mismatch) end_with(PairEnd::Kind::mismatch, call, transfer.peer);
    if (step == Step::lost) end_with(PairEnd::Kind::lost, call, transfer.peer);
    if (step == Step::idle) end_by_lost_peer(call);
    ++i;
  }
  return has_moved;
}

// A receive from any goes on without those who have left in good order.
void PeerLinks::end_by_lost_peer(std::size_t call) {
  for (const int peer : peers_of(transfers_[call])) {
    Link& link = link_to(peer);
    if (!link.is_lost) continue;
    if (transfers_[call].peer == kAnyPeer) {
      hear_farewell(link);
      const bool is_known = link.presence != Presence::here;  // else it had not taken in the connection yet
      if (is_known ? link.presence == Presence::left : has_left(peer)) continue;
    }
    return end_with(PairEnd::Kind::lost, call, peer);
  }
}

PeerLinks::Step PeerLinks::step_send(Transfer& transfer, Link& link) {
  if (transfer.number == 0) {
    transfer.number = ++link.sent;
    transfer.post = {transfer.number, words_of(transfer.call, transfer.tag)};
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

PeerLinks::Step PeerLinks::step_receive(std::size_t at) {
  Transfer& transfer = transfers_[order_.active()[at]];
  if (transfer.number == 0) return transfer.is_from_any ? look_everywhere(at) : look_for_message(at, transfer.peer);
  Link& link = link_to(transfer.peer);
  if (transfer.answer.word != Answer::Word::none) return give_answer(transfer, link);
  iovec& data = transfer.rest[1];
  if (data.iov_len > 0) {
    try {
      const auto room = std::span(static_cast<std::byte*>(data.iov_base), data.iov_len);
      const std::size_t now = receive_some(link.in.get(), room);
      data = {room.data() + now, room.size() - now};
      if (data.iov_len > 0) return now > 0 ? Step::moved : Step::idle;
    } catch (const ConnectionLost&) {
      return Step::lost;
    }
  }
  transfer.answer = {Answer::Word::taken, Presence::here, transfer.number, {}};
  transfer.rest = {iovec{&transfer.answer, sizeof(Answer)}, iovec{}};
  return give_answer(transfer, link);
}

PeerLinks::Step PeerLinks::look_everywhere(std::size_t at) {
  if (first_->is_taken()) return Step::complete;
  for (const int peer : any_peers_) {
    if (const Step made = look_for_message(at, peer); made != Step::idle) return made;
  }
  return Step::idle;
}

// A message of another tag goes to a later receive of this run, or is kept, so that what is behind it can come.
PeerLinks::Step PeerLinks::look_for_message(std::size_t at, int peer) {
  Transfer& transfer = transfers_[order_.active()[at]];
  const auto may_take = [&] { return !transfer.is_from_any || first_->take(); };
  if (kept_.has(peer, transfer.tag)) {
    return may_take() ? take_kept(transfer, kept_.take(peer, transfer.tag)) : Step::complete;
  }
  Link& link = link_to(peer);
  if (!link.in || link.is_taken) return Step::idle;
  if (!link.has_post()) {
    try {
      const auto post = std::as_writable_bytes(std::span(&link.post, 1));
      const std::size_t now = receive_some(link.in.get(), post.subspan(link.post_bytes));
      link.post_bytes += now;
      if (!link.has_post()) return now > 0 ? Step::moved : Step::idle;
    } catch (const ConnectionLost&) {
      link.is_lost = true;
      return Step::idle;
    }
  }
  if (link.post.number != link.received + 1) {
    link.presence = Presence::protocol_error;
    link.is_lost = true;
    return Step::idle;
  }
  const Fingerprint sent = core::decode(link.post.call);
  if (tag_of(sent) != transfer.tag) {
    const auto is_wanted = [&](std::size_t other) { return transfers_[other].tag == tag_of(sent); };
    if (!transfer.is_from_any && order_.prefer(at, is_wanted)) return Step::moved;
    if (!prepare_to_keep(transfer, peer, sent)) return Step::idle;
  } else if (!may_take()) {
    return Step::complete;
  }
  transfer.peer = peer;
  transfer.number = ++link.received;
  transfer.post = link.post;
  transfer.has_met = !transfer.to_keep;
  transfer.rest[0] = {};
  link.post_bytes = 0;
  link.is_taken = true;
  if (!transfer.to_keep && !fit(sent, transfer.call)) {
    transfer.answer = {Answer::Word::mismatch, Presence::here, transfer.number, words_of(transfer.call, transfer.tag)};
    transfer.rest = {iovec{&transfer.answer, sizeof(Answer)}, iovec{}};
  }
  return Step::moved;
}

PeerLinks::Step PeerLinks::take_kept(Transfer& transfer, const KeptMessages::Message& message) {
  transfer.peer = message.peer;
  transfer.number = message.number;
  transfer.has_met = true;
  if (!fit(message.call, transfer.call)) {
    transfer.kept_call = message.call;
    return Step::mismatch;
  }
  if (transfer.own.iov_len > 0) std::memcpy(transfer.own.iov_base, message.bytes.data(), transfer.own.iov_len);
  return Step::complete;
}

bool PeerLinks::prepare_to_keep(Transfer& transfer, int peer, const Fingerprint& sent) {
  transfer.to_keep = kept_.prepare(peer, link_to(peer).received + 1, sent);
  if (!transfer.to_keep) return false;
  transfer.rest[1] = {transfer.to_keep->bytes.data(), transfer.to_keep->bytes.size()};
  return true;
}

// What the transfer has taken; it waits for its own message as before.
void PeerLinks::keep(Transfer& transfer) {
  kept_.keep(std::move(*transfer.to_keep));
  transfer.to_keep.reset();
  transfer.rest = {iovec{}, transfer.own};
  transfer.answer = {};
  transfer.number = 0;
  if (transfer.is_from_any) transfer.peer = kAnyPeer;
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
  base::Deadline until(now, now + kAnswerMax);
  while (link.out && !questions_.must_stop()) {
    hear_answers(link);
    if (link.presence != Presence::here || link.is_over) return;
    std::array<pollfd, 2> polled{{{link.out.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    poll_until(polled, until);
    if (polled[1].revents != 0) base::take_rings(wake_.get());
    if (until.passed(Clock::now())) return;
  }
}

// In the midst of what moves: time may be up, and a peer of another call be waiting to be taken in.
void PeerLinks::look_up(base::Deadline& deadline) {
  if (end_ || order_.active().empty()) return;
  if (deadline.passed(Clock::now())) return end_waiting(PairEnd::Kind::timed_out);
  const bool is_any_awaited = std::any_of(order_.active().begin(), order_.active().end(), [this](std::size_t call) {
    const auto peers = peers_of(transfers_[call]);
    return !transfers_[call].is_send() &&
           std::any_of(peers.begin(), peers.end(), [this](int peer) { return !link_to(peer).in; });
  });
  if (is_any_awaited) take_in_at_once();
}

// Ends the run where the host of a peer has gone silent.
bool PeerLinks::find_cut_off() {
  for (const std::size_t call : order_.active()) {
    for (const int peer : peers_of(transfers_[call])) {
      if (!questions_.is_cut_off(peer)) continue;
      end_with(PairEnd::Kind::lost, call, peer);
      return true;
    }
  }
  return false;
}

// Not for long while data is on its way: its connection says nothing of a host that goes silent, and the leader that
// finds that out wakes nobody who sleeps on sockets.
void PeerLinks::wait(base::Deadline& deadline) {
  bool is_any_sent = false;
  polled_.clear();
  for (const std::size_t call : order_.active()) {
    const Transfer& transfer = transfers_[call];
    const bool is_sending = transfer.has_rest() && (transfer.is_send() || transfer.answer.word != Answer::Word::none);
    const bool is_answering = is_sending && !transfer.is_send();
    is_any_sent = is_any_sent || transfer.is_send();
    const int out_events = POLLIN | (is_sending && !is_answering ? POLLOUT : 0);
    for (const int peer : peers_of(transfer)) {
      const Link& link = link_to(peer);
      if (link.is_lost) continue;  // it has left
      polled_.push_back({link.out.get(), static_cast<short>(out_events), 0});
      const bool takes_nothing = transfer.number == 0 && (link.has_post() || link.is_taken);
      if (transfer.is_send() || !link.in || takes_nothing) continue;
      polled_.push_back({link.in.get(), static_cast<short>(is_answering ? POLLOUT : POLLIN), 0});
    }
  }
  polled_.push_back({wake_.get(), POLLIN, 0});
  const std::size_t acceptor_from = polled_.size();
  acceptor_->add_to(polled_);
  const auto now = Clock::now();
  poll_until(polled_, is_any_sent ? deadline.part(now, std::min(deadline.end(), now + kSleepMax)) : deadline);
  if (polled_[acceptor_from - 1].revents != 0) base::take_rings(wake_.get());
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

// `peer`: whom it is about; none where a receive from any has waited for all in vain.
void PeerLinks::end_with(PairEnd::Kind kind, std::size_t call, int peer) {
  const Transfer& transfer = transfers_[call];
  PairEnd end;
  end.kind = kind;
  end.call = call;
  end.number = transfer.number;
  end.has_met = transfer.has_met;
  if (transfer.is_from_any) end.peer = peer;
  if (peer == kAnyPeer) {
    end_ = end;
    return;
  }
  Link& link = link_to(peer);
  if (kind == PairEnd::Kind::lost) {
    hear_farewell(link);
    // It may have found a mismatch before, in another call than the one that now misses it.
    for (const std::size_t i : order_.active()) {
      const Transfer& other = transfers_[i];
      const bool is_cause = other.peer == peer && other.is_send() && other.number != 0 &&
                            link.answer.word == Answer::Word::mismatch && link.answer.number == other.number;
      if (is_cause) return end_with(PairEnd::Kind::mismatch, i, peer);
    }
    if (questions_.must_stop()) end.kind = PairEnd::Kind::interrupted;
  }
  const bool is_yet_to_come = transfer.number == 0 || transfer.to_keep;
  if (is_yet_to_come) end.number = (transfer.is_send() ? link.sent : link.received) + 1;
  if (kind == PairEnd::Kind::mismatch) {
    end.theirs = transfer.kept_call.value_or(core::decode(transfer.is_send() ? link.answer.call : transfer.post.call));
  }
  if (end.kind == PairEnd::Kind::lost) {
    end.presence = link.presence == Presence::here ? Presence::unreachable : link.presence;
  }
  end_ = end;
}

void PeerLinks::end_waiting(PairEnd::Kind kind) {
  std::vector<std::size_t> awaited = order_.awaited([this](std::size_t i) { return transfers_[i].has_met; });
  end_with(kind, awaited.front(), transfers_[awaited.front()].peer);
  end_->awaited = std::move(awaited);
}

void PeerLinks::wake() { base::ring(wake_); }

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
