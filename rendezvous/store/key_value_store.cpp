#include "rendezvous/store/key_value_store.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::store {
namespace {

// The leading decimal number of a value, as the reference reads it: spaces and a sign may come before, anything after.
std::int64_t parse_integer(std::string_view key, std::string_view value) {
  std::string_view text = value;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec == std::errc::result_out_of_range) {
    throw StoreError("ADD: the value of key " + key_text(key) + ", " + key_text(value) + ", is beyond 64 bits");
  }
  if (result.ec != std::errc{}) {
    throw StoreError("ADD: the value of key " + key_text(key) + ", " + key_text(value) + ", is no number");
  }
  return number;
}

}  // namespace

struct KeyValueStore::Handler {
  KeyValueStore& store;
  ConnectionId from;
  std::vector<Answer> answers;

  void answer(std::string bytes) { answers.push_back({from, std::move(bytes)}); }
  void answer(char byte) { answer(std::string(1, byte)); }

  bool contains_all(const std::vector<std::string>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return store.contains(key); });
  }

  void operator()(command::Validate&&) {}

  void operator()(command::Set&& c) {
    store.require_room(store.growth(c.key, c.value.size()));
    store.put(std::move(c.key), std::move(c.value), answers);
  }

  // On a missing key with another expectation the reference answers the expectation, and so do we: clients know no
  // other sign that nothing was stored.
  void operator()(command::CompareSet&& c) {
    const auto found = store.values_.find(c.key);
    const bool is_there = found != store.values_.end();
    if (is_there ? found->second == c.expected : c.expected.empty()) {
      store.require_room(store.growth(c.key, c.desired.size()));
      answer(encode_value(c.desired));
      store.put(std::move(c.key), std::move(c.desired), answers);
    } else {
      answer(encode_value(is_there ? found->second : c.expected));
    }
  }

  void operator()(command::Get&& c) {
    const auto found = store.values_.find(c.key);
    answer(encode_value(found == store.values_.end() ? std::string_view() : found->second));
  }

  void operator()(command::Add&& c) {
    const auto found = store.values_.find(c.key);
    const std::int64_t old = found == store.values_.end() ? 0 : parse_integer(c.key, found->second);
    std::int64_t sum = 0;
    if (__builtin_add_overflow(old, c.delta, &sum)) {
      throw StoreError("ADD: " + std::to_string(old) + " and " + std::to_string(c.delta) + " of key " +
                       key_text(c.key) + " add up to more than 64 bits");
    }
    auto text = std::to_string(sum);
    store.require_room(store.growth(c.key, text.size()));
    answer(encode_integer(sum));
    store.put(std::move(c.key), std::move(text), answers);
  }

  void operator()(command::Check&& c) { answer(contains_all(c.keys) ? kReady : kNotReady); }

  // A client has one wait at a time; a second one takes the place of the first, which is then never answered.
  void operator()(command::Wait&& c) {
    std::erase_if(c.keys, [this](const auto& key) { return store.contains(key); });
    std::size_t bytes = 0;
    for (const auto& key : c.keys) bytes += 2 * key.size() + kEntryBytes;
    const auto pending = store.waits_.find(from);
    const std::size_t given_back = pending == store.waits_.end() ? 0 : pending->second.bytes;
    if (bytes > given_back) store.require_room(bytes - given_back);
    store.disconnected(from);
    if (c.keys.empty()) return answer(kWaitFulfilled);
    Waiting waiting{std::move(c.keys), 0, bytes};
    for (const auto& key : waiting.keys) {
      if (store.waiters_[key].insert(from).second) ++waiting.missing;  // a key may be named twice
    }
    store.total_bytes_ += bytes;
    store.waits_.emplace(from, std::move(waiting));
  }

  void operator()(command::KeyCount&&) { answer(encode_integer(static_cast<std::int64_t>(store.values_.size()))); }

  void operator()(command::Remove&& c) {
    const auto found = store.values_.find(c.key);
    const bool was_there = found != store.values_.end();
    if (was_there) {
      store.total_bytes_ -= found->first.size() + found->second.size() + kEntryBytes;
      store.values_.erase(found);
    }
    answer(encode_integer(was_there ? 1 : 0));
  }

  void operator()(command::Append&& c) {
    const auto found = store.values_.find(c.key);
    if (found == store.values_.end()) return (*this)(command::Set{std::move(c.key), std::move(c.value)});
    if (found->second.size() + c.value.size() > store.options_.value_bytes_max) {
      throw StoreError("APPEND: the value of key " + key_text(c.key) + " would grow beyond the limit of " +
                       std::to_string(store.options_.value_bytes_max) + " bytes");
    }
    store.require_room(c.value.size());
    store.total_bytes_ += c.value.size();
    found->second += c.value;  // nobody waits for a key that is there
  }

  void operator()(command::MultiGet&& c) {
    std::vector<std::string_view> values;
    std::size_t bytes = 0;
    for (const auto& key : c.keys) {
      const auto found = store.values_.find(key);
      values.push_back(found == store.values_.end() ? std::string_view() : found->second);
      bytes += 8 + values.back().size();
    }
    if (bytes > store.options_.answer_bytes_max) {
      throw StoreError("MULTI_GET: an answer of " + std::to_string(bytes) + " bytes is beyond the limit of " +
                       std::to_string(store.options_.answer_bytes_max));
    }
    std::string all;
    all.reserve(bytes);
    for (const auto value : values) append_value(all, value);
    answer(std::move(all));
  }

  void operator()(command::MultiSet&& c) {
    std::size_t bytes = 0;
    for (const auto& entry : c.entries) bytes += store.growth(entry.key, entry.value.size());
    store.require_room(bytes);
    for (auto& entry : c.entries) store.put(std::move(entry.key), std::move(entry.value), answers);
  }

  void operator()(command::CancelWait&&) {
    store.disconnected(from);
    answer(kWaitCancelled);
  }

  void operator()(command::Ping&& c) { answer(encode_nonce(c.nonce)); }
};

