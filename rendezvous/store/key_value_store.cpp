#include "rendezvous/store/key_value_store.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "ddp/error.hpp"

namespace ddp::store {
namespace {

constexpr std::size_t kBucketCountKept = 1024;  // of the table of keys, however few there are

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

  // Ends the answer with a value.
  void append(Answer& answer, SharedValue value) const {
    if (value->bytes().size() <= store.options_.copied_bytes_max) {
      append_value(answer.bytes, value->bytes());
    } else {
      answer.values.push_back(std::move(value));
    }
  }
  void answer(const SharedValue& value) {
    if (value->bytes().size() <= store.options_.copied_bytes_max) return answer(encode_value(value->bytes()));
    answers.push_back({from, {}, {value}});
  }

  bool contains_all(const std::vector<std::string>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [this](const auto& key) { return store.contains(key); });
  }

  // Takes the texts only if there is room.
  void store_at(Values::iterator found, std::string& key, std::string& value) {
    store.memory_.require_room(store.growth(found, key, value));
    store.put(found, std::move(key), std::move(value), answers);
  }

  void operator()(command::Validate&&) {}

  void operator()(command::Set&& c) {
    const auto found = store.values_.find(c.key);
    store_at(found, c.key, c.value);
  }

  // On a missing key with another expectation the reference answers the expectation, and so do we: clients know no
  // other sign that nothing was stored.
  void operator()(command::CompareSet&& c) {
    const auto found = store.values_.find(c.key);
    const bool is_there = found != store.values_.end();
    if (is_there ? found->second->bytes() == c.expected : c.expected.empty()) {
      store.memory_.require_room(store.growth(found, c.key, c.desired));
      answers.push_back({from, {}});  // before those that this wakes
      const SharedValue stored = store.put(found, std::move(c.key), std::move(c.desired), answers);
      append(answers.front(), stored);
    } else if (is_there) {
      answer(found->second);
    } else {
      answer(encode_value(c.expected));
    }
  }

  void operator()(command::Get&& c) {
    const auto found = store.values_.find(c.key);
    if (found == store.values_.end()) return answer(encode_value({}));
    answer(found->second);
  }

  void operator()(command::Add&& c) {
    const auto found = store.values_.find(c.key);
    const auto sum = store.sum_of("ADD", found, c.key, c.delta);
    auto text = std::to_string(sum);
    store.memory_.require_room(store.growth(found, c.key, text));
    answer(encode_integer(sum));
    store.put(found, std::move(c.key), std::move(text), answers);
  }

  void operator()(command::Check&& c) { answer(contains_all(c.keys) ? kReady : kNotReady); }

  // A client has one wait at a time; a second one takes the place of the first, which is then never answered.
  void operator()(command::Wait&& c) {
    std::erase_if(c.keys, [this](const auto& key) { return store.contains(key); });
    std::size_t bytes = c.keys.size() * sizeof(Waiter), more_bytes = 0;
    for (const auto& key : c.keys) {
      bytes += key.size() + kEntryBytes;
      if (store.waiters_.find(key) == store.waiters_.end()) more_bytes += key.size() + kEntryBytes;
    }
    if (bytes > store.options_.wait_bytes_max) {
      throw StoreError("WAIT: it would hold " + std::to_string(bytes) + " bytes, which is beyond the limit of " +
                       std::to_string(store.options_.wait_bytes_max) + " for one connection");
    }
    store.require_room_for_wait(from, c.keys.size() * sizeof(Waiter), more_bytes);
    store.disconnected(from);
    if (c.keys.empty()) return answer(kWaitFulfilled);
    auto& waiting = store.waits_.emplace(from, Waiting{.connection = from, .bytes = bytes}).first->second;
    waiting.waiters.reserve(c.keys.size());
    store.memory_.add(c.keys.size() * sizeof(Waiter));
    for (auto& key : c.keys) {
      const auto [found, is_new] = store.waiters_.try_emplace(std::move(key));
      if (is_new) store.memory_.add(found->first.size() + kEntryBytes);
      store.append_waiter(found, waiting);
    }
  }

  void operator()(command::KeyCount&&) { answer(encode_integer(static_cast<std::int64_t>(store.values_.size()))); }

  void operator()(command::Remove&& c) {
    const auto found = store.values_.find(c.key);
    const bool was_there = found != store.values_.end();
    if (was_there) {
      store.memory_.remove(found->first.size() + kEntryBytes);
      found->second->drop();
      store.values_.erase(found);
      if (const auto buckets = store.values_.bucket_count();
          buckets > kBucketCountKept && store.values_.size() < buckets / 8) {
        store.values_.rehash(0);
      }
    }
    answer(encode_integer(was_there ? 1 : 0));
  }

