// The secret by which the nodes of a job know each other, and where it comes from.
//
// There is no way to print one. Where none is found the control channel is open.
// For users: docs/security.md.
#pragma once

#include <sys/resource.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddp/error.hpp"

namespace ddp::security {

inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

class Token {
 public:
  // Throws InvalidArgument, which does not quote it: 16 to 512 printable characters of ASCII, none of them a space.
  explicit Token(std::string text);

  // Takes as long wherever the first difference is.
  bool is(std::string_view text) const;

  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

// One token, or two while a new one replaces an old one: this process connects with the first, and accepts each.
class Tokens {
 public:
  Tokens(Token only) : all_{std::move(only)} {}

  // One or two lines with a token each. Throws InvalidArgument.
  static Tokens of_lines(const std::string& lines);

  const std::vector<Token>& all() const { return all_; }
  bool has(std::string_view text) const;

 private:
  std::vector<Token> all_;
};

// A token was given that can't be used: the parts of an error message.
class TokenError : public Error {
 public:
  TokenError(const std::string& what, std::string where, std::string try_this)
      : Error(what), where_(std::move(where)), try_this_(std::move(try_this)) {}
  const std::string& where() const { return where_; }
  const std::string& try_this() const { return try_this_; }

 private:
  std::string where_, try_this_;
};

// What --token-file names, else the value of DDPRUN_TOKEN, else ~/.config/ddprun/token where it exists. Throws
// TokenError, also for a file that others can read, change or replace.
std::optional<Tokens> find_tokens(const std::optional<std::string>& file,
                                  const std::function<std::optional<std::string>(const std::string&)>& environment);

// What `file` names: tokens for those who only read. None of them may be one that lets nodes in. Throws TokenError.
std::optional<Tokens> find_scrape_tokens(const std::optional<std::string>& file, const std::optional<Tokens>& tokens);

// Removes DDPRUN_TOKEN from the environment, and its value from /proc/<pid>/environ, and returns the value. Programs
// call it first of all.
std::optional<std::string> take_token_variable();

// Other processes of this user can't read this process's memory from now on, and no core is written of it. The same
// holds for forked children until they start a program. Returns the limit of cores before, for those programs.
rlimit hide_memory();

}  // namespace ddp::security
