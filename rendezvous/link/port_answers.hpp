// What the ports of an endpoint have answered, while an agent does not know which of them the job has.
//
// Pure.
//
// Threads: one caller at a time (the event loop's thread).
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/link/endpoint_name.hpp"

namespace ddp::rendezvous {

class PortAnswers {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit PortAnswers(EndpointName endpoint) : endpoint_(std::move(endpoint)) {}

  // Takes in the last answer of a port. try_this: the port refuses until this has been done.
  void note(int port, bool is_silent, const std::string& try_this, TimePoint now);

  // The endpoint's host is not known any more.
  void forget();

  // Since when one port refuses and no port is silent. Empty: that is not so.
  std::optional<TimePoint> refused_since() const { return refused_since_; }

  // What the user can do about a port that refuses. Empty: none refuses.
  std::string advice() const;

  // Takes in why the job was not found at a port. Returns the reasons of all ports.
  std::string reasons_with(int port, const std::string& why);
  void forget_reasons() { reasons_.clear(); }

 private:
  struct Answer {
    bool is_silent = false;
    std::string try_this;
  };

  EndpointName endpoint_;
  std::map<int, Answer> answers_;       // by port
  std::map<int, std::string> reasons_;  // by port
  std::optional<TimePoint> refused_since_;
};

}  // namespace ddp::rendezvous
