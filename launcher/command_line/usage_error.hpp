// Wrong use of ddprun: one error in three parts, exit code 2.
#pragma once

#include <stdexcept>
#include <string>

namespace ddp::launcher {

class UsageError : public std::runtime_error {
 public:
  UsageError(const std::string& what_happened, std::string where, std::string try_this)
      : std::runtime_error(what_happened), where_(std::move(where)), try_(std::move(try_this)) {}
  const std::string& where() const { return where_; }
  const std::string& try_this() const { return try_; }

 private:
  std::string where_, try_;
};

}  // namespace ddp::launcher
