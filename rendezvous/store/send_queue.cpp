#include "rendezvous/store/send_queue.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ddp::store {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);  // before each value
constexpr std::size_t kCopiedBytesMax = 4096;                // a longer value is written from where it is
constexpr std::size_t kBytesKept = 1u << 10;                 // of the buffer for bytes, once all is written

std::string_view text_of(const SharedValue& value) {
  return value ? std::string_view(value->bytes()) : std::string_view();
}

std::size_t wire_bytes(const SharedValue& value) { return kLengthBytes + text_of(value).size(); }

// Parts of which the short ones lie side by side in the scratch bytes.
class Parts {
 public:
  explicit Parts(SendQueue::Scratch& scratch) : scratch_(scratch) {}

  // For one part more, and for a length and a short text.
  bool has_room() const {
    return count_ + 3 <= scratch_.parts.size() && used_ + kLengthBytes + kCopiedBytesMax <= scratch_.bytes.size();
  }
  void copy(std::string_view text) { used_ += text.copy(scratch_.bytes.data() + used_, text.size()); }
  void refer_to(std::string_view text) {
    end_copied();
    if (!text.empty()) scratch_.parts[count_++] = text;
  }
  std::span<const std::string_view> all() {
    end_copied();
    return {scratch_.parts.data(), count_};
  }

 private:
  void end_copied() {
    if (used_ > begin_) scratch_.parts[count_++] = {scratch_.bytes.data() + begin_, used_ - begin_};
    begin_ = used_;
  }

  SendQueue::Scratch& scratch_;
  std::size_t count_ = 0;
  std::size_t begin_ = 0;  // of the bytes copied since the last part
  std::size_t used_ = 0;
};

}  // namespace

void SendQueue::append(Answer&& answer) {
  if (pieces_.empty() || !pieces_.back().values.empty()) {
    memory_bytes_ += pieces_.emplace_back().memory_bytes();
  }
  Piece& piece = pieces_.back();
  memory_bytes_ -= piece.memory_bytes();
  bytes_ += answer.bytes.size();
  if (piece.bytes.empty()) {
    piece.bytes = std::move(answer.bytes);
  } else {
    piece.bytes += answer.bytes;
  }
  piece.values = std::move(answer.values);
  for (const auto& value : piece.values) bytes_ += wire_bytes(value);
  memory_bytes_ += piece.memory_bytes();
}

std::span<const std::string_view> SendQueue::front(Scratch& scratch) const {
  if (pieces_.size() == 1 && pieces_.front().values.empty()) {  // as nearly always
    scratch.parts[0] = std::string_view(pieces_.front().bytes).substr(written_bytes_);
    return {scratch.parts.data(), is_empty() ? 0u : 1u};
  }
  Parts parts(scratch);
  std::size_t first_byte = written_bytes_, first_value = written_values_, value_byte = written_value_bytes_;
  for (const Piece& piece : pieces_) {
    if (!parts.has_room()) break;
    parts.refer_to(std::string_view(piece.bytes).substr(first_byte));
    for (std::size_t i = first_value; i < piece.values.size() && parts.has_room(); ++i) {
      const std::string_view text = text_of(piece.values[i]);
      if (value_byte < kLengthBytes) {
        char length[kLengthBytes];
        const std::uint64_t size = text.size();
        std::memcpy(length, &size, kLengthBytes);
        parts.copy(std::string_view(length, kLengthBytes).substr(value_byte));
      }
      const auto rest = text.substr(value_byte - std::min(value_byte, kLengthBytes));
      if (rest.size() > kCopiedBytesMax) {
        parts.refer_to(rest);
      } else {
        parts.copy(rest);
      }
      value_byte = 0;
    }
    first_byte = first_value = 0;
  }
  return parts.all();
}

void SendQueue::consume(std::size_t count) {
  bytes_ -= count;
  while (count > 0) {
    Piece& piece = pieces_.front();
    const auto of_bytes = std::min(count, piece.bytes.size() - written_bytes_);
    written_bytes_ += of_bytes;
    count -= of_bytes;
    while (count > 0 && written_values_ < piece.values.size()) {
      auto& value = piece.values[written_values_];
      const auto of_value = std::min(count, wire_bytes(value) - written_value_bytes_);
      written_value_bytes_ += of_value;
      count -= of_value;
      if (written_value_bytes_ < wire_bytes(value)) break;
      value.reset();
      ++written_values_;
      written_value_bytes_ = 0;
    }
    if (written_bytes_ == piece.bytes.size() && written_values_ == piece.values.size()) end_piece();
  }
}

void SendQueue::clear() {
  pieces_.clear();
  bytes_ = memory_bytes_ = 0;
  written_bytes_ = written_values_ = written_value_bytes_ = 0;
}

std::size_t SendQueue::dropped_value_bytes() const {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces_) {
    for (const auto& value : piece.values) {
      if (value && value->is_dropped()) bytes += value->memory_bytes();
    }
  }
  return bytes;
}

void SendQueue::end_piece() {
  written_bytes_ = written_values_ = 0;
  Piece& piece = pieces_.front();
  memory_bytes_ -= piece.memory_bytes();
  if (pieces_.size() > 1) return pieces_.pop_front();
  piece.values = std::vector<SharedValue>();
  piece.bytes.clear();
  if (piece.bytes.capacity() > kBytesKept) piece.bytes.shrink_to_fit();
  memory_bytes_ += piece.memory_bytes();
}

}  // namespace ddp::store
