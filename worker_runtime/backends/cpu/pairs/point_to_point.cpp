#include "worker_runtime/backends/cpu/pairs/point_to_point.hpp"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "worker_runtime/backends/cpu/arrivals/core_count.hpp"
#include "worker_runtime/backends/cpu/arrivals/futex.hpp"
#include "worker_runtime/backends/cpu/arrivals/sleep.hpp"

namespace ddp::cpu_backend {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kInlineBytes = 16;
constexpr std::size_t kEagerBytes = 8u << 10;  // copying them twice costs less than asking for them
constexpr std::size_t kSlotsBytes = 1u << 20;  // of one rank, for all its peers
constexpr std::size_t kSlotBytesMin = 4u << 10;
constexpr std::size_t kSlotBytesMax = 128u << 10;      // stays in a core's cache
constexpr std::size_t kBlockBytesMax = 1u << 20;       // at once, of memory that is read where it lies
constexpr int kSpinCount = 100;                        // as Arrivals
constexpr std::chrono::microseconds kYieldFor{1'000};  // the same
constexpr int kStepsByClock = 64;                      // the time is looked at only now and then

// What a receiver says of message n, as (n << kVerdictBits | verdict).
constexpr int kVerdictBits = 2;
constexpr std::uint64_t kStage = 1;     // it wants it through the slot
constexpr std::uint64_t kTaken = 2;     // it has all of it
constexpr std::uint64_t kMismatch = 3;  // it has called something else

constexpr std::uint64_t answer_of(std::uint64_t number, std::uint64_t verdict) {
  return number << kVerdictBits | verdict;
}

std::size_t slot_bytes_for(int size) {
  const std::size_t share = kSlotsBytes / static_cast<std::size_t>(std::max(size - 1, 1));
  return std::clamp(share / kCacheLineBytes * kCacheLineBytes, kSlotBytesMin, kSlotBytesMax);
}

}  // namespace

struct PointToPoint::Channel {
  // A line that the sender writes.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> sent;  // the message that the rest is about; written last
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>> call;
  std::atomic<std::uint64_t> staged;   // bytes of it that have been put into the slot
  std::atomic<std::uint64_t> address;  // where it can be read, or 0
  std::array<std::byte, kInlineBytes> data;

  // A line that the receiver writes.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> answer;  // see answer_of(); written last
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<FingerprintWords>> wanted;
  std::atomic<std::uint64_t> taken;  // bytes that it has taken out of the slot
};

struct alignas(kCacheLineBytes) PointToPoint::Bell {
  std::atomic<std::uint32_t> word;      // by any rank: a futex
  std::atomic<std::uint32_t> sleepers;  // by its rank, as is the next
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> announced;
};

struct PointToPoint::Transfer {
  Fingerprint call;
  int tag = 0;
  bool is_from_any = false;
  std::byte* own_data = nullptr;  // the caller's; of a send it is only read
  std::size_t own_bytes = 0;

  int peer = 0;
  Channel* channel = nullptr;  // null in a receive from any until it has met a message, as the next
  std::byte* slot = nullptr;
  std::byte* data = nullptr;  // the caller's, but for a message that is to be kept
  std::size_t bytes = 0;

  std::uint64_t number = 0;                      // 0 until it has begun; of a receive, until it has met a message
  std::optional<KeptMessages::Message> to_keep;  // that it has met, in the way of its own
  std::optional<Fingerprint> kept_call;          // of a mismatch: that of a kept message
  std::size_t moved = 0;                         // bytes
  enum class Way : std::uint8_t { unknown, slot, segment, peer } way = Way::unknown;  // of a receive
  std::shared_ptr<const Segment> held;                                                // that it reads from, and where
  const std::byte* source = nullptr;
  std::uint64_t address = 0;  // the same of the peer's own memory

