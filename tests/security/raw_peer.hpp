// One side of the control channel that says whatever a test wants: an agent, or an endpoint. Its heart beats by itself.
//
// Threads: the test's. A thread of its own does the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace ddp::test {

class RawPeer {
 public:
  // An agent that connects to 127.0.0.1. Throws where nobody listens there.
  static RawPeer agent(std::uint16_t port);
  // An endpoint on 127.0.0.1. What it says goes to the agent that came last.
  static RawPeer endpoint();

  RawPeer(RawPeer&&) noexcept;
  ~RawPeer();  // closes the connection

  std::uint16_t port() const;  // of an endpoint

  void say(const std::string& json);

  // The next message of this type; those before it are passed over. An endpoint hears the agent that came last, and
  // waits for the next one. Empty if an agent's connection has ended, and at the end of kPatience.
  std::optional<std::string> hear(const std::string& type);

  // Waits for the end of an agent's connection; false at the end of kPatience.
  bool is_cut_off();

 private:
  class Impl;
  explicit RawPeer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddp::test
