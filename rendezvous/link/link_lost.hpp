#pragma once

#include <string>

namespace ddp::rendezvous {

// Why an agent cannot take part in its job, or no longer: the parts of an error message.
struct LinkLost {
  std::string what, where, try_this;
};

}  // namespace ddp::rendezvous
