// A step that all ranks of a group take through the store after they have met: each gives and reads a few values, and
// then all go on, or all throw the same.
//
// Every rank writes and reads a handful of keys, however large the group.
//
// Threads: one caller.
#pragma once

#include <string>

#include "base/deadline.hpp"
#include "ddp/bootstrap.hpp"
#include "worker_runtime/core/failure/start_message.hpp"

namespace ddp::core {

class StoreAgreement {
 public:
  // `key_prefix` is of this step alone. Each call throws StoreError, and TimeoutError at the deadline.
  StoreAgreement(StartingRank own, Store& store, std::string key_prefix, const base::Deadline& deadline);

  // The value of the rank that has given one for `name` first.
  std::string first(const std::string& name, const std::string& value);

  // A value of one rank, for the others to read.
  void give(const std::string& name, const std::string& value);
  std::string take(const std::string& name);  // waits for the value

  // Lets all ranks throw InvalidArgument with this message. The first refusal counts.
  void refuse(const std::string& why);

  // Waits until all ranks have come here. Throws InvalidArgument if one has refused; TimeoutError, which names the
  // missing ranks, at the deadline.
  void wait_for_all();

 private:
  std::string key(const std::string& name) const { return key_prefix_ + name; }
  [[noreturn]] void throw_missing();

  StartingRank own_;
  Store& store_;
  std::string key_prefix_;
  const base::Deadline& deadline_;
};

}  // namespace ddp::core
