#include "worker_runtime/backends/cpu/pairs/point_to_point.hpp"

#include <sched.h>

#include <chrono>
#include <utility>

#include "worker_runtime/backends/cpu/arrivals/core_count.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSpinCount = 100;                        // as Arrivals
constexpr std::chrono::microseconds kYieldFor{1'000};  // the same
constexpr int kStepsByClock = 64;                      // reading the clock at each step would cost too much

}  // namespace

PointToPoint::PointToPoint(int rank, int size, const SharedMemory& memory, const PeerMemory& peer_memory,
                           Questions questions)
    : questions_(std::move(questions)),
      may_spin_(static_cast<std::size_t>(size) <= core_count()),
      channels_(rank, size),
      sender_(channels_, memory, peer_memory),
      receiver_(channels_, memory, peer_memory, questions_.is_here),
      transfers_(size) {}

PairEnd PointToPoint::run(std::span<const Collective> calls, std::span<const int> peers, base::Deadline& deadline,
                          FirstMessage* first) {
  begin(calls, peers, first);
  int idle_count = 0;
  int step_count = 0;
  Clock::time_point yield_end{};
  while (!transfers_.is_over()) {
    if (++step_count % kStepsByClock == 0 && deadline.passed(Clock::now())) {
      transfers_.end_waiting(PairEnd::Kind::timed_out);
    } else if (advance()) {
      idle_count = 0;
    } else if (may_spin_ && idle_count < kSpinCount) {
      ++idle_count;
      pause_core();
    } else if (idle_count <= kSpinCount) {
      idle_count = kSpinCount + 1;
      yield_end = Clock::now() + kYieldFor;
    } else if (Clock::now() < yield_end) {
      ::sched_yield();
    } else if (sleep(deadline)) {
      idle_count = 0;
    }
  }
  if (transfers_.has_ended()) {
    for (ChannelTransfer& transfer : transfers_.all()) transfer.held.reset();
  }
  return transfers_.result();
}

void PointToPoint::begin(std::span<const Collective> calls, std::span<const int> peers, FirstMessage* first) {
  transfers_.begin(calls, peers, first);
  const int own = channels_.rank();
  for (ChannelTransfer& transfer : transfers_.all()) {
    transfer.data = transfer.own;
    if (transfer.is_from_any) continue;
    const int from = transfer.is_send() ? own : transfer.peer;
    const int to = transfer.is_send() ? transfer.peer : own;
    transfer.channel = &channels_.channel(from, to);
    transfer.slot = channels_.slot(from, to);
  }
}

// Makes one step of every transfer that is under way. Returns whether anything has moved, or ended.
bool PointToPoint::advance() {
  const std::vector<std::size_t>& active = transfers_.active();
  bool has_moved = false;
  for (std::size_t i = 0; i < active.size() && !transfers_.has_ended();) {
    const std::size_t call = active[i];
    ChannelTransfer& transfer = transfers_[call];
    const std::optional<int> lost = lost_peer(transfer);  // before the step, which sees what the peer did last
    const Step made = step(i);
    has_moved = has_moved || made != Step::idle;
    if (active[i] != call) continue;  // another receive takes the message that has come
    if (made == Step::complete) {
      transfer.held.reset();
      if (!transfers_.complete(i)) {
        transfer.data = transfer.own;
        transfer.moved = 0;
        transfer.way = ChannelTransfer::Way::unknown;
        ++i;
      }
      continue;
    }
    if (made == Step::mismatch) transfers_.end_with(PairEnd::Kind::mismatch, call, transfer.peer);
    if (made == Step::lost) end_with_loss(call, transfer.peer);
    if (made == Step::idle && lost) end_with_loss(call, *lost);
    ++i;
  }
  if (!transfers_.is_over() && questions_.is_given_up()) transfers_.end_waiting(PairEnd::Kind::interrupted);
  return has_moved || transfers_.has_ended();
}

