// The store itself: keys, values, queues, and the connections that wait for them or in a barrier.
//
// Pure: a connection's command goes in, answers come out, those of other connections that it woke included. No socket,
// no clock. A command that is refused has changed nothing.
//
// A waiter counts the keys it misses and each of them that appears takes one off, as in the reference: a key that is
// removed again while others are still missing is not waited for a second time.
//
// Queues have names of their own, beside the keys. One that holds something counts as there for CHECK and WAIT; a push
// answers at most one waiter, the one that has waited longest. If that one leaves without a pop, the others hear of the
// next push only.
//
// Long values are not copied into answers: the answers refer to them, and must be gone before the store is.
//
// Threads: one caller at a time (the server's event loop).
// Protocol: docs/store_protocol.md, "Commands".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/store/codec.hpp"
#include "rendezvous/store/memory_budget.hpp"
#include "rendezvous/store/value.hpp"

namespace ddp::store {

struct Answer {
  ConnectionId to;
  std::string bytes;                  // as they go on the wire
  std::vector<SharedValue> values{};  // then these, each as encode_value() has it; null is an empty one
  bool operator==(const Answer&) const = default;
};

struct KeyValueStoreOptions {
  std::size_t value_bytes_max = kValueBytesMax;     // APPEND does not grow a value beyond it
  std::size_t copied_bytes_max = 256;               // a longer value, or MULTI_GET's answer, is referred to
  std::size_t answer_bytes_max = kMessageBytesMax;  // of one MULTI_GET or LIST_KEYS
  std::size_t total_bytes_max = std::size_t{kMemoryMibDefault} << 20;  // of all that counts in memory()
  std::size_t wait_bytes_max = 128u << 20;                             // of what one connection waits for
};

class KeyValueStore {
 public:
  // What an entry costs beside its texts, about: a key with its value, a value of a queue, a key that is waited for.
  static constexpr std::size_t kEntryBytes = 192;

  explicit KeyValueStore(KeyValueStoreOptions options = {}) : options_(options), memory_(options.total_bytes_max) {}

  // Takes in one command. Throws StoreError with the reason where the connection must end for it, StoreFull (`command`
  // is then unchanged) where there is no room for what it brings.
  [[nodiscard]] std::vector<Answer> step(ConnectionId from, Command&& command);

  // Forgets what the connection waits for. Harmless for one that never said anything.
  void disconnected(ConnectionId connection);

  std::size_t key_count() const { return values_.size(); }
  std::size_t waiting_count() const { return waits_.size(); }

  // Of this store, and of the connections to it: the server adds what it holds for them.
  MemoryBudget& memory() { return memory_; }
  std::size_t total_bytes() const { return memory_.used_bytes(); }

  // What the wait of a connection holds, alone or with others that wait for the same keys.
  std::size_t wait_bytes(ConnectionId connection) const;

 private:
  struct Handler;
  struct Waiting;
  struct Waiter;

  // Those who wait for one key, the one that has waited longest first. A list whose nodes lie in Waiting::waiters, so
  // that a wait for many keys is one block of memory, which the end of the wait returns.
  struct Waiters {
    Waiter* first = nullptr;
    Waiter* last = nullptr;
  };
  using WaitersOfKeys = std::map<std::string, Waiters, std::less<>>;

  struct Waiter {
    Waiting* waiting = nullptr;  // null once the key has appeared; then the rest means nothing
    WaitersOfKeys::iterator key{};
    Waiter* previous = nullptr;
    Waiter* next = nullptr;
  };

  // What a connection waits for: keys, or the others in a barrier.
  struct Waiting {
    ConnectionId connection;
    std::vector<Waiter> waiters{};               // one for each key that was missing when it began
    std::size_t missing = 0;                     // of those keys, the ones that have not appeared since
    std::size_t bytes = 0;                       // that it needed when it began
    std::string barrier{};                       // the barrier's key
    std::optional<std::int64_t> barrier_size{};  // of a barrier
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
  };
  using StoredValue = std::shared_ptr<Value>;
  using Values = std::unordered_map<std::string, StoredValue, Hash, std::equal_to<>>;
  using Queue = std::list<StoredValue>;  // a deque takes half a KiB for its first element

  bool contains(std::string_view key) const;
  std::int64_t sum_of(const char* command, Values::const_iterator found, std::string_view key,
                      std::int64_t delta) const;
  std::size_t growth(Values::const_iterator found, std::string_view key, const std::string& value) const;
  void require_room_for_wait(ConnectionId from, std::size_t bytes, std::size_t more_bytes = 0) const;
  void require_answer(const char* command, std::size_t bytes) const;
  const StoredValue& put(Values::iterator found, std::string key, std::string value, std::vector<Answer>& answers);
  void append_waiter(WaitersOfKeys::iterator key, Waiting& waiting);
  static void take_off(Waiter& waiter);
  void erase_if_empty(WaitersOfKeys::iterator key);
  void wake(const std::string& key, bool only_one, std::vector<Answer>& answers);
  void fulfil(std::map<ConnectionId, Waiting>::iterator waiting, std::vector<Answer>& answers);
  static std::size_t counted_bytes(const Waiting& waiting);

  KeyValueStoreOptions options_;
  MemoryBudget memory_;  // outlives what counts in it
  Values values_;
  std::map<std::string, Queue, std::less<>> queues_;  // none is empty
  std::map<ConnectionId, Waiting> waits_;
  WaitersOfKeys waiters_;  // none is empty; a key in values_ has none
  // By key, the smallest barrier first.
  std::map<std::string, std::set<std::pair<std::int64_t, ConnectionId>>, std::less<>> barriers_;
};

}  // namespace ddp::store
