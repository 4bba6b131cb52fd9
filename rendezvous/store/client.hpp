// A blocking client of the store: PyTorch's TCPStore wire protocol, against our server or PyTorch's own.
//
// Keys are sent as given, without the slash that PyTorch's Python client puts before its own, so the two never meet.
// Each call writes its request and reads its answer before its deadline; nothing is retried after the connection broke.
//
// Threads: one caller at a time. Fork: the descriptor is close-on-exec; a forked child must not use the object.
// Protocol: docs/store_protocol.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "ddp/error.hpp"
#include "rendezvous/store/codec.hpp"

namespace ddp::store {

using TimePoint = std::chrono::steady_clock::time_point;

struct ClientOptions {
  std::string host{};        // a name, an IPv4 or an IPv6 address (without brackets)
  std::uint16_t port = 0;    // 1 to 65535
  TimePoint deadline{};      // of resolving, connecting and the handshake together; refused connections are retried
  bool tries_once = false;   // each of the host's addresses; StoreError with the reason where none will do
  base::Cut* cut = nullptr;  // ends every wait of the client by AbortedError, but for that of a resolver; outlives it
};

class Client {
 public:
  // Tries again and again, more and more slowly, while the host is unknown, refuses, or hangs up during the handshake.
  // Throws TimeoutError at the deadline, with the last reason; StoreError at once where the peer is no store.
  static Client connect(const ClientOptions& options);

  // Each throws TimeoutError at its deadline, StoreError where the connection broke or the answer is malformed,
  // InvalidArgument for a key over 8192 bytes, a value over 8 MiB or more than 131072 keys, before anything is sent.
  // After that, or a TimeoutError because a key or a client did not come, the client stays usable; after any other
  // error it is closed. A deadline that passed while the process was stopped starts anew (base/deadline.hpp).
  void set(std::string_view key, std::string_view value, TimePoint deadline);
  std::string get(std::string_view key, TimePoint deadline);  // waits for the key first
  std::int64_t add(std::string_view key, std::int64_t delta, TimePoint deadline);
  void wait(const std::vector<std::string>& keys, TimePoint deadline);
  // Waits for the key, without a deadline. False if descriptor `wake` becomes readable first; the client stays usable.
  bool wait_unless(std::string_view key, int wake);
  bool check(const std::vector<std::string>& keys, TimePoint deadline);  // whether all are there
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                          TimePoint deadline);
  bool remove(std::string_view key, TimePoint deadline);
  std::int64_t key_count(TimePoint deadline);
  void append(std::string_view key, std::string_view value, TimePoint deadline);
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, TimePoint deadline);  // waits for all first
  void multi_set(const std::vector<KeyValue>& entries, TimePoint deadline);
  void queue_push(std::string_view key, std::string_view value, TimePoint deadline);
  // Waits for the queue to hold something and takes it; empty where another client was faster.
  std::optional<std::string> queue_pop(std::string_view key, TimePoint deadline);
  std::int64_t queue_length(std::string_view key, TimePoint deadline);
  std::vector<std::string> list_keys(TimePoint deadline);  // in no order
  // Waits until `size` clients have come to this key, which works once: a key that was passed is open for good.
  void barrier(std::string_view key, std::int64_t size, TimePoint deadline);

  // The connection, for its addresses only; -1 once it is closed.
  int descriptor() const { return socket_.get(); }

  // As ClientOptions::cut, from now on.
  void cut_by(base::Cut* cut) { cut_ = cut; }

 private:
  Client(base::UniqueFd socket, std::string peer, base::Cut* cut)
      : socket_(std::move(socket)), peer_(std::move(peer)), cut_(cut) {}

  base::Deadline deadline_at(TimePoint end) const;

  void send(const Command& command, base::Deadline& deadline);
  void receive(char* bytes, std::size_t count, base::Deadline& deadline);
  char receive_byte(base::Deadline& deadline);
  std::int64_t receive_integer(base::Deadline& deadline);
  std::string receive_value(base::Deadline& deadline);
  std::vector<std::string> receive_values(std::uint64_t count, base::Deadline& deadline);
  void wait_ready(short events, base::Deadline& deadline);
  void wait_for_keys(const std::vector<std::string>& keys, base::Deadline& deadline);
  bool is_released(base::Deadline& deadline);
  void cancel_wait();
  void handshake(base::Deadline& deadline);
  [[noreturn]] void fail(const std::string& why);

  base::UniqueFd socket_;
  std::string peer_;  // "127.0.0.1:29400", for messages
  base::Cut* cut_;
};

}  // namespace ddp::store
