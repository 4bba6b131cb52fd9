// The store at an address, by PyTorch's TCPStore protocol.
//
// Threads: as store::Client.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ddp/bootstrap.hpp"
#include "rendezvous/store/client.hpp"

namespace ddp::core {

class TcpStore final : public Store {
 public:
  explicit TcpStore(store::Client client) : client_(std::move(client)) {}

  void set(const std::string& key, const std::string& value, TimePoint deadline) override {
    client_.set(key, value, deadline);
  }
  std::string get(const std::string& key, TimePoint deadline) override { return client_.get(key, deadline); }
  std::int64_t add(const std::string& key, std::int64_t delta, TimePoint deadline) override {
    return client_.add(key, delta, deadline);
  }
  void wait(const std::vector<std::string>& keys, TimePoint deadline) override { client_.wait(keys, deadline); }
  void remove(const std::string& key, TimePoint deadline) override { client_.remove(key, deadline); }

  // The connection, for its addresses only.
  int descriptor() const { return client_.descriptor(); }

 private:
  store::Client client_;
};

}  // namespace ddp::core
