// The secret by which the nodes of a job know each other, and where it comes from.
//
// There is no way to print one. Where none is found the control channel is open.
// For users: docs/security.md.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

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
std::optional<Token> find_token(const std::optional<std::string>& file,
                                const std::function<std::optional<std::string>(const std::string&)>& environment);

// What `file` names: a token for those who only read. It must not be one that lets nodes in. Throws TokenError.
std::optional<Token> find_scrape_token(const std::optional<std::string>& file, const std::optional<Token>& token);

// Removes DDPRUN_TOKEN from the environment, and its value from /proc/<pid>/environ, and returns the value. Programs
// call it first of all.
std::optional<std::string> take_token_variable();

}  // namespace ddp::security
