#include "worker_runtime/backends/cpu/pairs/peer_messages.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "worker_runtime/backends/cpu/hosts/host_links.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;
using core::ConnectionLost;

constexpr std::chrono::microseconds kTryFor{50};  // then the rank sleeps; a wake-up costs 5 to 10 us
constexpr std::chrono::seconds kSleepMax{5};      // small, compared with the time to find a silent host (kSilenceMax)
constexpr int kStepsPerCheck = 64;                // while data moves: the clock and new connections are checked rarely

}  // namespace

struct PeerMessages::Transfer : PairTransfer {
  using PairTransfer::PairTransfer;

  Post post;             // sent or received
  Answer answer;         // a receive sends it; a send gets it
  PendingBytes pending;  // of a post and its data, or of an answer

  bool has_met() const { return !is_send() && number != 0 && !to_keep; }
  Fingerprint peer_call() const { return core::decode(is_send() ? answer.call : post.call); }

  void begin_own_message() { pending.parts = {iovec{}, iovec{own.data(), own.size()}}; }
  void begin_answer(Answer to_send) {
    answer = to_send;
    pending.parts = {iovec{&answer, sizeof answer}, iovec{}};
  }
};

PeerMessages::PeerMessages(int rank, int size, const NetworkOptions& network, const std::string& group,
                           Questions questions)
    : questions_(std::move(questions)), links_(rank, size, network, group, questions_.must_stop), transfers_(size) {}

PeerMessages::~PeerMessages() = default;

PairEnd PeerMessages::run(std::span<const Collective> calls, base::Deadline& deadline) {
  std::vector<int> peers;
  for (const Collective& call : calls) peers.push_back(call.root);
  return run_from([&] { transfers_.begin(calls, peers, nullptr); }, deadline);
}

PairEnd PeerMessages::receive_from_any(const Collective& call, std::span<const int> peers, FirstMessage& first,
                                       base::Deadline& deadline) {
  return run_from(
      [&] {
        any_peers_ = peers;
        transfers_.begin({&call, 1}, {&kAnyPeer, 1}, &first);
      },
      deadline);
}

template <class Begin>
PairEnd PeerMessages::run_from(const Begin& begin, base::Deadline& deadline) {
  struct AfterTheRun {
    ~AfterTheRun() { messages.stop_accepting_if_closed(); }  // close() can't do it during a run
    PeerMessages& messages;
  } const after{*this};
  const std::lock_guard lock(run_mutex_);
  begin();
  return run_to_end(deadline);
}

PairEnd PeerMessages::run_to_end(base::Deadline& deadline) {
  for (Transfer& transfer : transfers_.all()) transfer.begin_own_message();
  connect_all(deadline);
  bool is_idle = false;
  Clock::time_point idle_since{};
  int moved_count = 0;
  while (!transfers_.is_over()) {
    if (questions_.must_stop()) {
      transfers_.end_waiting(PairEnd::Kind::interrupted);
    } else if (advance()) {
      is_idle = false;
      if (++moved_count % kStepsPerCheck == 0) check_deadline_and_accept(deadline);
    } else if (transfers_.has_ended()) {
      break;
    } else if (deadline.passed(Clock::now())) {
      transfers_.end_waiting(PairEnd::Kind::timed_out);
    } else if (!is_idle) {
      is_idle = true;
      idle_since = Clock::now();
    } else if (Clock::now() - idle_since < kTryFor) {
      ::sched_yield();
    } else if (!find_cut_off()) {
      wait(deadline);
    }
  }
  return transfers_.result();
}

void PeerMessages::connect_all(base::Deadline& deadline) {
  for (const std::size_t call : transfers_.active()) {
    for (const int peer : peers_of(transfers_[call])) {
      if (transfers_.has_ended() || links_.connect(peer, deadline)) continue;
      if (transfers_[call].is_from_any && has_left(peer)) continue;
      if (deadline.passed(Clock::now())) {
        transfers_.end_waiting(PairEnd::Kind::timed_out);
      } else {
        end_with_loss(call, peer);
      }
    }
  }
}

// The peers that the transfer waits for: one, or all peers of a receive from any that has accepted no message.
std::span<const int> PeerMessages::peers_of(const Transfer& transfer) const {
  return transfer.peer == kAnyPeer ? any_peers_ : std::span(&transfer.peer, 1);
}

