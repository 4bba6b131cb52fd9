// The store itself: keys, values and the connections that wait for keys.
//
// Pure: a connection's command goes in, answers come out, those of other connections that it woke included. No socket,
// no clock. A command that is refused has changed nothing.
//
// A waiter counts the keys it misses and each of them that appears takes one off, as in the reference: a key that is
// removed again while others are still missing is not waited for a second time.
//
// Threads: one caller at a time (the server's event loop).
// Protocol: docs/store_protocol.md, "Commands".
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
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
  std::size_t answer_bytes_max = kMessageBytesMax;  // of one MULTI_GET
  std::size_t total_bytes_max = 1u << 30;           // of keys, values and waits, kEntryBytes for each included
};

class KeyValueStore {
 public:
  // What an entry costs beside its texts, about.
  static constexpr std::size_t kEntryBytes = 128;

  explicit KeyValueStore(KeyValueStoreOptions options = {}) : options_(options) {}

  // Takes in one command. Throws StoreError with the reason where the connection must end for it.
  [[nodiscard]] std::vector<Answer> step(ConnectionId from, Command command);

  // Forgets what the connection waits for. Harmless for one that never said anything.
  void disconnected(ConnectionId connection);

  std::size_t key_count() const { return values_.size(); }
  std::size_t waiting_count() const { return waits_.size(); }
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  struct Handler;

  struct Waiting {
    std::vector<std::string> keys;  // those that were missing when it began
    std::size_t missing = 0;        // of them, those that have not appeared since
    std::size_t bytes = 0;          // counted in total_bytes_
  };

  bool contains(std::string_view key) const { return values_.find(key) != values_.end(); }
  std::size_t growth(std::string_view key, std::size_t value_bytes) const;
  void require_room(std::size_t bytes) const;
  void put(std::string key, std::string value, std::vector<Answer>& answers);
  void wake(const std::string& key, std::vector<Answer>& answers);

  KeyValueStoreOptions options_;
  std::map<std::string, std::string, std::less<>> values_;
  std::map<ConnectionId, Waiting> waits_;
  std::map<std::string, std::set<ConnectionId>, std::less<>> waiters_;  // by key; a key in values_ has none
  std::size_t total_bytes_ = 0;
};

}  // namespace ddp::store
