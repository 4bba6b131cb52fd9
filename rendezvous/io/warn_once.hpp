// Passes each different warning on once, so that a peer that comes back every second fills no log.
//
// Threads: one caller at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <utility>

namespace ddp::io {

using Warn = std::function<void(const std::string& message)>;

class WarnOnce {
 public:
  explicit WarnOnce(Warn warn) : warn_(std::move(warn)) {}

  void operator()(const std::string& message) {
    if (!warn_ || given_.size() >= kWarningCountMax) return;
    if (given_.insert(message).second) warn_(message);
  }

 private:
  static constexpr std::size_t kWarningCountMax = 1024;  // different ones; later ones are not given

  Warn warn_;
  std::set<std::string> given_;
};

}  // namespace ddp::io
