// What libddp throws. Each message says what happened with its values, where, and what to try.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ddp/export.hpp"

namespace ddp {
inline namespace DDP_ABI {

// The base of everything libddp throws.
class DDP_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The call itself was wrong: a size, a type, a rank out of range, an unset variable. Nothing was started.
class DDP_EXPORT InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Ranks called different things: another collective, type, size or root, or models that differ.
class DDP_EXPORT MismatchError : public Error {
 public:
  using Error::Error;
};

// A deadline passed. `ranks()` are those that were waited for; empty where that is not known.
class DDP_EXPORT TimeoutError : public Error {
 public:
  // Made by the library, and by a Store that a program lends to it.
  explicit TimeoutError(const std::string& message, std::vector<int> ranks = {})
      : Error(message), ranks_(std::move(ranks)) {}
  // The ranks that were waited for, as ranks of the group of the call.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// Other ranks of the group ended, or left it, while this one needed them. The group is of no further use.
class DDP_EXPORT RankFailure : public Error {
 public:
  // Made by the library.
  RankFailure(const std::string& message, std::vector<int> ranks) : Error(message), ranks_(std::move(ranks)) {}
  // The ranks that ended or left, as ranks of the group of the call.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// The group was given up on by abort(), or by an earlier failure that this message repeats.
class DDP_EXPORT AbortedError : public Error {
 public:
  using Error::Error;
};

// The launcher has ended the round of this group, for a failure or a change of members anywhere in the job; see
// ddp/elastic.hpp. It comes from collectives under way, and from the next call of a rank that is computing.
class DDP_EXPORT RoundOver : public AbortedError {
 public:
  using AbortedError::AbortedError;
};

// A step of DistributedDataParallel went wrong: a parameter was unused, or was ready twice.
class DDP_EXPORT GradientError : public Error {
 public:
  using Error::Error;
};

// A checkpoint can't be written, or a file is not a whole and valid one.
class DDP_EXPORT CheckpointError : public Error {
 public:
  using Error::Error;
};

// The store can't be reached, broke off, or answered nonsense.
class DDP_EXPORT StoreError : public Error {
 public:
  using Error::Error;
};

}  // namespace DDP_ABI
}  // namespace ddp