// The peer that the transfer waits for and that is gone. For a receive from any: a peer that has failed, or, if all
// peers have left, one of those.
std::optional<int> PointToPoint::lost_peer(const ChannelTransfer& transfer) const {
  if (transfer.peer != kAnyPeer) {
    return questions_.is_here(transfer.peer) ? std::nullopt : std::optional(transfer.peer);
  }
  std::optional<int> left;
  bool is_any_here = false;
  for (int rank = 0; rank < channels_.size(); ++rank) {
    if (rank == channels_.rank()) continue;
    if (questions_.is_here(rank)) {
      is_any_here = true;
    } else if (questions_.has_left(rank)) {
      left = rank;
    } else {
      return rank;
    }
  }
  return is_any_here || transfers_.has_other_half() ? std::nullopt : left;
}

PointToPoint::Step PointToPoint::step(std::size_t at) {
  ChannelTransfer& transfer = transfers_.active_at(at);
  if (transfer.is_send()) {
    if (transfer.number != 0) return sender_.step(transfer);
    transfers_.begin_send(transfer);
    sender_.begin(transfer);
    return Step::moved;
  }
  if (transfer.number != 0) return receiver_.step(transfer);
  return transfer.is_from_any ? look_everywhere(at) : look_for_message(at, transfer.peer);
}

PointToPoint::Step PointToPoint::look_everywhere(std::size_t at) {
  if (transfers_.is_first_elsewhere()) return Step::complete;
  const int size = channels_.size();
  for (int i = 0; i < size; ++i) {
    const int peer = (first_peer_ + i) % size;
    if (peer == channels_.rank()) continue;
    const Step made = look_for_message(at, peer);
    if (made == Step::idle) continue;
    first_peer_ = (peer + 1) % size;
    return made;
  }
  return Step::idle;
}

PointToPoint::Step PointToPoint::look_for_message(std::size_t at, int peer) {
  if (const auto made = transfers_.take_kept(at, peer)) return *made;
  const int own = channels_.rank();
  PairChannel& channel = channels_.channel(peer, own);
  if (channel.sent.load() != transfers_.next_received(peer)) return Step::idle;
  const Fingerprint sent = core::decode(PairChannel::load(channel.call));
  if (const auto made = transfers_.accept(at, peer, sent)) return *made;
  ChannelTransfer& transfer = transfers_.active_at(at);
  transfer.channel = &channel;
  transfer.slot = channels_.slot(peer, own);
  if (transfer.to_keep) transfer.data = transfer.to_keep->bytes;
  return receiver_.begin(transfer, sent);
}

// If this rank has given up, the other ranks leave because of that. And a peer may have left because of a mismatch with
// another call of this run.
void PointToPoint::end_with_loss(std::size_t call, int peer) {
  const ChannelTransfer& transfer = transfers_[call];
  if (questions_.is_given_up()) {
    transfers_.end_with(PairEnd::Kind::interrupted, call, transfer.peer);
    return;
  }
  for (const std::size_t i : transfers_.active()) {
    const ChannelTransfer& other = transfers_[i];
    const bool is_cause = other.peer == peer && other.is_send() && other.number != 0 &&
                          other.channel->has_answer(other.number, MessageAnswer::mismatch);
    if (!is_cause) continue;
    transfers_.end_with(PairEnd::Kind::mismatch, i, peer);
    return;
  }
  PairEnd& end = transfers_.end_with(PairEnd::Kind::lost, call, transfer.peer);
  if (transfer.is_from_any) end.peer = peer;
}

// Until another rank wakes this one, or the deadline. Returns whether anything has moved, or ended.
bool PointToPoint::sleep(base::Deadline& deadline) {
  bool has_moved = false;
  channels_.sleep([&]() -> std::optional<Clock::time_point> {
    has_moved = advance();
    if (has_moved) return std::nullopt;
    if (!deadline.passed(Clock::now())) return deadline.end();
    transfers_.end_waiting(PairEnd::Kind::timed_out);
    return std::nullopt;
  });
  return has_moved;
}

}  // namespace ddp::cpu_backend
