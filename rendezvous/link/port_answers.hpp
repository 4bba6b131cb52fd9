// What the user reads of the ports of an endpoint, while it is not known which of them the job has.
//
// Pure.
//
// Threads: one caller at a time (the event loop's thread).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/link/endpoint_name.hpp"

namespace ddp::rendezvous {

class PortAnswers {
 public:
  explicit PortAnswers(EndpointName endpoint) : endpoint_(std::move(endpoint)) {}

  // Takes in the last answer of a port. try_this: the port refuses until this has been done.
  void note(int port, const std::optional<std::string>& try_this);

  // The endpoint's host is not known any more.
  void forget() { refusals_.clear(); }

  // What the user can do about a port that refuses. Empty: none refuses.
  std::optional<std::string> advice() const;

  // Takes in why the job was not found at a port. Returns the reasons of all ports.
  std::string reasons_with(int port, const std::string& why);
  void forget_reasons() { reasons_.clear(); }

 private:
  EndpointName endpoint_;
  std::map<int, std::string> refusals_;  // what to do about them, by port
  std::map<int, std::string> reasons_;   // by port
};

}  // namespace ddp::rendezvous
