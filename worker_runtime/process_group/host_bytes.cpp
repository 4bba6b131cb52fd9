#include "worker_runtime/process_group/host_bytes.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "worker_runtime/process_group/all_gather_words.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

namespace ddp::process_group {
namespace {

constexpr std::size_t kChunkBytes = 8u << 20;
constexpr std::size_t kWordBytes = sizeof(std::int64_t);

std::size_t words_of(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

// Memory of the group's device, and where the host reaches it.
class Chunk {
 public:
  Chunk(ProcessGroup& group, std::size_t bytes, const CollectiveOptions& options)
      : memory_(group.allocate(words_of(std::max<std::size_t>(bytes, 1)) * kWordBytes, options)), options_(options) {
    if (memory_.device() == Device{}) return;
    device_ = group.impl()->backend().device_memory();
    on_host_ = device_->allocate_on_host(memory_.bytes());
  }

  std::byte* host() const { return device_ ? on_host_.get() : static_cast<std::byte*>(memory_.data()); }
  MemoryRange range(std::size_t bytes) const {
    return {memory_.data(), words_of(bytes), DataType::int64, memory_.device()};
  }
  void to_device(std::size_t bytes) {
    if (!device_) return;
    const DeviceMemory::Copy copy{memory_.data(), on_host_.get(), bytes};
    device_->copy_from_host({&copy, 1}, options_.stream);
  }
  void to_host(std::size_t bytes) {
    if (!device_) return;
    const DeviceMemory::Copy copy{on_host_.get(), memory_.data(), bytes};
    device_->copy_to_host({&copy, 1}, options_.stream);
  }

 private:
  RegisteredMemory memory_;
  CollectiveOptions options_;
  std::shared_ptr<DeviceMemory> device_;  // null: the memory is the host's
  std::shared_ptr<std::byte[]> on_host_;
};

// Both as one; `to` and `from` are memory of the group's device.
void send_and_receive(ProcessGroup& group, ConstMemoryRange from, int to_peer, MemoryRange to, int from_peer,
                      const CollectiveOptions& options) {
  Work work = group.coalesce(
      [&] {
        if (from.count > 0) static_cast<void>(group.send_async(from, to_peer, options));
        if (to.count > 0) static_cast<void>(group.receive_async(to, from_peer, options));
      },
      options);
  work.wait();
}

template <class Bytes>
Bytes part_of(Bytes bytes, std::size_t at) {
  const std::size_t first = std::min(at, bytes.size());
  return bytes.subspan(first, std::min(kChunkBytes, bytes.size() - first));
}

}  // namespace

std::vector<std::string> all_gather_texts(ProcessGroup& group, const std::string& text, Within within,
                                          CollectiveOptions options) {
  const auto lengths = all_gather_words(group, {static_cast<std::int64_t>(text.size())}, within, options);
  const auto longest_text = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::string> texts;
  if (longest_text == 0) return std::vector<std::string>(lengths.size());
  std::vector<std::int64_t> words(words_of(longest_text));
  std::memcpy(words.data(), text.data(), text.size());
  const auto all = all_gather_words(group, words, within, options);
  for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data() + rank * words.size()),
                       static_cast<std::size_t>(lengths[rank]));
  }
  return texts;
}

void exchange(ProcessGroup& group, const Outgoing& send, const Incoming& receive, CollectiveOptions options) {
  if (group.impl()->backend().reaches({})) {
    return send_and_receive(group, {send.bytes.data(), send.bytes.size(), DataType::uint8}, send.peer,
                            {receive.bytes.data(), receive.bytes.size(), DataType::uint8}, receive.peer, options);
  }
  Chunk outgoing(group, kChunkBytes, options), incoming(group, kChunkBytes, options);  // collective
  for (std::size_t at = 0; at < std::max(send.bytes.size(), receive.bytes.size()); at += kChunkBytes) {
    const auto sent = part_of(send.bytes, at);
    const auto received = part_of(receive.bytes, at);
    if (!sent.empty()) {
      std::memcpy(outgoing.host(), sent.data(), sent.size());
      outgoing.to_device(sent.size());
    }
    send_and_receive(group, outgoing.range(sent.size()), send.peer, incoming.range(received.size()), receive.peer,
                     options);
    if (!received.empty()) {
      incoming.to_host(received.size());
      std::memcpy(received.data(), incoming.host(), received.size());
    }
  }
}

void broadcast(ProcessGroup& group, int root, std::uint64_t bytes,
               const std::function<void(std::uint64_t at, std::span<std::byte> chunk)>& fill,
               const std::function<void(std::uint64_t at, std::span<const std::byte> chunk)>& take,
               CollectiveOptions options) {
  if (bytes == 0) return;
  Chunk chunk(group, static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, bytes)), options);
  for (std::uint64_t at = 0; at < bytes; at += kChunkBytes) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, bytes - at));
    if (root == group.rank()) {
      fill(at, {chunk.host(), count});
      chunk.to_device(count);
    }
    group.broadcast(chunk.range(count), root, options);
    if (root != group.rank()) chunk.to_host(count);
    take(at, {chunk.host(), count});
  }
}

}  // namespace ddp::process_group
