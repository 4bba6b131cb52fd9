#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fnv1a.hpp"
#include "ddp/elastic.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/elastic/offer.hpp"
#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp {

namespace {

using elastic::Offer;

constexpr std::size_t kChunkBytes = 16u << 20;  // of the state, in one broadcast

std::vector<Offer> gather(ProcessGroup& group, const Offer& own) {
  const auto words = own.words();
  const auto all =
      process_group::all_gather_words(group, {words.begin(), words.end()}, process_group::Within::state_sync, {});
  std::vector<Offer> offers;
  for (std::size_t at = 0; at < all.size(); at += Offer::kWords) offers.push_back(Offer::from(&all[at]));
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
    require_unused();
    entries_.push_back({data, bytes, device});
    bytes_ += bytes;
    layout_.add(bytes);
  }

  void set_contents(std::shared_ptr<ElasticContents> contents) {
    require_unused();
    contents_ = std::move(contents);
  }

  void commit() {
    is_in_use_ = true;
    read_into(older());
    if (contents_) contents_->commit();
    keep_older(round_, count_ + 1);
    agent_link::tell_commits(count_);
  }

  void restore() {
    if (device_) device_->wait_for_all();  // a step that failed may have more to write
    if (!has_copy_) return;
    write_from(copies_[newest_]);
    if (contents_) contents_->restore();
  }

  void sync(ProcessGroup& group) {
    take_device(group);
    is_in_use_ = true;
    const std::uint64_t entries = entries_.size() + (contents_ ? 1 : 0);
    const auto offers =
        gather(group, {has_copy_, commit_round_, has_copy_ ? count_ : 0, entries, bytes_, layout_.value(), round_});
    require_same_entries(offers);
    const int root = elastic::source_of(offers, group.device() != Device{});
    const Offer& source = offers[static_cast<std::size_t>(root)];
    auto& taken = older();
    if (root == group.rank()) {
      if (has_copy_) {
        if (bytes_ > 0) std::memcpy(taken.memory.get(), copies_[newest_].memory.get(), bytes_);
      } else {
        read_into(taken);
      }
    }
    broadcast(group, taken, root);
    if (contents_) contents_->fetch(group, root);
    group.barrier();  // all have it, or nobody changes anything
    const bool had_commit = source.has_commit != 0;
    keep_older(had_commit ? source.round : group.round(), had_commit ? source.count : 0);
    round_ = group.round();
    write_from(copies_[newest_]);
    if (contents_) contents_->adopt();
    agent_link::tell_commits(count_);
  }

  std::uint64_t commits() const { return count_; }

 private:
  struct Entry {
    void* data;
    std::size_t bytes;
    Device device;
  };
  using Memory = std::shared_ptr<process_group::DeviceMemory>;

  void require_unused() const {
    if (has_copy_ || is_in_use_)
      throw InvalidArgument(
          "an entry is added to elastic state that was committed or synced already"
          "\ntry:   add every entry first");
  }

  // Of all entries, one after the other.
  struct Copy {
    std::shared_ptr<std::byte[]> memory;
    bool is_for_device = false;  // made by a device's allocate_on_host(), for state that is there
  };

  // How the memory of each device is reached; that of a GPU through the group of the last sync, also when that has
  // ended.
  Memory memory_of(const Device& device) const {
    if (device == Device{}) return host_;
    if (device_ && device_->device() == device) return device_;
    throw InvalidArgument("elastic state in the memory of cuda:" + std::to_string(device.index) +
                          ", which no sync() with a group of that device has made known" + kAdvice);
  }

  void take_device(ProcessGroup& group) {
    const Device of_group = group.device();
    for (const auto& entry : entries_) {
      if (entry.device == Device{} || entry.device == of_group) continue;
      throw InvalidArgument("elastic state in the memory of cuda:" + std::to_string(entry.device.index) +
                            ", which the group does not reach" + kAdvice);
    }
    if (of_group != Device{}) device_ = group.impl()->backend().device_memory();
  }

  // The copy that may be written over; of the right size.
  Copy& older() {
    auto& copy = copies_[1 - newest_];
    const bool is_for_device = device_ && is_any_on_device();
    if (!copy.memory || copy.is_for_device != is_for_device) {
      copy = {};  // before the next: there need not be room for both
      copy = {(is_for_device ? device_ : host_)->allocate_on_host(bytes_), is_for_device};
    }
    return copy;
  }

  bool is_any_on_device() const {
    return std::any_of(entries_.begin(), entries_.end(), [](const auto& entry) { return entry.device != Device{}; });
  }