  void operator()(command::Append&& c) {
    const auto found = store.values_.find(c.key);
    if (found == store.values_.end()) return store_at(found, c.key, c.value);
    auto& value = found->second;
    if (value->bytes().size() + c.value.size() > store.options_.value_bytes_max) {
      throw StoreError("APPEND: the value of key " + key_text(c.key) + " would grow beyond the limit of " +
                       std::to_string(store.options_.value_bytes_max) + " bytes");
    }
    // Nobody waits for a key that is there, but answers may refer to its value.
    if (value.use_count() == 1) {
      store.memory_.require_room(value->memory_bytes_with(c.value.size()) - value->memory_bytes());
      value->append(c.value);
    } else {
      auto text = value->bytes() + c.value;
      store_at(found, c.key, text);
    }
  }

  void operator()(command::MultiGet&& c) {
    std::vector<SharedValue> values;
    values.reserve(c.keys.size());
    std::size_t bytes = 0;
    for (const auto& key : c.keys) {
      const auto found = store.values_.find(key);
      values.push_back(found == store.values_.end() ? nullptr : found->second);
      bytes += 8 + (values.back() ? values.back()->bytes().size() : 0);
    }
    store.require_answer("MULTI_GET", bytes);
    if (bytes > store.options_.copied_bytes_max) return answers.push_back({from, {}, std::move(values)});
    std::string all;
    all.reserve(bytes);
    for (const auto& value : values) append_value(all, value ? std::string_view(value->bytes()) : std::string_view());
    answer(std::move(all));
  }

  void operator()(command::MultiSet&& c) {
    std::size_t bytes = 0;
    for (const auto& entry : c.entries) bytes += store.growth(store.values_.find(entry.key), entry.key, entry.value);
    store.memory_.require_room(bytes);
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
    const std::size_t entry_bytes = name_bytes + kEntryBytes;
    store.memory_.require_room(entry_bytes + Value::memory_bytes(c.value));
    store.memory_.add(entry_bytes);
    store.queues_[c.key].push_back(std::make_shared<Value>(store.memory_, std::move(c.value)));
    store.wake(c.key, true, answers);
  }

