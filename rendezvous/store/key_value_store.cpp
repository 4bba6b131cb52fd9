#include "rendezvous/store/key_value_store.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::store {
namespace {

// The leading decimal number of a value, as the reference reads it: spaces and a sign may come before, anything after.
std::int64_t parse_integer(const char* command, std::string_view key, std::string_view value) {
  std::string_view text = value;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec == std::errc::result_out_of_range) {
    throw StoreError(std::string(command) + ": the value of key " + key_text(key) + ", " + key_text(value) +
                     ", is beyond 64 bits");
  }
  if (result.ec != std::errc{}) {
    throw StoreError(std::string(command) + ": the value of key " + key_text(key) + ", " + key_text(value) +
                     ", is no number");
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
    const auto found = store.values_.find(c.key);
    store.require_room(store.growth(found, c.key, c.value.size()));
    store.put(found, std::move(c.key), std::move(c.value), answers);
  }

  // On a missing key with another expectation the reference answers the expectation, and so do we: clients know no
  // other sign that nothing was stored.
  void operator()(command::CompareSet&& c) {
    const auto found = store.values_.find(c.key);
    const bool is_there = found != store.values_.end();
    if (is_there ? found->second == c.expected : c.expected.empty()) {
      store.require_room(store.growth(found, c.key, c.desired.size()));
      answer(encode_value(c.desired));
      store.put(found, std::move(c.key), std::move(c.desired), answers);
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
    const auto sum = store.sum_of("ADD", found, c.key, c.delta);
    auto text = std::to_string(sum);
    store.require_room(store.growth(found, c.key, text.size()));
    answer(encode_integer(sum));
    store.put(found, std::move(c.key), std::move(text), answers);
  }

  void operator()(command::Check&& c) { answer(contains_all(c.keys) ? kReady : kNotReady); }

  // A client has one wait at a time; a second one takes the place of the first, which is then never answered.
  void operator()(command::Wait&& c) {
    std::erase_if(c.keys, [this](const auto& key) { return store.contains(key); });
    std::size_t bytes = 0;
    for (const auto& key : c.keys) bytes += 2 * key.size() + kEntryBytes;
    store.require_room_for_wait(from, bytes);
    store.disconnected(from);
    if (c.keys.empty()) return answer(kWaitFulfilled);
    Waiting waiting{.keys = std::move(c.keys), .bytes = bytes, .place = ++store.waits_begun_};
    for (const auto& key : waiting.keys) {
      if (store.waiters_[key].emplace(waiting.place, from).second) ++waiting.missing;  // a key may be named twice
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
    store.require_answer("MULTI_GET", bytes);
    std::string all;
    all.reserve(bytes);
    for (const auto value : values) append_value(all, value);
    answer(std::move(all));
  }

  void operator()(command::MultiSet&& c) {
    std::size_t bytes = 0;
    for (const auto& entry : c.entries)
      bytes += store.growth(store.values_.find(entry.key), entry.key, entry.value.size());
    store.require_room(bytes);
    for (auto& entry : c.entries) {
      const auto found = store.values_.find(entry.key);
      store.put(found, std::move(entry.key), std::move(entry.value), answers);
    }
  }

  void operator()(command::CancelWait&&) {
    store.disconnected(from);
    answer(kWaitCancelled);
  }

  void operator()(command::Ping&& c) { answer(encode_nonce(c.nonce)); }

  void operator()(command::QueuePush&& c) {
    const auto found = store.queues_.find(c.key);
    const std::size_t name_bytes = found == store.queues_.end() ? c.key.size() + kEntryBytes : 0;
    const std::size_t bytes = name_bytes + c.value.size() + kEntryBytes;
    store.require_room(bytes);
    store.total_bytes_ += bytes;
    store.queues_[c.key].push_back(std::move(c.value));
    store.wake(c.key, true, answers);
  }

  void operator()(command::QueuePop&& c) {
    const auto found = store.queues_.find(c.key);
    if (found == store.queues_.end()) return answer(encode_integer(0));
    auto& queue = found->second;
    auto bytes = encode_integer(static_cast<std::int64_t>(queue.size()));
    append_value(bytes, queue.front());
    store.total_bytes_ -= queue.front().size() + kEntryBytes;
    queue.pop_front();
    if (queue.empty()) {
      store.total_bytes_ -= found->first.size() + kEntryBytes;
      store.queues_.erase(found);
    }
    answer(std::move(bytes));
  }

  void operator()(command::QueueLength&& c) {
    const auto found = store.queues_.find(c.key);
    answer(encode_integer(found == store.queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size())));
  }

  // Sorted, so that the same keys give the same answer.
  void operator()(command::ListKeys&&) {
    std::vector<std::string_view> keys;
    keys.reserve(store.values_.size());
    std::size_t bytes = 8;
    for (const auto& [key, value] : store.values_) {
      keys.push_back(key);
      bytes += 8 + key.size();
    }
    store.require_answer("LIST_KEYS", bytes);
    std::sort(keys.begin(), keys.end());
    auto all = encode_integer(static_cast<std::int64_t>(keys.size()));
    all.reserve(bytes);
    for (const auto key : keys) append_value(all, key);
    answer(std::move(all));
  }

  // The count is a value like any other and stays, so a barrier that was passed once is open for good.
  void operator()(command::Barrier&& c) {
    const auto counter = store.values_.find(c.key);
    const auto count = store.sum_of("BARRIER", counter, c.key, 1);
    auto text = std::to_string(count);
    const std::size_t bytes = 2 * c.key.size() + kEntryBytes;
    const bool is_open = count >= c.size;
    store.require_room_for_wait(from, is_open ? 0 : bytes, store.growth(counter, c.key, text.size()));
    store.disconnected(from);
    if (is_open) {
      answer(kWaitFulfilled);
    } else {
      store.barriers_[c.key].emplace(c.size, from);
      store.total_bytes_ += bytes;
      store.waits_.emplace(from, Waiting{.keys = {c.key}, .bytes = bytes, .barrier_size = c.size});
    }
    if (const auto found = store.barriers_.find(c.key); found != store.barriers_.end()) {
      auto& waiting = found->second;
      while (!waiting.empty() && waiting.begin()->first <= count) {
        store.fulfil(store.waits_.find(waiting.begin()->second), answers);
        waiting.erase(waiting.begin());
      }
      if (waiting.empty()) store.barriers_.erase(found);
    }
    store.put(counter, std::move(c.key), std::move(text), answers);
  }
};

std::vector<Answer> KeyValueStore::step(ConnectionId from, Command&& command) {
  Handler handler{*this, from, {}};
  std::visit([&handler](auto& c) { handler(std::move(c)); }, command);
  return std::move(handler.answers);
}

void KeyValueStore::disconnected(ConnectionId connection) {
  const auto pending = waits_.find(connection);
  if (pending == waits_.end()) return;
  const Waiting& waiting = pending->second;
  // Those that are not found have appeared since.
  const auto take_off = [](auto& all, const std::string& key, const auto& entry) {
    const auto found = all.find(key);
    if (found == all.end()) return;
    found->second.erase(entry);
    if (found->second.empty()) all.erase(found);
  };
  for (const auto& key : waiting.keys) {
    if (waiting.barrier_size) {
      take_off(barriers_, key, std::pair(*waiting.barrier_size, connection));
    } else {
      take_off(waiters_, key, waiting.place);
    }
  }
  total_bytes_ -= waiting.bytes;
  waits_.erase(pending);
}

bool KeyValueStore::contains(std::string_view key) const {
  return values_.find(key) != values_.end() || queues_.find(key) != queues_.end();
}

// The value of a key as a number, 0 where it is missing, and `delta`. Here and below `found` is what find(key) gave.
std::int64_t KeyValueStore::sum_of(const char* command, Values::const_iterator found, std::string_view key,
                                   std::int64_t delta) const {
  const std::int64_t old = found == values_.end() ? 0 : parse_integer(command, key, found->second);
  std::int64_t sum = 0;
  if (__builtin_add_overflow(old, delta, &sum)) {
    throw StoreError(std::string(command) + ": " + std::to_string(old) + " and " + std::to_string(delta) + " of key " +
                     key_text(key) + " add up to more than 64 bits");
  }
  return sum;
}

// Bytes by which a key's entry grows when it takes a value of this size; 0 where it shrinks.
std::size_t KeyValueStore::growth(Values::const_iterator found, std::string_view key, std::size_t value_bytes) const {
  if (found == values_.end()) return key.size() + value_bytes + kEntryBytes;
  return value_bytes - std::min(value_bytes, found->second.size());
}

void KeyValueStore::require_room(std::size_t bytes) const {
  if (bytes <= options_.total_bytes_max - total_bytes_) return;
  throw StoreError("the store is full: it holds " + std::to_string(total_bytes_) + " of " +
                   std::to_string(options_.total_bytes_max) + " bytes, and " + std::to_string(bytes) +
                   " more were sent");
}

// For a wait, which takes the place of an earlier one, and what comes with it.
void KeyValueStore::require_room_for_wait(ConnectionId from, std::size_t bytes, std::size_t more_bytes) const {
  const auto pending = waits_.find(from);
  const std::size_t given_back = pending == waits_.end() ? 0 : pending->second.bytes;
  if (bytes + more_bytes > given_back) require_room(bytes + more_bytes - given_back);
}

void KeyValueStore::require_answer(const char* command, std::size_t bytes) const {
  if (bytes <= options_.answer_bytes_max) return;
  throw StoreError(std::string(command) + ": an answer of " + std::to_string(bytes) + " bytes is beyond the limit of " +
                   std::to_string(options_.answer_bytes_max));
}

void KeyValueStore::put(Values::iterator found, std::string key, std::string value, std::vector<Answer>& answers) {
  total_bytes_ += value.size();
  if (found != values_.end()) {  // so nobody waits for it
    total_bytes_ -= found->second.size();
    found->second = std::move(value);
    return;
  }
  total_bytes_ += key.size() + kEntryBytes;
  found = values_.emplace(std::move(key), std::move(value)).first;
  wake(found->first, false, answers);
}

// Tells those who wait for a key or queue that it is there now, and answers those for whom it was the last; with
// `only_one`, up to the first that it answers.
void KeyValueStore::wake(const std::string& key, bool only_one, std::vector<Answer>& answers) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  auto& waiters = found->second;
  bool is_done = false;
  while (!waiters.empty() && !is_done) {
    const auto waiting = waits_.find(waiters.begin()->second);
    waiters.erase(waiters.begin());
    if (--waiting->second.missing > 0) continue;
    fulfil(waiting, answers);
    is_done = only_one;
  }
  if (waiters.empty()) waiters_.erase(found);
}

void KeyValueStore::fulfil(std::map<ConnectionId, Waiting>::iterator waiting, std::vector<Answer>& answers) {
  answers.push_back({waiting->first, std::string(1, kWaitFulfilled)});
  total_bytes_ -= waiting->second.bytes;
  waits_.erase(waiting);
}

}  // namespace ddp::store
