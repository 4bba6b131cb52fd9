// A store that a process serves beside what else it does: on a thread of its own, which takes none of its signals.
//
// Threads: any.
// Fork:    a forked child has no part in it, does not hold its port, and leaks the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/store/codec.hpp"

namespace ddp::store {

struct StoreThreadOptions {
  std::vector<std::string> addresses{};        // to listen on; empty: all of this host's
  std::uint16_t first_port = 0;                // the first free one from here ...
  std::uint16_t last_port = 0;                 // ... to here is taken; 0 and 0: any free one
  std::vector<std::string> allow{};            // CIDR blocks, or "any": who may connect besides our uid on this host
  std::string allow_option = "--store-allow";  // where the user says that, for refusals()
  std::size_t connection_count_max = 16'384;   // beyond it a connection is closed at once
  std::vector<KeyValue> entries{};             // are there before anybody can connect
};

class StoreThread {
 public:
  // Throws InvalidArgument for a malformed block, Error where no port is free, std::system_error.
  explicit StoreThread(const StoreThreadOptions& options);
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  std::uint16_t port() const;

  // Adds to those who may connect, from soon on. Throws InvalidArgument, and adds none, where a block is malformed.
  void allow(const std::vector<std::string>& blocks);

  // Whom it has refused or cut off, and why; each reason once, and the first few only.
  std::vector<std::string> refusals() const;

  // Returns when nobody is connected, or at `end`.
  void wait_until_alone(std::chrono::steady_clock::time_point end) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::store