  bool has_met() const {
    if (number == 0 || to_keep) return false;
    return way != Way::unknown || channel->answer.load() == answer_of(number, kStage);
  }
};

std::size_t PointToPoint::shared_bytes(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  return sizeof(Bell) + ranks * sizeof(Channel) + (ranks - 1) * slot_bytes_for(size);
}

PointToPoint::PointToPoint(int rank, int size, const SharedMemory& memory, const PeerMemory& peer_memory,
                           Questions questions)
    : rank_(rank),
      size_(size),
      memory_(memory),
      peer_memory_(peer_memory),
      questions_(std::move(questions)),
      may_spin_(static_cast<std::size_t>(size) <= core_count()),
      slot_bytes_(slot_bytes_for(size)),
      sent_(static_cast<std::size_t>(size)),
      received_(static_cast<std::size_t>(size)) {}

PointToPoint::~PointToPoint() = default;

void PointToPoint::attach(std::shared_ptr<Segment> segment, std::size_t offset) {
  segment_ = std::move(segment);
  offset_ = offset;
  is_attached_.store(true);
}

PointToPoint::Bell& PointToPoint::bell(int rank) const { return *reinterpret_cast<Bell*>(part(rank)); }

PointToPoint::Channel& PointToPoint::channel(int from, int to) const {
  return reinterpret_cast<Channel*>(part(from) + sizeof(Bell))[to];
}

std::byte* PointToPoint::slot(int from, int to) const {
  const auto index = static_cast<std::size_t>(to < from ? to : to - 1);  // a rank has none to itself
  return part(from) + sizeof(Bell) + static_cast<std::size_t>(size_) * sizeof(Channel) + index * slot_bytes_;
}

PairEnd PointToPoint::run(std::span<const Collective> calls, std::span<const int> peers, base::Deadline& deadline,
                          FirstMessage* first) {
  begin(calls, peers);
  first_ = first;
  int idle_count = 0;
  int step_count = 0;
  Clock::time_point yield_end{};
  while (!end_) {
    if (order_.active().empty()) return {.peer = transfers_.front().is_from_any ? transfers_.front().peer : kAnyPeer};
    if (++step_count % kStepsByClock == 0 && deadline.passed(Clock::now())) {
      end_waiting(PairEnd::Kind::timed_out);
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
  for (Transfer& transfer : transfers_) transfer.held.reset();
  return *end_;
}

void PointToPoint::begin(std::span<const Collective> calls, std::span<const int> peers) {
  transfers_.clear();
  end_.reset();
  order_.begin(calls, peers, size_);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const bool is_send = calls[i].kind == CollectiveKind::send;
    Transfer transfer;
    transfer.call = core::fingerprint_of(calls[i]);
    transfer.tag = calls[i].tag;
    transfer.is_from_any = peers[i] == kAnyPeer;
    transfer.peer = peers[i];
    if (!transfer.is_from_any) {
      transfer.channel = is_send ? &channel(rank_, peers[i]) : &channel(peers[i], rank_);
      transfer.slot = is_send ? slot(rank_, peers[i]) : slot(peers[i], rank_);
    }
    transfer.bytes = is_send ? calls[i].input.bytes() : calls[i].output.bytes();
    transfer.data = static_cast<std::byte*>(is_send ? const_cast<void*>(calls[i].input.data) : calls[i].output.data);
    transfer.own_data = transfer.data;
    transfer.own_bytes = transfer.bytes;
    transfers_.push_back(std::move(transfer));
  }
}

// One step of every transfer that is under way: whether anything has moved, or ended.
bool PointToPoint::advance() {
  bool has_moved = false;
  for (std::size_t i = 0; i < order_.active().size() && !end_;) {
    const std::size_t call = order_.active()[i];
    const std::optional<int> lost = lost_peer(transfers_[call]);  // before looking for what it did last
    const Step made = step(i);
    has_moved = has_moved || made != Step::idle;
    if (order_.active()[i] != call) continue;  // another receive takes the message that it has met
    Transfer& transfer = transfers_[call];
    if (made == Step::complete) {
      transfer.held.reset();
      if (transfer.to_keep) {
        keep(transfer);
        ++i;
      } else {
        order_.complete(i);
      }
      continue;
    }
    if (made == Step::mismatch) end_with(PairEnd::Kind::mismatch, transfer);
    if (made == Step::lost) end_with_loss(transfer, transfer.peer);
    if (made == Step::idle && lost) end_with_loss(transfer, *lost);
    ++i;
  }
  const bool is_cut = !end_ && !order_.active().empty() && questions_.is_given_up();
  if (is_cut) end_waiting(PairEnd::Kind::interrupted);
  return has_moved || end_.has_value();
}

// Whom it needs and who is gone. Of a receive from any: whoever has failed; or all have left.
std::optional<int> PointToPoint::lost_peer(const Transfer& transfer) const {
  if (transfer.peer != kAnyPeer) {
    return questions_.is_here(transfer.peer) ? std::nullopt : std::optional(transfer.peer);
  }
  std::optional<int> left;
  bool is_any_here = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    if (questions_.is_here(rank)) {
      is_any_here = true;
    } else if (questions_.has_left(rank)) {
      left = rank;
    } else {
      return rank;
    }
  }
  return is_any_here || first_ != nullptr ? std::nullopt : left;
}

PointToPoint::Step PointToPoint::step(std::size_t at) {
  Transfer& transfer = transfers_[order_.active()[at]];
  return transfer.call.kind == CollectiveKind::send ? step_send(transfer) : step_receive(at);
}

PointToPoint::Step PointToPoint::step_send(Transfer& transfer) {
  if (transfer.number == 0) {
    post(transfer);
    return Step::moved;
  }
  Channel& channel = *transfer.channel;
  const std::uint64_t heard = channel.answer.load();
  if (heard == answer_of(transfer.number, kTaken)) return Step::complete;
  if (heard == answer_of(transfer.number, kMismatch)) return Step::mismatch;
  if (heard != answer_of(transfer.number, kStage) || transfer.moved == transfer.bytes) return Step::idle;
  const std::size_t room = slot_bytes_ - (transfer.moved - channel.taken.load());
  const std::size_t at = transfer.moved % slot_bytes_;
  const std::size_t now = std::min({slot_bytes_ / 2, room, slot_bytes_ - at, transfer.bytes - transfer.moved});
  if (now == 0) return Step::idle;
  std::memcpy(transfer.slot + at, transfer.data + transfer.moved, now);
  transfer.moved += now;
  channel.staged.store(transfer.moved);
  ring(transfer.peer);
  return Step::moved;
}

void PointToPoint::post(Transfer& transfer) {
  Channel& channel = *transfer.channel;
  transfer.number = ++sent_[static_cast<std::size_t>(transfer.peer)];
  if (transfer.bytes <= kInlineBytes) {
    if (transfer.bytes > 0) std::memcpy(channel.data.data(), transfer.data, transfer.bytes);
  } else if (transfer.bytes <= std::min(kEagerBytes, slot_bytes_)) {
    std::memcpy(transfer.slot, transfer.data, transfer.bytes);
    transfer.moved = transfer.bytes;
  } else if (const auto placement = memory_.find(transfer.data, transfer.bytes)) {
    transfer.call.location = placement->location;
  }
  const bool is_read_there = transfer.moved < transfer.bytes && transfer.bytes > kInlineBytes &&
                             peer_memory_.can_read_all() && peer_memory_.is_readable(transfer.data, transfer.bytes);
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(transfer.data));
  channel.address.store(is_read_there ? address : 0, std::memory_order_relaxed);
  const FingerprintWords words = words_of(transfer.call, transfer.tag);
  for (std::size_t i = 0; i < words.size(); ++i) channel.call[i].store(words[i], std::memory_order_relaxed);
  channel.staged.store(transfer.moved, std::memory_order_relaxed);
  channel.sent.store(transfer.number);
  ring(transfer.peer);
}

