#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/elastic.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/elastic/host_copy.hpp"

namespace ddp {

namespace {

constexpr std::size_t kChunkBytes = 16u << 20;  // of the state, in one broadcast

// Which commit a rank has, and what its state looks like: what ranks tell each other before one gives its state away.
struct Offer {
  std::uint64_t has_commit = 0;
  RoundId round;
  std::uint64_t count = 0;
  std::uint64_t entries = 0, bytes = 0, layout = 0;

  static constexpr std::size_t kWords = 8;
  using Words = std::array<std::int64_t, kWords>;

  Words words() const {
    Words out{};
    const std::uint64_t values[] = {has_commit, round.term, round.term_random, round.number, count, entries, bytes, layout};
    for (std::size_t i = 0; i < kWords; ++i) out[i] = static_cast<std::int64_t>(values[i]);
    return out;
  }

  static Offer from(const std::int64_t* words) {
    const auto word = [&](std::size_t i) { return static_cast<std::uint64_t>(words[i]); };
    return {word(0), {word(1), word(2), static_cast<std::uint32_t>(word(3))}, word(4), word(5), word(6), word(7)};
  }

  auto key() const { return std::make_tuple(has_commit, round.key(), count); }
  bool fits(const Offer& other) const {
    return entries == other.entries && bytes == other.bytes && layout == other.layout;
  }
};

ConstMemoryRange range_in(const RegisteredMemory& memory, std::size_t first, std::size_t count) {
  return {static_cast<const std::int64_t*>(memory.data()) + first, count, DataType::int64, memory.device()};
}

MemoryRange writable(const ConstMemoryRange& range) {
  return {const_cast<void*>(range.data), range.count, range.type, range.device};
}

std::vector<Offer> gather(ProcessGroup& group, const Offer& own) {
  constexpr std::size_t kBytes = Offer::kWords * sizeof(std::int64_t);
  const auto size = static_cast<std::size_t>(group.size());
  const RegisteredMemory memory = group.allocate(kBytes * size);
  const auto rank = static_cast<std::size_t>(group.rank());
  const auto words = own.words();
  elastic::copy_to(static_cast<std::int64_t*>(memory.data()) + rank * Offer::kWords,
                   reinterpret_cast<const std::byte*>(words.data()), kBytes, memory.device());
  group.all_gather(range_in(memory, rank * Offer::kWords, Offer::kWords), writable(range_in(memory, 0, size * Offer::kWords)));
  std::vector<std::int64_t> all(size * Offer::kWords);
  elastic::copy_from(reinterpret_cast<std::byte*>(all.data()), memory.data(), kBytes * size, memory.device());
  std::vector<Offer> offers;
  for (std::size_t i = 0; i < size; ++i) offers.push_back(Offer::from(&all[i * Offer::kWords]));
  return offers;
}

void require_same_entries(const std::vector<Offer>& offers) {
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].fits(offers[0])) continue;
    const auto text = [&](std::size_t of) {
      return "rank " + std::to_string(of) + " has " + std::to_string(offers[of].entries) + " of together " +
             std::to_string(offers[of].bytes) + " bytes";
    };
    throw MismatchError("the entries of the elastic state differ: " + text(0) + ", " + text(rank) +
                        (offers[rank].bytes == offers[0].bytes ? " in other sizes" : "") +
                        "\ntry:   add the same entries in the same order on all ranks");
  }
}

}  // namespace

class ElasticState::Impl {
 public:
  void add(void* data, std::size_t bytes, Device device) {
    if (!elastic::is_supported(device)) elastic::copy_from(nullptr, data, 0, device);  // throws, and says why
    if (has_copy_ || is_in_use_) throw InvalidArgument("an entry is added to elastic state that was committed or synced already"
                                                       "\ntry:   add every entry first");
    entries_.push_back({data, bytes, device});
    bytes_ += bytes;
    layout_ = (layout_ ^ bytes) * 1099511628211u;  // FNV-1a, by sizes
  }

  void commit() {
    is_in_use_ = true;
    read_into(older());
    keep_older(round_, count_ + 1);
    agent_link::tell_commits(count_);
  }

