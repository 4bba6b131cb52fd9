// The sends and receives of a rank, apart from how their bytes move: their order, their numbers, which receive takes
// which message, and how a run of them ends.
//
// A receive takes only a message that has its tag. A message with another tag goes to a later receive of the same run,
// or is kept (KeptMessages), so that the messages behind it can be received.
//
// PairTransfers is a template because each way of moving bytes adds fields of its own to a transfer, and a small
// message must not cost a virtual call. The vectors keep their memory from run to run, so that a run does not allocate.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker_runtime/backends/cpu/pairs/kept_messages.hpp"
#include "worker_runtime/backends/cpu/pairs/pair_call.hpp"

namespace ddp::cpu_backend {

// The result of one step of a transfer.
enum class TransferStep : std::uint8_t {
  idle,      // nothing could be done
  moved,     // something was done, and the transfer goes on
  complete,  // the message is sent or received
  mismatch,  // the peer made another call
  lost,      // the peer is gone
};

// One send or receive of the present run.
struct PairTransfer {
  PairTransfer(const Collective& collective, int peer_of_call)
      : call(core::fingerprint_of(collective)),
        tag(collective.tag),
        is_from_any(peer_of_call == kAnyPeer),
        peer(peer_of_call) {
    own = is_send()
              ? std::span(static_cast<std::byte*>(const_cast<void*>(collective.input.data)), collective.input.bytes())
              : std::span(static_cast<std::byte*>(collective.output.data), collective.output.bytes());
  }

  Fingerprint call;
  int tag;
  bool is_from_any;
  std::span<std::byte> own;                      // the caller's memory; a send only reads it
  int peer;                                      // kAnyPeer in a receive from any until it has accepted a message
  std::uint64_t number = 0;                      // 0 until a send has begun, or a receive has accepted a message
  std::optional<KeptMessages::Message> to_keep;  // the accepted message, if it has another tag
  std::optional<Fingerprint> kept_call;          // of a mismatch with a kept message: the call of its sender

  bool is_send() const { return call.kind == CollectiveKind::send; }
};

// Transfer derives from PairTransfer, has its constructor, and these functions:
//   bool has_met() const;           whether the peer is known to have made its call
//   Fingerprint peer_call() const;  after a mismatch: the call of the peer; the root is the tag
template <class Transfer>
class PairTransfers {
 public:
  // `size`: peers are below it.
  explicit PairTransfers(int size) : sent_(static_cast<std::size_t>(size)), received_(static_cast<std::size_t>(size)) {}

  // Begins a run of these calls; peers[i] is the peer of calls[i]. A receive from any has kAnyPeer and is the only
  // call. `first`: shared with the other half of a receive from any; may be null.
  void begin(std::span<const Collective> calls, std::span<const int> peers, FirstMessage* first) {
    transfers_.clear();
    end_.reset();
    first_ = first;
    order_.begin(calls, peers, static_cast<int>(sent_.size()));
    for (std::size_t i = 0; i < calls.size(); ++i) transfers_.emplace_back(calls[i], peers[i]);
  }

  std::span<Transfer> all() { return transfers_; }
  Transfer& operator[](std::size_t call) { return transfers_[call]; }

  // The calls that are under way. The reference stays valid; what it refers to changes with each step.
  const std::vector<std::size_t>& active() const { return order_.active(); }
  Transfer& active_at(std::size_t at) { return transfers_[order_.active()[at]]; }

  // Whether a call has ended the run early; whether the run is over, early or with all calls complete.
  bool has_ended() const { return end_.has_value(); }
  bool is_over() const { return end_.has_value() || order_.active().empty(); }

  // Of a run that is over.
  PairEnd result() const {
    if (end_) return *end_;
    const Transfer& first = transfers_.front();
    return {.peer = first.is_from_any ? first.peer : kAnyPeer};
  }

  // Gives a send its number.
  void begin_send(Transfer& transfer) { transfer.number = ++sent_[static_cast<std::size_t>(transfer.peer)]; }

  // The number of the next message from the peer.
  std::uint64_t next_received(int peer) const { return received_[static_cast<std::size_t>(peer)] + 1; }

  // Whether the other half of a receive from any has taken the first message.
  bool is_first_elsewhere() const { return first_ != nullptr && first_->is_taken(); }

