#include "worker_runtime/process_group/host_bytes.hpp"

#include <algorithm>
#include <cstring>

#include "worker_runtime/process_group/all_gather_words.hpp"

namespace ddp::process_group {
namespace {

constexpr std::size_t kChunkBytes = 8u << 20;
constexpr std::size_t kWordBytes = sizeof(std::int64_t);

std::size_t words_of(std::size_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

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
  Work work = group.coalesce(
      [&] {
        const ConstMemoryRange from(send.bytes.data(), send.bytes.size(), DataType::uint8);
        const MemoryRange to(receive.bytes.data(), receive.bytes.size(), DataType::uint8);
        if (from.count > 0) static_cast<void>(group.send_async(from, send.peer, options));
        if (to.count > 0) static_cast<void>(group.receive_async(to, receive.peer, options));
      },
      options);
  work.wait();
}

void broadcast(ProcessGroup& group, int root, std::uint64_t bytes,
               const std::function<void(std::uint64_t at, std::span<std::byte> chunk)>& fill,
               const std::function<void(std::uint64_t at, std::span<const std::byte> chunk)>& take,
               CollectiveOptions options) {
  if (bytes == 0) return;
  const auto chunk_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kChunkBytes, bytes));
  // Registered memory is faster, where it is the host's.
  RegisteredMemory registered;
  std::vector<std::byte> plain;
  if (group.device() == Device{}) {
    registered = group.allocate(chunk_bytes, options);
  } else {
    plain.resize(chunk_bytes);
  }
  auto* const chunk = plain.empty() ? static_cast<std::byte*>(registered.data()) : plain.data();
  for (std::uint64_t at = 0; at < bytes; at += chunk_bytes) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(chunk_bytes, bytes - at));
    if (root == group.rank()) fill(at, {chunk, count});
    group.broadcast({chunk, count, DataType::uint8}, root, options);
    take(at, {chunk, count});
  }
}

}  // namespace ddp::process_group
