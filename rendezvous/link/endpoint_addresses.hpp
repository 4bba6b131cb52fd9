// Looks up the addresses of the endpoint's host, for one attempt to connect after another.
//
// A look-up cannot be stopped. It may outlast the attempt that began it, and the next attempt gets the answer.
//
// Threads: the event loop's only.
#pragma once

#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/link/endpoint_name.hpp"
#include "rendezvous/link/resolver.hpp"

namespace ddp::rendezvous {

inline constexpr const char* kLookUpGoesOn = "the name is still being looked up";

class EndpointAddresses {
 public:
  // As resolve() in resolver.hpp.
  using Resolve = std::function<std::shared_ptr<void>(boost::asio::io_context& io, const Wanted& wanted,
                                                      std::function<void(const Resolved&)> done)>;

  EndpointAddresses(boost::asio::io_context& io, EndpointName endpoint, Resolve look_up = resolve)
      : io_(io), endpoint_(std::move(endpoint)), resolve_(std::move(look_up)) {}
  EndpointAddresses(const EndpointAddresses&) = delete;

  // Begins a look-up unless one is under way, or has_answer() already. Calls `answered` once has_answer(), from the
  // loop, unless ask() or leave() comes first. Throws std::exception if the look-up cannot begin.
  void ask(std::function<void()> answered);
  void leave() { answered_ = nullptr; }

  bool is_looking_up() const { return looking_up_ != nullptr; }
  bool has_answer() const { return answer_.has_value(); }

  // Takes the answer in. Returns why there is no address; none: known() has them. Requires has_answer().
  std::optional<std::string> take_answer();

  // Of the last answer that had any; with the first port of the endpoint.
  const std::vector<sockaddr_storage>& known() const { return known_; }
  void forget() { known_.clear(); }

  // The same as texts; forget() leaves these, so that a message can name them.
  const std::vector<std::string>& texts() const { return texts_; }

  // The host as other connections can name it: what Slurm has for a name that does not resolve, else the name.
  const std::string& host() const { return slurm_address_.empty() ? endpoint_.host : slurm_address_; }
  const EndpointName& endpoint() const { return endpoint_; }

  // Gives up the look-up.
  void stop();

 private:
  boost::asio::io_context& io_;
  const EndpointName endpoint_;
  const Resolve resolve_;
  std::shared_ptr<void> looking_up_;
  std::chrono::steady_clock::time_point began_;
  std::function<void()> answered_;
  std::optional<Resolved> answer_;
  std::vector<sockaddr_storage> known_;
  std::vector<std::string> texts_;
  std::string slurm_address_;
  std::optional<std::chrono::steady_clock::time_point> slurm_failed_at_;
  std::optional<std::string> slurm_error_;
};

}  // namespace ddp::rendezvous