  void restore() {
    if (has_copy_) write_from(copies_[newest_]);
  }

  void sync(ProcessGroup& group) {
    is_in_use_ = true;
    const auto offers = gather(group, {has_copy_, commit_round_, has_copy_ ? count_ : 0, entries_.size(), bytes_, layout_});
    require_same_entries(offers);
    const auto source = std::max_element(offers.begin(), offers.end(),
                                         [](const Offer& a, const Offer& b) { return a.key() < b.key(); });  // the first of equals
    const int root = static_cast<int>(source - offers.begin());
    auto& taken = older();
    if (root == group.rank()) {
      if (has_copy_)
        taken = copies_[newest_];
      else
        read_into(taken);
    }
    broadcast(group, taken, root);
    group.barrier();  // all have it, or nobody changes anything
    const bool had_commit = source->has_commit != 0;
    keep_older(had_commit ? source->round : group.round(), had_commit ? source->count : 0);
    round_ = group.round();
    write_from(copies_[newest_]);
    agent_link::tell_commits(count_);
  }

  std::uint64_t commits() const { return count_; }

 private:
  struct Entry {
    void* data;
    std::size_t bytes;
    Device device;
  };
  using Copy = std::vector<std::byte>;

  // The copy that may be written over; of the right size.
  Copy& older() {
    auto& copy = copies_[1 - newest_];
    copy.resize(bytes_);
    return copy;
  }

  void keep_older(const RoundId& round, std::uint64_t count) {
    newest_ = 1 - newest_;
    has_copy_ = true;
    commit_round_ = round;
    count_ = count;
  }

  void read_into(Copy& copy) const {
    std::size_t at = 0;
    for (const auto& entry : entries_) {
      elastic::copy_from(copy.data() + at, entry.data, entry.bytes, entry.device);
      at += entry.bytes;
    }
  }

  void write_from(const Copy& copy) const {
    std::size_t at = 0;
    for (const auto& entry : entries_) {
      elastic::copy_to(entry.data, copy.data() + at, entry.bytes, entry.device);
      at += entry.bytes;
    }
  }

  // Through memory of the group, a chunk at a time: nothing here knows on what device that is.
  static void broadcast(ProcessGroup& group, Copy& copy, int root) {
    if (copy.empty()) return;
    const auto words_of = [](std::size_t bytes) { return (bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t); };
    const std::size_t chunk_bytes = std::min(kChunkBytes, copy.size());
    const RegisteredMemory memory = group.allocate(words_of(chunk_bytes) * sizeof(std::int64_t));
    for (std::size_t at = 0; at < copy.size(); at += chunk_bytes) {
      const std::size_t bytes = std::min(chunk_bytes, copy.size() - at);
      if (root == group.rank()) elastic::copy_to(memory.data(), copy.data() + at, bytes, memory.device());
      group.broadcast(writable(range_in(memory, 0, words_of(bytes))), root);
      if (root != group.rank()) elastic::copy_from(copy.data() + at, memory.data(), bytes, memory.device());
    }
  }

  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  std::uint64_t layout_ = 14695981039346656037u;
  std::array<Copy, 2> copies_;
  std::size_t newest_ = 0;
  bool has_copy_ = false, is_in_use_ = false;
  RoundId commit_round_;     // in which the newest copy was made
  RoundId round_;            // of the last sync
  std::uint64_t count_ = 0;  // of the newest copy
};

ElasticState::ElasticState() : impl_(std::make_unique<Impl>()) {}
ElasticState::~ElasticState() = default;
ElasticState::ElasticState(ElasticState&& other) noexcept = default;
ElasticState& ElasticState::operator=(ElasticState&& other) noexcept = default;

void ElasticState::add(MemoryRange values) { impl_->add(values.data, values.bytes(), values.device); }
void ElasticState::add_bytes(void* data, std::size_t bytes) { impl_->add(data, bytes, {}); }
void ElasticState::commit() { impl_->commit(); }
void ElasticState::restore() { impl_->restore(); }
void ElasticState::sync(ProcessGroup& group) { impl_->sync(group); }
std::uint64_t ElasticState::commits() const { return impl_->commits(); }

}  // namespace ddp
