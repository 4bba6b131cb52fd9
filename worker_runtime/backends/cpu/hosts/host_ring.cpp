#include "worker_runtime/backends/cpu/hosts/host_ring.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kPieceBytes = 256u << 10;  // larger ones leave the cache, smaller ones cost more calls

// Slices come in the order own - 1, own - 2, ...: first, H - 1 of them, parts of sums, then, as many, results. Each
// goes on to the next host as far as it has been taken in, behind the own slice, which is the first that goes.
class Ring : public HostStreams::Motion {
 public:
  Ring(const HostStreams& streams, std::span<std::byte> elements, DataType type, ReduceOp op, std::size_t ranks,
       std::span<std::byte> piece)
      : hosts_(static_cast<std::size_t>(streams.host_count())),
        own_(static_cast<std::size_t>(streams.own_host())),
        elements_(elements),
        type_(type),
        op_(op),
        ranks_(ranks),
        piece_(piece),
        ahead_(streams.bytes_ahead(next())) {}

  Step step(HostStreams& streams) override {
    const bool has_sent = send(streams);
    const bool has_received = receive(streams);
    if (lost_) return Step::lost;
    if (in_.turn == turns() && (out_.turn == turns() || is_out_broken_)) {
      if (out_.turn == turns() || next() == before()) return Step::done;  // who has given all it had to can be missed
      lost_ = next();
      return Step::lost;
    }
    return has_sent || has_received ? Step::moved : Step::stuck;
  }

  void name(std::vector<Awaited>& awaited) const override {
    if (lost_) return awaited.push_back({*lost_});
    const bool to_send = !is_out_broken_ && !sendable().empty();
    const bool to_receive = in_.turn < turns();
    if (next() == before()) return awaited.push_back({next(), to_send, to_receive});
    if (to_send) awaited.push_back({next(), true, false});
    if (to_receive) awaited.push_back({before(), false, true});
  }

 private:
  struct Place {
    std::size_t turn = 0;   // slices done
    std::size_t bytes = 0;  // of the present one
  };

  std::size_t turns() const { return 2 * (hosts_ - 1); }
  int next() const { return static_cast<int>((own_ + 1) % hosts_); }
  int before() const { return static_cast<int>((own_ + hosts_ - 1) % hosts_); }
  bool is_sum(std::size_t turn) const { return turn + 1 < hosts_; }

  std::span<std::byte> slice(std::size_t host) const {
    const std::size_t element = size_of(type_);
    const Slice slice = slice_of(elements_.size() / element, type_, static_cast<int>(host), static_cast<int>(hosts_));
    return elements_.subspan(slice.begin * element, (slice.end - slice.begin) * element);
  }
  std::span<std::byte> slice_out(std::size_t turn) const { return slice((own_ + 2 * hosts_ - turn) % hosts_); }
  std::span<std::byte> slice_in(std::size_t turn) const { return slice_out(turn + 1); }

  std::span<const std::byte> sendable() const {
    if (out_.turn == turns()) return {};
    const auto slice = slice_out(out_.turn);
    const bool is_whole = out_.turn == 0 || in_.turn >= out_.turn;
    const std::size_t up_to = is_whole ? slice.size() : in_.turn + 1 == out_.turn ? in_.bytes : 0;
    return slice.subspan(out_.bytes, std::min(up_to - out_.bytes, received_ + ahead_ - sent_));
  }

  bool send(HostStreams& streams) {
    pass_empty(out_, [&](std::size_t turn) { return slice_out(turn).size(); });
    const auto ready = sendable().first(std::min(sendable().size(), kPieceBytes));
    if (ready.empty() || is_out_broken_) return false;
    const auto bytes = streams.send(next(), ready);
    is_out_broken_ = !bytes;
    sent_ += bytes.value_or(0);
    return advance(out_, bytes.value_or(0), slice_out(out_.turn).size());
  }

  bool receive(HostStreams& streams) {
    pass_empty(in_, [&](std::size_t turn) { return slice_in(turn).size(); });
    if (in_.turn == turns()) return false;
    const auto slice = slice_in(in_.turn);
    const auto room =
        is_sum(in_.turn)
            ? piece_.subspan(filled_, std::min(piece_.size(), slice.size() - in_.bytes + summed_) - filled_)
            : slice.subspan(in_.bytes, std::min(slice.size() - in_.bytes, kPieceBytes));
    const auto bytes = streams.receive(before(), room);
    if (!bytes) lost_ = before();
    received_ += bytes.value_or(0);
    if (!is_sum(in_.turn)) return advance(in_, bytes.value_or(0), slice.size());
    filled_ += bytes.value_or(0);
    if (bytes.value_or(0) > 0) sum(slice);
    return bytes.value_or(0) > 0;
  }

  // What has arrived of a piece, in whole cache lines but for the last.
  void sum(std::span<std::byte> slice) {
    const bool is_last = in_.bytes + (filled_ - summed_) == slice.size();
    const std::size_t bytes = is_last ? filled_ - summed_ : (filled_ - summed_) / kCacheLineBytes * kCacheLineBytes;
    std::byte* const own = slice.data() + in_.bytes;
    std::array<const std::byte*, 2> sources{piece_.data() + summed_, own};
    if (hosts_ == 2 && own_ == 0) std::swap(sources[0], sources[1]);
    const bool is_total = !is_sum(in_.turn + 1);
    const ReduceOp op = is_total || op_ != ReduceOp::average ? op_ : ReduceOp::sum;
    reduce({type_, op, ranks_}, sources, {&own, 1}, {0, bytes / size_of(type_)});
    summed_ += bytes;
    if (is_last || summed_ == piece_.size()) filled_ = summed_ = 0;
    advance(in_, bytes, slice.size());
  }

  static bool advance(Place& place, std::size_t bytes, std::size_t of_slice) {
    place.bytes += bytes;
    if (place.bytes == of_slice) place = {place.turn + 1, 0};
    return bytes > 0;
  }
  template <class SizeOf>
  void pass_empty(Place& place, const SizeOf& size_of_turn) const {
    while (place.turn < turns() && size_of_turn(place.turn) == 0) ++place.turn;
  }

  std::size_t hosts_, own_;
  std::span<std::byte> elements_;
  DataType type_;
  ReduceOp op_;
  std::size_t ranks_;
  std::span<std::byte> piece_;
  std::size_t filled_ = 0, summed_ = 0;  // bytes of the piece
  std::size_t ahead_;                    // that it may send before it has received as much
  std::size_t sent_ = 0, received_ = 0;  // in all
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
  Ring ring(streams, elements, type, op, ranks, piece_);
  return streams.run(ring, wait);
}

HostStreams::End HostRing::broadcast(HostStreams& streams, std::span<std::byte> bytes, int root,
                                     const HostStreams::Wait& wait) {
  Passing passing(streams, bytes, root);
  return streams.run(passing, wait);
}

}  // namespace ddp::cpu_backend
