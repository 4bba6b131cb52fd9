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
// Threads: one caller at a time (the server's event loop).
// Protocol: docs/store_protocol.md, "Commands".
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/store/codec.hpp"

namespace ddp::store {

enum class ConnectionId : std::uint64_t {};  // never reused

struct Answer {
  ConnectionId to;
  std::string bytes;  // as they go on the wire
  bool operator==(const Answer&) const = default;
};

struct KeyValueStoreOptions {
  std::size_t value_bytes_max = kValueBytesMax;     // APPEND does not grow a value beyond it
  std::size_t answer_bytes_max = kMessageBytesMax;  // of one MULTI_GET or LIST_KEYS
  std::size_t total_bytes_max = 1u << 30;           // of keys, values, queues, waits, kEntryBytes for each included
};

class KeyValueStore {
 public:
  // What an entry costs beside its texts, about.
  static constexpr std::size_t kEntryBytes = 128;

  explicit KeyValueStore(KeyValueStoreOptions options = {}) : options_(options) {}

  // Takes in one command. Throws StoreError with the reason where the connection must end for it.
  [[nodiscard]] std::vector<Answer> step(ConnectionId from, Command&& command);

  // Forgets what the connection waits for. Harmless for one that never said anything.
  void disconnected(ConnectionId connection);

  std::size_t key_count() const { return values_.size(); }
  std::size_t waiting_count() const { return waits_.size(); }
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  struct Handler;

  // What a connection waits for: keys, or the others in a barrier.
  struct Waiting {
    std::vector<std::string> keys;               // those that were missing when it began, or the barrier's one
    std::size_t missing = 0;                     // of them, those that have not appeared since
    std::size_t bytes = 0;                       // counted in total_bytes_
    std::uint64_t place = 0;                     // among the waiters of a key
    std::optional<std::int64_t> barrier_size{};  // of a barrier
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
  };
  using Values = std::unordered_map<std::string, std::string, Hash, std::equal_to<>>;
  using Queue = std::list<std::string>;  // a deque takes half a KiB for its first element

  bool contains(std::string_view key) const;
  std::int64_t sum_of(const char* command, Values::const_iterator found, std::string_view key,
                      std::int64_t delta) const;
  std::size_t growth(Values::const_iterator found, std::string_view key, std::size_t value_bytes) const;
  void require_room(std::size_t bytes) const;
  void require_room_for_wait(ConnectionId from, std::size_t bytes, std::size_t more_bytes = 0) const;
  void require_answer(const char* command, std::size_t bytes) const;
  void put(Values::iterator found, std::string key, std::string value, std::vector<Answer>& answers);
  void wake(const std::string& key, bool only_one, std::vector<Answer>& answers);
  void fulfil(std::map<ConnectionId, Waiting>::iterator waiting, std::vector<Answer>& answers);

  KeyValueStoreOptions options_;
  Values values_;
  std::map<std::string, Queue, std::less<>> queues_;  // none is empty
  std::map<ConnectionId, Waiting> waits_;
  std::uint64_t waits_begun_ = 0;
  // By key, then by place; a key in values_ has none.
  std::map<std::string, std::map<std::uint64_t, ConnectionId>, std::less<>> waiters_;
  // By key, the smallest barrier first.
  std::map<std::string, std::set<std::pair<std::int64_t, ConnectionId>>, std::less<>> barriers_;
  std::size_t total_bytes_ = 0;
};

}  // namespace ddp::store
