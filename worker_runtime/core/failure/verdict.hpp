// What a failure means for one rank: the error that its calls throw. Pure.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace ddp::core {

struct Verdict {
  enum class Kind { timeout, rank_failure, mismatch, aborted, round_over, error };
  Kind kind = Kind::error;
  std::string message;
  std::vector<int> ranks{};  // of `timeout` and `rank_failure`
};

// That throws an error like this one.
Verdict verdict_of(const std::exception& error);

std::string encode(const Verdict& verdict);

// A text that is malformed is the message of an error.
Verdict decode_verdict(std::string_view text);

[[noreturn]] void throw_verdict(const Verdict& verdict);

// What later calls throw.
[[noreturn]] void throw_unusable(const Verdict& first);

}  // namespace ddp::core