PointToPoint::Step PointToPoint::step_receive(std::size_t at) {
  Transfer& transfer = transfers_[order_.active()[at]];
  if (transfer.number == 0) return transfer.is_from_any ? look_everywhere(at) : look_for_message(at, transfer.peer);
  switch (transfer.way) {
    case Transfer::Way::unknown: return take(transfer);
    case Transfer::Way::slot: return take_from_slot(transfer);
    case Transfer::Way::segment: return take_from_segment(transfer);
    case Transfer::Way::peer: return take_from_peer(transfer);
  }
  return Step::idle;
}

PointToPoint::Step PointToPoint::look_everywhere(std::size_t at) {
  if (first_ != nullptr && first_->is_taken()) return Step::complete;
  for (int i = 0; i < size_; ++i) {
    const int peer = (first_peer_ + i) % size_;
    if (peer == rank_) continue;
    const Step made = look_for_message(at, peer);
    if (made == Step::idle) continue;
    first_peer_ = (peer + 1) % size_;
    return made;
  }
  return Step::idle;
}

// A message of another tag goes to a later receive of this run, or is kept, so that what is behind it can come.
PointToPoint::Step PointToPoint::look_for_message(std::size_t at, int peer) {
  Transfer& transfer = transfers_[order_.active()[at]];
  const auto may_take = [&] { return !transfer.is_from_any || first_ == nullptr || first_->take(); };
  if (kept_.has(peer, transfer.tag)) {
    return may_take() ? take_kept(transfer, kept_.take(peer, transfer.tag)) : Step::complete;
  }
  Channel& from = channel(peer, rank_);
  std::uint64_t& received = received_[static_cast<std::size_t>(peer)];
  if (from.sent.load() != received + 1) return Step::idle;
  const Fingerprint sent = core::decode(
      {from.call[0].load(std::memory_order_relaxed), from.call[1].load(std::memory_order_relaxed), core::kPlainMemory});
  if (tag_of(sent) != transfer.tag) {
    const auto is_wanted = [&](std::size_t other) { return transfers_[other].tag == tag_of(sent); };
    if (!transfer.is_from_any && order_.prefer(at, is_wanted)) return Step::moved;
    if (!prepare_to_keep(transfer, peer, sent)) return Step::idle;
  } else if (!may_take()) {
    return Step::complete;
  }
  transfer.peer = peer;
  transfer.channel = &from;
  transfer.slot = slot(peer, rank_);
  transfer.number = ++received;
  return take(transfer);
}