  void operator()(command::QueuePop&& c) {
    const auto found = store.queues_.find(c.key);
    if (found == store.queues_.end()) return answer(encode_integer(0));
    auto& queue = found->second;
    answer(encode_integer(static_cast<std::int64_t>(queue.size())));
    queue.front()->drop();
    append(answers.back(), std::move(queue.front()));
    store.memory_.remove(kEntryBytes);
    queue.pop_front();
    if (queue.empty()) {
      store.memory_.remove(found->first.size() + kEntryBytes);
      store.queues_.erase(found);
    }
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
    store.memory_.require_room(bytes);
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
    store.require_room_for_wait(from, is_open ? 0 : bytes, store.growth(counter, c.key, text));
    store.disconnected(from);
    if (is_open) {
      answer(kWaitFulfilled);
    } else {
      store.barriers_[c.key].emplace(c.size, from);
      store.memory_.add(bytes);
      store.waits_.emplace(from, Waiting{.connection = from, .bytes = bytes, .barrier = c.key, .barrier_size = c.size});
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
  Waiting& waiting = pending->second;
  if (waiting.barrier_size) {
    const auto found = barriers_.find(waiting.barrier);
    found->second.erase({*waiting.barrier_size, connection});
    if (found->second.empty()) barriers_.erase(found);
  }
  for (Waiter& waiter : waiting.waiters) {
    if (waiter.waiting == nullptr) continue;
    take_off(waiter);
    erase_if_empty(waiter.key);
  }
  memory_.remove(counted_bytes(waiting));
  waits_.erase(pending);
}

std::size_t KeyValueStore::wait_bytes(ConnectionId connection) const {
  const auto found = waits_.find(connection);
  return found == waits_.end() ? 0 : found->second.bytes;
}

// In the budget, for this connection alone: a key that others wait for too counts once, see erase_if_empty().
std::size_t KeyValueStore::counted_bytes(const Waiting& waiting) {
  return waiting.barrier_size ? waiting.bytes : waiting.waiters.size() * sizeof(Waiter);
}

bool KeyValueStore::contains(std::string_view key) const {
  return values_.find(key) != values_.end() || queues_.find(key) != queues_.end();
}

// The value of a key as a number, 0 where it is missing, and `delta`. Here and below `found` is what find(key) gave.
std::int64_t KeyValueStore::sum_of(const char* command, Values::const_iterator found, std::string_view key,
                                   std::int64_t delta) const {
  const std::int64_t old = found == values_.end() ? 0 : parse_integer(command, key, found->second->bytes());
  std::int64_t sum = 0;
  if (__builtin_add_overflow(old, delta, &sum)) {
    throw StoreError(std::string(command) + ": " + std::to_string(old) + " and " + std::to_string(delta) + " of key " +
                     key_text(key) + " add up to more than 64 bits");
  }
  return sum;
}

// Bytes by which memory grows when a key's entry takes this value; 0 where it shrinks. A value that answers refer to
// stays in memory beside the new one.
std::size_t KeyValueStore::growth(Values::const_iterator found, std::string_view key, const std::string& value) const {
  const std::size_t bytes = Value::memory_bytes(value);
  if (found == values_.end()) return key.size() + bytes + kEntryBytes;
  return bytes - (found->second.use_count() == 1 ? std::min(bytes, found->second->memory_bytes()) : 0);
}

// For a wait, which takes the place of an earlier one, and what comes with it.
void KeyValueStore::require_room_for_wait(ConnectionId from, std::size_t bytes, std::size_t more_bytes) const {
  const auto pending = waits_.find(from);
  const std::size_t given_back = pending == waits_.end() ? 0 : counted_bytes(pending->second);
  if (bytes + more_bytes > given_back) memory_.require_room(bytes + more_bytes - given_back);
}

void KeyValueStore::require_answer(const char* command, std::size_t bytes) const {
  if (bytes <= options_.answer_bytes_max) return;
  throw StoreError(std::string(command) + ": an answer of " + std::to_string(bytes) + " bytes is beyond the limit of " +
                   std::to_string(options_.answer_bytes_max));
}

// Returns the value as it is stored.
const KeyValueStore::StoredValue& KeyValueStore::put(Values::iterator found, std::string key, std::string value,
                                                     std::vector<Answer>& answers) {
  if (found != values_.end()) {  // so nobody waits for it
    if (found->second.use_count() == 1) {
      found->second->assign(std::move(value));
    } else {
      found->second->drop();
      found->second = std::make_shared<Value>(memory_, std::move(value));
    }
    return found->second;
  }
  memory_.add(key.size() + kEntryBytes);
  found = values_.emplace(std::move(key), std::make_shared<Value>(memory_, std::move(value))).first;
  wake(found->first, false, answers);
  return found->second;
}

// Adds to the end of a key's waiters, unless the wait has named that key before.
void KeyValueStore::append_waiter(WaitersOfKeys::iterator key, Waiting& waiting) {
  auto& waiters = key->second;
  Waiter& waiter = waiting.waiters.emplace_back();
  if (waiters.last != nullptr && waiters.last->waiting == &waiting) return;
  waiter = {.waiting = &waiting, .key = key, .previous = waiters.last};
  (waiters.last != nullptr ? waiters.last->next : waiters.first) = &waiter;
  waiters.last = &waiter;
  ++waiting.missing;
}

// Leaves the key, which may have no waiter any more.
void KeyValueStore::take_off(Waiter& waiter) {
  auto& waiters = waiter.key->second;
  (waiter.previous != nullptr ? waiter.previous->next : waiters.first) = waiter.next;
  (waiter.next != nullptr ? waiter.next->previous : waiters.last) = waiter.previous;
  waiter.waiting = nullptr;
}

void KeyValueStore::erase_if_empty(WaitersOfKeys::iterator key) {
  if (key->second.first != nullptr) return;
  memory_.remove(key->first.size() + kEntryBytes);
  waiters_.erase(key);
}

// Tells those who wait for a key or queue that it is there now, and answers those for whom it was the last; with
// `only_one`, up to the first that it answers.
void KeyValueStore::wake(const std::string& key, bool only_one, std::vector<Answer>& answers) {
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  bool is_done = false;
  while (found->second.first != nullptr && !is_done) {
    Waiter& waiter = *found->second.first;
    Waiting& waiting = *waiter.waiting;
    take_off(waiter);
    if (--waiting.missing > 0) continue;
    fulfil(waits_.find(waiting.connection), answers);
    is_done = only_one;
  }
  erase_if_empty(found);
}

void KeyValueStore::fulfil(std::map<ConnectionId, Waiting>::iterator waiting, std::vector<Answer>& answers) {
  answers.push_back({waiting->first, std::string(1, kWaitFulfilled)});
  memory_.remove(counted_bytes(waiting->second));
  waits_.erase(waiting);
}

}  // namespace ddp::store