  // Completes active()[at] with a kept message of the peer, if there is one with its tag. Returns nothing if not.
  std::optional<TransferStep> take_kept(std::size_t at, int peer) {
    Transfer& transfer = active_at(at);
    if (!kept_.has(peer, transfer.tag)) return std::nullopt;
    if (!may_take(transfer)) return TransferStep::complete;
    const KeptMessages::Message message = kept_.take(peer, transfer.tag);
    transfer.peer = message.peer;
    transfer.number = message.number;
    if (!fit(message.call, transfer.call)) {
      transfer.kept_call = message.call;
      return TransferStep::mismatch;
    }
    if (!transfer.own.empty()) std::memcpy(transfer.own.data(), message.bytes.data(), transfer.own.size());
    return TransferStep::complete;
  }

  // The next message of the peer has come: `sent` is its call. Returns nothing if active()[at] accepts the message;
  // then `peer` and `number` are set, and `to_keep` if the message has another tag. Otherwise returns the result of the
  // step, and the message is not yet received:
  //   moved:    a later receive of the run wants the message, and is active()[at] now
  //   idle:     there is no room to keep the message
  //   complete: the other half of a receive from any was first
  std::optional<TransferStep> accept(std::size_t at, int peer, const Fingerprint& sent) {
    Transfer& transfer = active_at(at);
    if (tag_of(sent) != transfer.tag) {
      const auto is_wanted = [&](std::size_t other) { return transfers_[other].tag == tag_of(sent); };
      if (!transfer.is_from_any && order_.prefer(at, is_wanted)) return TransferStep::moved;
      transfer.to_keep = kept_.prepare(peer, next_received(peer), sent);
      if (!transfer.to_keep) return TransferStep::idle;
    } else if (!may_take(transfer)) {
      return TransferStep::complete;
    }
    transfer.peer = peer;
    transfer.number = ++received_[static_cast<std::size_t>(peer)];
    return std::nullopt;
  }

  // All bytes of the message of active()[at] are moved. Returns whether that completes the call. If not, the message is
  // kept, and the receive waits for its own message as before.
  bool complete(std::size_t at) {
    Transfer& transfer = active_at(at);
    if (!transfer.to_keep) {
      order_.complete(at);
      return true;
    }
    kept_.keep(std::move(*transfer.to_keep));
    transfer.to_keep.reset();
    transfer.number = 0;
    if (transfer.is_from_any) transfer.peer = kAnyPeer;
    return false;
  }

  // Ends the run by a call that did not complete. `peer`: the peer that the call ends for; kAnyPeer for a receive from
  // any that ends for none in particular.
  PairEnd& end_with(PairEnd::Kind kind, std::size_t call, int peer) {
    const Transfer& transfer = transfers_[call];
    PairEnd& end = end_.emplace();
    end.kind = kind;
    end.call = call;
    end.number = transfer.number;
    if (peer != kAnyPeer && (transfer.number == 0 || transfer.to_keep)) {
      end.number = (transfer.is_send() ? sent_ : received_)[static_cast<std::size_t>(peer)] + 1;
    }
    end.has_met = transfer.has_met();
    if (transfer.is_from_any) end.peer = peer;
    if (kind == PairEnd::Kind::mismatch) end.theirs = transfer.kept_call ? *transfer.kept_call : transfer.peer_call();
    return end;
  }

  // Ends the run because it may not wait any longer.
  void end_waiting(PairEnd::Kind kind) {
    std::vector<std::size_t> awaited = order_.awaited([this](std::size_t i) { return transfers_[i].has_met(); });
    PairEnd& end = end_with(kind, awaited.front(), transfers_[awaited.front()].peer);
    end.awaited = std::move(awaited);
  }

 private:
  bool may_take(const Transfer& transfer) { return !transfer.is_from_any || first_ == nullptr || first_->take(); }

  std::vector<std::uint64_t> sent_, received_;  // messages, by peer
  KeptMessages kept_;

  // Of the present run.
  std::vector<Transfer> transfers_;
  PairOrder order_;
  FirstMessage* first_ = nullptr;
  std::optional<PairEnd> end_;
};

}  // namespace ddp::cpu_backend