  void keep_older(const RoundId& round, std::uint64_t count) {
    newest_ = 1 - newest_;
    has_copy_ = true;
    commit_round_ = round;
    count_ = count;
  }

  // In one call for each memory, so that the host waits for a device once.
  void read_into(Copy& copy) const {
    for_each_memory([&](process_group::DeviceMemory& memory, const auto& entries) {
      std::vector<process_group::DeviceMemory::Copy> copies;
      for (const auto& [entry, at] : entries) copies.push_back({copy.memory.get() + at, entry->data, entry->bytes});
      memory.copy_to_host(copies, nullptr);
    });
  }

  void write_from(const Copy& copy) const {
    for_each_memory([&](process_group::DeviceMemory& memory, const auto& entries) {
      std::vector<process_group::DeviceMemory::Copy> copies;
      for (const auto& [entry, at] : entries) copies.push_back({entry->data, copy.memory.get() + at, entry->bytes});
      memory.copy_from_host(copies, nullptr);
    });
  }

  // Calls `visit` with the entries in one memory, and where each is in a copy: of the host, and of the device.
  template <class Visit>
  void for_each_memory(const Visit& visit) const {
    std::vector<std::pair<const Entry*, std::size_t>> on_host, on_device;
    std::size_t at = 0;
    for (const Entry& entry : entries_) {
      (entry.device == Device{} ? on_host : on_device).emplace_back(&entry, at);
      at += entry.bytes;
    }
    if (!on_host.empty()) visit(*host_, on_host);
    if (!on_device.empty()) visit(*memory_of(on_device.front().first->device), on_device);
  }

  // Through memory of the group, a chunk at a time: nothing here knows on what device that is.
  void broadcast(ProcessGroup& group, Copy& copy, int root) const {
    if (bytes_ == 0) return;
    const auto words_of = [](std::size_t bytes) { return (bytes + sizeof(std::int64_t) - 1) / sizeof(std::int64_t); };
    const std::size_t chunk_bytes = std::min(kChunkBytes, bytes_);
    const RegisteredMemory chunk = group.allocate(words_of(chunk_bytes) * sizeof(std::int64_t));
    const Memory memory = memory_of(chunk.device());
    for (std::size_t at = 0; at < bytes_; at += chunk_bytes) {
      const std::size_t bytes = std::min(chunk_bytes, bytes_ - at);
      const process_group::DeviceMemory::Copy out{copy.memory.get() + at, chunk.data(), bytes};
      const process_group::DeviceMemory::Copy in{chunk.data(), out.to, bytes};
      if (root == group.rank()) memory->copy_from_host({&in, 1}, nullptr);
      group.broadcast({chunk.data(), words_of(bytes), DataType::int64, chunk.device()}, root);
      if (root != group.rank()) memory->copy_to_host({&out, 1}, nullptr);
    }
  }

  static constexpr const char* kAdvice =
      "\ntry:   a group of the backend nccl on that device, or a copy in host memory as the entry";

  const Memory host_ = process_group::host_memory();
  Memory device_;  // null before a sync with a group on one
  std::vector<Entry> entries_;
  std::shared_ptr<ElasticContents> contents_;  // may be null
  std::size_t bytes_ = 0;
  base::Fnv1a layout_;  // of the sizes
  std::array<Copy, 2> copies_;
  std::size_t newest_ = 0;
  bool has_copy_ = false, is_in_use_ = false;
  RoundId commit_round_;     // in which the newest copy was made
  RoundId round_;            // of the last sync
  std::uint64_t count_ = 0;  // of the newest copy
};

ElasticContents::~ElasticContents() = default;

ElasticState::ElasticState() : impl_(std::make_unique<Impl>()) {}
ElasticState::~ElasticState() = default;
ElasticState::ElasticState(ElasticState&& other) noexcept = default;
ElasticState& ElasticState::operator=(ElasticState&& other) noexcept = default;

void ElasticState::add(MemoryRange values) { impl_->add(values.data, values.bytes(), values.device); }
void ElasticState::add_bytes(void* data, std::size_t bytes) { impl_->add(data, bytes, {}); }
void ElasticState::set_contents(std::shared_ptr<ElasticContents> contents) { impl_->set_contents(std::move(contents)); }
void ElasticState::commit() { impl_->commit(); }
void ElasticState::restore() { impl_->restore(); }
void ElasticState::sync(ProcessGroup& group) { impl_->sync(group); }
std::uint64_t ElasticState::commits() const { return impl_->commits(); }

}  // namespace ddp
