// Checks what a call throws.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <optional>

namespace ddp::testing {

// What a call throws, if it is an Exception; anything else fails the test.
template <class Exception, class Call>
std::optional<Exception> thrown_by(const Call& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Exception& error) {
    return error;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error was thrown: " << error.what();
  }
  return std::nullopt;
}

}  // namespace ddp::testing
