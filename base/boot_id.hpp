// What tells one running machine from another: equal in all its containers, new after each boot. Empty if /proc does
// not say. Clones of a virtual machine that was not shut down may share it.
#pragma once

#include <fstream>
#include <string>

namespace ddp::base {

inline std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace ddp::base