std::vector<Answer> KeyValueStore::step(ConnectionId from, Command command) {
  Handler handler{*this, from, {}};
  std::visit([&handler](auto& c) { handler(std::move(c)); }, command);
  return std::move(handler.answers);
}

void KeyValueStore::disconnected(ConnectionId connection) {
  const auto pending = waits_.find(connection);
  if (pending == waits_.end()) return;
  for (const auto& key : pending->second.keys) {
    const auto found = waiters_.find(key);
    if (found == waiters_.end()) continue;  // it has appeared since
    found->second.erase(connection);
    if (found->second.empty()) waiters_.erase(found);
  }
  total_bytes_ -= pending->second.bytes;
  waits_.erase(pending);
}

// Bytes by which a key's entry grows when it takes a value of this size; 0 where it shrinks.
std::size_t KeyValueStore::growth(std::string_view key, std::size_t value_bytes) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return key.size() + value_bytes + kEntryBytes;
  return value_bytes - std::min(value_bytes, found->second.size());
}

void KeyValueStore::require_room(std::size_t bytes) const {
  if (bytes <= options_.total_bytes_max - total_bytes_) return;
  throw StoreError("the store is full: it holds " + std::to_string(total_bytes_) + " of " +
                   std::to_string(options_.total_bytes_max) + " bytes, and " + std::to_string(bytes) +
                   " more were sent");
}

void KeyValueStore::put(std::string key, std::string value, std::vector<Answer>& answers) {
  const auto [entry, is_new] = values_.try_emplace(std::move(key));
  if (is_new) total_bytes_ += entry->first.size() + kEntryBytes;
  total_bytes_ += value.size();
  total_bytes_ -= entry->second.size();
  entry->second = std::move(value);
  wake(entry->first, answers);
}

// Tells those who wait for a key, which is there now, and answers those for whom it was the last.
void KeyValueStore::wake(const std::string& key, std::vector<Answer>& answers) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  for (const ConnectionId waiter : found->second) {
    const auto pending = waits_.find(waiter);
    if (--pending->second.missing > 0) continue;
    answers.push_back({waiter, std::string(1, kWaitFulfilled)});
    total_bytes_ -= pending->second.bytes;
    waits_.erase(pending);
  }
  waiters_.erase(found);
}

}  // namespace ddp::store