// Makes one step of every transfer that is under way. Returns whether anything has moved.
bool PeerMessages::advance() {
  const std::vector<std::size_t>& active = transfers_.active();
  bool has_moved = false;
  for (std::size_t i = 0; i < active.size() && !transfers_.has_ended();) {
    const std::size_t call = active[i];
    Transfer& transfer = transfers_[call];
    for (const int peer : peers_of(transfer)) has_moved = links_.link(peer).read_answers() || has_moved;
    const Step step = transfer.is_send() ? step_send(transfer) : step_receive(i);
    has_moved = has_moved || step != Step::idle;
    if (active[i] != call) continue;  // another receive takes the message that has come
    if (step == Step::complete) {
      if (!transfer.is_send() && transfer.peer != kAnyPeer) links_.link(transfer.peer).end_receive();
      if (!transfers_.complete(i)) {
        transfer.answer = {};
        transfer.begin_own_message();
        ++i;
      }
      continue;
    }
    if (step == Step::mismatch) transfers_.end_with(PairEnd::Kind::mismatch, call, transfer.peer);
    if (step == Step::lost) end_with_loss(call, transfer.peer);
    if (step == Step::idle) end_if_peer_is_lost(call);
    ++i;
  }
  return has_moved;
}

PeerMessages::Step PeerMessages::step_send(Transfer& transfer) {
  PeerLink& link = links_.link(transfer.peer);
  if (transfer.number == 0) {
    transfers_.begin_send(transfer);
    transfer.post = {transfer.number, words_of(transfer.call, transfer.tag)};
    transfer.pending.parts[0] = {&transfer.post, sizeof(Post)};
  }
  if (const Answer* const answer = link.answer_to(transfer.number)) {
    transfer.answer = *answer;
    return answer->kind == Answer::Kind::taken ? Step::complete : Step::mismatch;
  }
  if (transfer.pending.empty()) return Step::idle;
  const std::size_t before = transfer.pending.count();
  link.send(transfer.pending);
  return transfer.pending.count() < before ? Step::moved : Step::idle;
}

PeerMessages::Step PeerMessages::step_receive(std::size_t at) {
  Transfer& transfer = transfers_.active_at(at);
  if (transfer.number == 0) return transfer.is_from_any ? look_everywhere(at) : look_for_message(at, transfer.peer);
  if (transfer.answer.kind != Answer::Kind::none) return send_answer(transfer);
  const iovec& data = transfer.pending.parts[1];
  if (data.iov_len > 0) {
    try {
      const std::span room(static_cast<std::byte*>(data.iov_base), data.iov_len);
      const std::size_t now = links_.link(transfer.peer).receive(room);
      transfer.pending.advance(now);
      if (!transfer.pending.empty()) return now > 0 ? Step::moved : Step::idle;
    } catch (const ConnectionLost&) {
      return Step::lost;
    }
  }
  transfer.begin_answer({Answer::Kind::taken, Presence::here, transfer.number, {}});
  return send_answer(transfer);
}

PeerMessages::Step PeerMessages::look_everywhere(std::size_t at) {
  if (transfers_.is_first_elsewhere()) return Step::complete;
  for (const int peer : any_peers_) {
    if (const Step made = look_for_message(at, peer); made != Step::idle) return made;
  }
  return Step::idle;
}

PeerMessages::Step PeerMessages::look_for_message(std::size_t at, int peer) {
  if (const auto step = transfers_.take_kept(at, peer)) return *step;
  PeerLink& link = links_.link(peer);
  if (!link.has_in() || link.is_receiving()) return Step::idle;
  if (!link.has_post()) {
    const bool has_read = link.read_post();
    if (!link.has_post()) return has_read ? Step::moved : Step::idle;
  }
  if (link.post().number != transfers_.next_received(peer)) {
    link.set_protocol_error();
    return Step::idle;
  }
  const Fingerprint sent = core::decode(link.post().call);
  if (const auto step = transfers_.accept(at, peer, sent)) return *step;
  Transfer& transfer = transfers_.active_at(at);
  transfer.post = link.post();
  link.begin_receive();
  if (transfer.to_keep) {
    transfer.pending.parts[1] = {transfer.to_keep->bytes.data(), transfer.to_keep->bytes.size()};
  } else if (!fit(sent, transfer.call)) {
    transfer.begin_answer(
        {Answer::Kind::mismatch, Presence::here, transfer.number, words_of(transfer.call, transfer.tag)});
  }
  return Step::moved;
}

PeerMessages::Step PeerMessages::send_answer(Transfer& transfer) {
  if (!links_.send_answer(transfer.peer, transfer.pending)) return Step::lost;
  if (!transfer.pending.empty()) return Step::idle;
  return transfer.answer.kind == Answer::Kind::taken ? Step::complete : Step::mismatch;
}

// A receive from any goes on without the peers that have left in good order.
void PeerMessages::end_if_peer_is_lost(std::size_t call) {
  for (const int peer : peers_of(transfers_[call])) {
    PeerLink& link = links_.link(peer);
    if (!link.is_lost()) continue;
    if (transfers_[call].peer == kAnyPeer) {
      links_.await_farewell(peer);
      // Without a farewell, the peer has closed the connection before it accepted that.
      const bool is_known = link.presence() != Presence::here;
      if (is_known ? link.presence() == Presence::left : has_left(peer)) continue;
    }
    return end_with_loss(call, peer);
  }
}

