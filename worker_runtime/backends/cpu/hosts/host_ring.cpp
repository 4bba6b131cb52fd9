#include "worker_runtime/backends/cpu/hosts/host_ring.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "worker_runtime/backends/cpu/hosts/ring_order.hpp"
#include "worker_runtime/backends/cpu/hosts/ring_sum.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kPieceBytes = 256u << 10;  // larger ones leave the cache, smaller ones cost more calls

// How far one direction has come.
struct Place {
  std::size_t turn = 0;   // slices done
  std::size_t bytes = 0;  // of the present one

  // Whether anything has moved.
  bool advance(std::size_t moved, std::size_t slice_bytes) {
    bytes += moved;
    if (bytes == slice_bytes) *this = {turn + 1, 0};
    return moved > 0;
  }
};

// Moves the slices of an all_reduce: sends as far as it has received.
class Ring : public HostStreams::Motion {
 public:
  Ring(const HostStreams& streams, const RingOrder& order, const RingSum& sum)
      : order_(order), sum_(sum), ahead_(streams.bytes_ahead(order.next())) {}

  Step step(HostStreams& streams) override {
    const bool has_sent = send(streams);
    const bool has_received = receive(streams);
    if (lost_) return Step::lost;
    const bool has_sent_all = out_.turn == order_.turns();
    if (in_.turn == order_.turns() && (has_sent_all || is_out_broken_)) {
      // A host that has given all it had to can be missed.
      if (has_sent_all || order_.next() == order_.before()) return Step::done;
      lost_ = order_.next();
      return Step::lost;
    }
    return has_sent || has_received ? Step::moved : Step::stuck;
  }

  void name(std::vector<Awaited>& awaited) const override {
    if (lost_) return awaited.push_back({*lost_});
    const bool to_send = !is_out_broken_ && !sendable().empty();
    const bool to_receive = in_.turn < order_.turns();
    if (order_.next() == order_.before()) return awaited.push_back({order_.next(), to_send, to_receive});
    if (to_send) awaited.push_back({order_.next(), true, false});
    if (to_receive) awaited.push_back({order_.before(), false, true});
  }

 private:
  std::span<const std::byte> sendable() const {
    if (out_.turn == order_.turns()) return {};
    const auto slice = order_.sent_in(out_.turn);
    const bool is_whole = out_.turn == 0 || in_.turn >= out_.turn;
    const std::size_t up_to = is_whole ? slice.size() : in_.turn + 1 == out_.turn ? in_.bytes : 0;
    return slice.subspan(out_.bytes, std::min(up_to - out_.bytes, received_ + ahead_ - sent_));
  }

  bool send(HostStreams& streams) {
    while (out_.turn < order_.turns() && order_.sent_in(out_.turn).empty()) ++out_.turn;
    const auto ready = sendable().first(std::min(sendable().size(), kPieceBytes));
    if (ready.empty() || is_out_broken_) return false;
    const auto bytes = streams.send(order_.next(), ready);
    is_out_broken_ = !bytes;
    sent_ += bytes.value_or(0);
    return out_.advance(bytes.value_or(0), order_.sent_in(out_.turn).size());
  }

  bool receive(HostStreams& streams) {
    while (in_.turn < order_.turns() && order_.received_in(in_.turn).empty()) ++in_.turn;
    if (in_.turn == order_.turns()) return false;
    const auto slice = order_.received_in(in_.turn);
    const auto rest = slice.subspan(in_.bytes);
    const bool is_sum = order_.is_sum(in_.turn);
    const auto room = is_sum ? sum_.room(rest.size()) : rest.first(std::min(rest.size(), kPieceBytes));
    const auto received = streams.receive(order_.before(), room);
    if (!received) lost_ = order_.before();
    const std::size_t bytes = received.value_or(0);
    if (bytes == 0) return false;
    received_ += bytes;
    const RingSum::Part part{order_.completes_sum(in_.turn), order_.own_elements_first()};
    in_.advance(is_sum ? sum_.take(bytes, rest, part) : bytes, slice.size());
    return true;
  }

  RingOrder order_;
  RingSum sum_;
  std::size_t ahead_;                    // bytes that it may send before it has received as many
  std::size_t sent_ = 0, received_ = 0;  // bytes in all
  Place out_, in_;
  bool is_out_broken_ = false;
  std::optional<int> lost_;
};

// Each but the last passes on what it has received so far.
class Passing : public HostStreams::Motion {
 public:
  Passing(const HostStreams& streams, std::span<std::byte> bytes, int root)
      : bytes_(bytes),
        before_((streams.own_host() + streams.host_count() - 1) % streams.host_count()),
        next_((streams.own_host() + 1) % streams.host_count()),
        is_last_(next_ == root),
        received_(streams.own_host() == root ? bytes.size() : 0) {}

  Step step(HostStreams& streams) override {
    bool has_moved = false;
    if (!has_sent_all()) {
      const auto ready = bytes_.first(received_).subspan(sent_);
      const auto sent = ready.empty() ? 0 : streams.send(next_, ready.first(std::min(ready.size(), kPieceBytes)));
      if (!sent) return lose(next_);
      sent_ += *sent;
      has_moved = *sent > 0;
    }
    if (!has_received_all()) {
      const auto room = bytes_.subspan(received_);
      const auto received = streams.receive(before_, room.first(std::min(room.size(), kPieceBytes)));
      if (!received) return lose(before_);
      received_ += *received;
      has_moved = has_moved || *received > 0;
    }
    return has_received_all() && has_sent_all() ? Step::done : has_moved ? Step::moved : Step::stuck;
  }

  void name(std::vector<Awaited>& awaited) const override {
    if (lost_) return awaited.push_back({*lost_});
    const bool to_send = !is_last_ && sent_ < received_;
    if (to_send) awaited.push_back({next_, true, false});
    if (!has_received_all()) awaited.push_back({before_, false, true});
  }

 private:
  bool has_received_all() const { return received_ == bytes_.size(); }
  bool has_sent_all() const { return is_last_ || sent_ == bytes_.size(); }
  Step lose(int host) {
    lost_ = host;
    return Step::lost;
  }

  std::span<std::byte> bytes_;
  int before_, next_;
  bool is_last_;
  std::size_t received_, sent_ = 0;
  std::optional<int> lost_;
};

}  // namespace

HostRing::HostRing() : memory_(kPieceBytes + kCacheLineBytes) {
  void* begin = memory_.data();
  std::size_t bytes = memory_.size();
  piece_ = {static_cast<std::byte*>(std::align(kCacheLineBytes, kPieceBytes, begin, bytes)), kPieceBytes};
}

HostStreams::End HostRing::all_reduce(HostStreams& streams, std::span<std::byte> elements, DataType type, ReduceOp op,
                                      std::size_t ranks, const HostStreams::Wait& wait) {
  Ring ring(streams, RingOrder(streams.host_count(), streams.own_host(), elements, type),
            RingSum(piece_, type, op, ranks));
  return streams.run(ring, wait);
}

HostStreams::End HostRing::broadcast(HostStreams& streams, std::span<std::byte> bytes, int root,
                                     const HostStreams::Wait& wait) {
  Passing passing(streams, bytes, root);
  return streams.run(passing, wait);
}

}  // namespace ddp::cpu_backend
