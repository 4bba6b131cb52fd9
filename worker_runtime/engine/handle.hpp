// Public classes are handles: copies share what they stand for.
#pragma once

#include <memory>
#include <string>

#include "ddp/error.hpp"

namespace ddp::gradient_engine {

// Throws InvalidArgument for a handle that was moved from. name: of the class.
template <class Impl>
Impl& require_impl(const std::shared_ptr<Impl>& impl, const char* name) {
  if (impl) return *impl;
  throw InvalidArgument(std::string("this ") + name +
                        " is empty: it was moved from\ntry:   use the one it was moved to");
}

}  // namespace ddp::gradient_engine