void PeerMessages::end_with_loss(std::size_t call, int peer) {
  const PeerLink& link = links_.link(peer);
  links_.await_farewell(peer);
  // The peer may have left because of a mismatch with another call of this run.
  for (const std::size_t i : transfers_.active()) {
    Transfer& other = transfers_[i];
    if (other.peer != peer || !other.is_send() || other.number == 0) continue;
    const Answer* const answer = link.answer_to(other.number);
    if (answer == nullptr || answer->kind != Answer::Kind::mismatch) continue;
    other.answer = *answer;
    transfers_.end_with(PairEnd::Kind::mismatch, i, peer);
    return;
  }
  const auto kind = questions_.must_stop() ? PairEnd::Kind::interrupted : PairEnd::Kind::lost;
  PairEnd& end = transfers_.end_with(kind, call, peer);
  if (kind != PairEnd::Kind::lost) return;
  end.presence = link.presence() == Presence::here ? Presence::unreachable : link.presence();
}

// Whether a peer that refuses a connection, or closed it without a farewell, has left in good order. The host of the
// peer reports that at about the same time. Only for a receive from any: true, if the other half has taken a message,
// because then the end of this peer does not matter.
bool PeerMessages::has_left(int peer) {
  const auto presence = questions_.await_end(
      peer, Clock::now() + kAnswerMax, [this] { return questions_.must_stop() || transfers_.is_first_elsewhere(); });
  if (!presence) return transfers_.is_first_elsewhere();
  links_.link(peer).set_left(*presence);
  return *presence == Presence::left;
}

// While data moves, run() does not sleep. So it checks here whether time is up, and whether peers of other calls have
// connected.
void PeerMessages::check_deadline_and_accept(base::Deadline& deadline) {
  if (transfers_.is_over()) return;
  if (deadline.passed(Clock::now())) return transfers_.end_waiting(PairEnd::Kind::timed_out);
  const std::vector<std::size_t>& active = transfers_.active();
  const bool is_any_awaited = std::any_of(active.begin(), active.end(), [this](std::size_t call) {
    const auto peers = peers_of(transfers_[call]);
    return !transfers_[call].is_send() &&
           std::any_of(peers.begin(), peers.end(), [this](int peer) { return !links_.link(peer).has_in(); });
  });
  if (is_any_awaited) links_.accept_pending();
}

// Ends the run if the host of a peer is silent. Returns whether one is.
bool PeerMessages::find_cut_off() {
  for (const std::size_t call : transfers_.active()) {
    for (const int peer : peers_of(transfers_[call])) {
      if (!questions_.is_cut_off(peer)) continue;
      end_with_loss(call, peer);
      return true;
    }
  }
  return false;
}

// Sleeps until a connection is ready. While data is on its way, at most for kSleepMax: the connection does not report
// that a host has become silent, and the leader that finds that out does not wake a rank that sleeps on sockets.
void PeerMessages::wait(base::Deadline& deadline) {
  bool is_any_sent = false;
  polled_.clear();
  for (const std::size_t call : transfers_.active()) {
    const Transfer& transfer = transfers_[call];
    const bool is_sending = transfer.is_send() && !transfer.pending.empty();
    const bool is_answering =
        !transfer.is_send() && transfer.answer.kind != Answer::Kind::none && !transfer.pending.empty();
    is_any_sent = is_any_sent || transfer.is_send();
    for (const int peer : peers_of(transfer)) {
      const PeerLink& link = links_.link(peer);
      if (link.is_lost()) continue;  // the peer has left
      polled_.push_back({link.out_socket(), static_cast<short>(POLLIN | (is_sending ? POLLOUT : 0)), 0});
      const bool takes_nothing = transfer.number == 0 && (link.has_post() || link.is_receiving());
      if (transfer.is_send() || !link.has_in() || takes_nothing) continue;
      polled_.push_back({link.in_socket(), static_cast<short>(is_answering ? POLLOUT : POLLIN), 0});
    }
  }
  const auto now = Clock::now();
  links_.wait(polled_, is_any_sent ? deadline.part(now, std::min(deadline.end(), now + kSleepMax)) : deadline);
}

void PeerMessages::wake() { links_.wake(); }

void PeerMessages::close(Presence how) {
  links_.interrupt();
  links_.close(how);
  stop_accepting_if_closed();
}

// A run that is under way does it when it ends.
void PeerMessages::stop_accepting_if_closed() {
  if (!links_.is_closed()) return;
  const std::unique_lock not_running(run_mutex_, std::try_to_lock);
  if (not_running.owns_lock()) links_.stop_accepting();
}

}  // namespace ddp::cpu_backend