PointToPoint::Step PointToPoint::take_kept(Transfer& transfer, const KeptMessages::Message& message) {
  transfer.peer = message.peer;
  transfer.channel = &channel(message.peer, rank_);
  transfer.number = message.number;
  if (!fit(message.call, transfer.call)) {
    transfer.kept_call = message.call;
    return Step::mismatch;
  }
  if (transfer.bytes > 0) std::memcpy(transfer.data, message.bytes.data(), transfer.bytes);
  return Step::complete;
}

bool PointToPoint::prepare_to_keep(Transfer& transfer, int peer, const Fingerprint& sent) {
  transfer.to_keep = kept_.prepare(peer, received_[static_cast<std::size_t>(peer)] + 1, sent);
  if (!transfer.to_keep) return false;
  transfer.data = transfer.to_keep->bytes.data();
  transfer.bytes = transfer.to_keep->bytes.size();
  return true;
}

// What the transfer has taken; it waits for its own message as before.
void PointToPoint::keep(Transfer& transfer) {
  kept_.keep(std::move(*transfer.to_keep));
  transfer.to_keep.reset();
  transfer.data = transfer.own_data;
  transfer.bytes = transfer.own_bytes;
  transfer.number = 0;
  transfer.moved = 0;
  transfer.way = Transfer::Way::unknown;
  if (transfer.is_from_any) transfer.peer = kAnyPeer;
}

// What has just been found in the channel.
PointToPoint::Step PointToPoint::take(Transfer& transfer) {
  Channel& channel = *transfer.channel;
  FingerprintWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = channel.call[i].load(std::memory_order_relaxed);
  const Fingerprint sent = core::decode(words);
  if (!transfer.to_keep && !fit(sent, transfer.call)) return answer(transfer, kMismatch);
  if (transfer.bytes <= kInlineBytes) {
    if (transfer.bytes > 0) std::memcpy(transfer.data, channel.data.data(), transfer.bytes);
    return answer(transfer, kTaken);
  }
  transfer.way = Transfer::Way::slot;
  if (channel.staged.load() == transfer.bytes) return take_from_slot(transfer);
  if (sent.location != core::kPlainMemory) transfer.held = memory_.hold(sent.location, transfer.bytes);
  if (transfer.held) {
    transfer.source = transfer.held->at(sent.location, transfer.peer);
    transfer.way = Transfer::Way::segment;
    return take_from_segment(transfer);
  }
  transfer.address = channel.address.load(std::memory_order_relaxed);
  if (transfer.address == 0) return ask_for_slot(transfer);
  transfer.way = Transfer::Way::peer;
  return take_from_peer(transfer);
}

PointToPoint::Step PointToPoint::ask_for_slot(Transfer& transfer) {
  transfer.way = Transfer::Way::slot;
  transfer.moved = 0;
  transfer.channel->taken.store(0, std::memory_order_relaxed);
  return answer(transfer, kStage);
}

PointToPoint::Step PointToPoint::take_from_slot(Transfer& transfer) {
  const std::size_t at = transfer.moved % slot_bytes_;
  const std::size_t now = std::min(transfer.channel->staged.load() - transfer.moved, slot_bytes_ - at);
  if (now == 0) return Step::idle;
  std::memcpy(transfer.data + transfer.moved, transfer.slot + at, now);
  transfer.moved += now;
  if (transfer.moved == transfer.bytes) return answer(transfer, kTaken);
  transfer.channel->taken.store(transfer.moved);
  ring(transfer.peer);
  return Step::moved;
}

// If the memory can't be read, the sender copies it into the slot. If the sender has ended, that is noticed anyhow.
PointToPoint::Step PointToPoint::take_from_peer(Transfer& transfer) {
  const std::size_t now = std::min(kBlockBytesMax, transfer.bytes - transfer.moved);
  if (peer_memory_.read(transfer.peer, transfer.address + transfer.moved, transfer.data + transfer.moved, now) !=
      PeerMemory::Read::complete) {
    return ask_for_slot(transfer);
  }
  transfer.moved += now;
  return transfer.moved == transfer.bytes ? answer(transfer, kTaken) : Step::moved;
}

PointToPoint::Step PointToPoint::take_from_segment(Transfer& transfer) {
  const std::size_t now = std::min(kBlockBytesMax, transfer.bytes - transfer.moved);
  std::memcpy(transfer.data + transfer.moved, transfer.source + transfer.moved, now);
  transfer.moved += now;
  return transfer.moved == transfer.bytes ? answer(transfer, kTaken) : Step::moved;
}

// A sender that gave up meanwhile may have changed what was read of its memory. The other side is Arrivals::leave().
PointToPoint::Step PointToPoint::answer(Transfer& transfer, std::uint64_t verdict) {
  std::atomic_thread_fence(std::memory_order_acquire);
  if (verdict == kTaken && !questions_.is_here(transfer.peer)) return Step::lost;
  Channel& channel = *transfer.channel;
  const FingerprintWords words = words_of(transfer.call, transfer.tag);
  for (std::size_t i = 0; i < words.size(); ++i) channel.wanted[i].store(words[i], std::memory_order_relaxed);
  channel.answer.store(answer_of(transfer.number, verdict));
  ring(transfer.peer);
  if (verdict == kTaken) return Step::complete;
  return verdict == kMismatch ? Step::mismatch : Step::moved;
}

// Others leave because of what this rank gave up for; and a peer that is gone may have found a mismatch before, in
// another call than the one that now misses it.
void PointToPoint::end_with_loss(const Transfer& transfer, int peer) {
  if (questions_.is_given_up()) return end_with(PairEnd::Kind::interrupted, transfer);
  for (const std::size_t i : order_.active()) {
    const Transfer& other = transfers_[i];
    const bool is_cause = other.peer == peer && other.call.kind == CollectiveKind::send && other.number != 0 &&
                          other.channel->answer.load() == answer_of(other.number, kMismatch);
    if (is_cause) return end_with(PairEnd::Kind::mismatch, other);
  }
  end_with(PairEnd::Kind::lost, transfer);
  if (transfer.is_from_any) end_->peer = peer;
}

void PointToPoint::end_with(PairEnd::Kind kind, const Transfer& transfer) {
  PairEnd end;
  end.kind = kind;
  end.call = static_cast<std::size_t>(&transfer - transfers_.data());
  const bool is_yet_to_come = transfer.call.kind == CollectiveKind::receive && transfer.peer != kAnyPeer &&
                              (transfer.number == 0 || transfer.to_keep);
  end.number = is_yet_to_come ? received_[static_cast<std::size_t>(transfer.peer)] + 1 : transfer.number;
  end.has_met = transfer.has_met();
  if (transfer.is_from_any) end.peer = transfer.peer;
  if (transfer.kept_call) {
    end.theirs = *transfer.kept_call;
  } else if (kind == PairEnd::Kind::mismatch) {
    const auto& theirs = transfer.call.kind == CollectiveKind::send ? transfer.channel->wanted : transfer.channel->call;
    FingerprintWords words{};
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = theirs[i].load(std::memory_order_relaxed);
    end.theirs = core::decode(words);
  }
  end_ = end;
}

void PointToPoint::end_waiting(PairEnd::Kind kind) {
  std::vector<std::size_t> awaited = order_.awaited([this](std::size_t i) { return transfers_[i].has_met(); });
  end_with(kind, transfers_[awaited.front()]);
  end_->awaited = std::move(awaited);
}

// Until the bell rings, or the deadline. Whether anything has moved, or ended.
bool PointToPoint::sleep(base::Deadline& deadline) {
  Bell& own = bell(rank_);
  bool has_moved = false;
  sleep_unless_over(own.word, own.sleepers, [&]() -> std::optional<Clock::time_point> {
    has_moved = advance();
    if (has_moved) return std::nullopt;
    if (!deadline.passed(Clock::now())) return deadline.end();
    end_waiting(PairEnd::Kind::timed_out);
    return std::nullopt;
  });
  return has_moved;
}

void PointToPoint::ring(int rank) {
  Bell& of_rank = bell(rank);
  if (of_rank.sleepers.load() == 0) return;
  of_rank.word.fetch_add(1);
  futex_wake_all(of_rank.word);
}

void PointToPoint::announce(const Words& words) {
  for (std::size_t i = 0; i < words.size(); ++i) bell(rank_).announced[i].store(words[i]);
}

PointToPoint::Words PointToPoint::announced(int rank) const {
  Words words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = bell(rank).announced[i].load();
  return words;
}

void PointToPoint::wake() {
  if (is_attached_.load()) ring(rank_);
}

void PointToPoint::wake_all() {
  for (int rank = 0; is_attached_.load() && rank < size_; ++rank) ring(rank);
}

}  // namespace ddp::cpu_backend
