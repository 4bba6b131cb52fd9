#include "launcher/command_line/visible_devices.hpp"

#include <sstream>

namespace ddp::launcher {

std::vector<std::string> entries_of_visible_devices(const std::string& cuda_visible_devices) {
  std::vector<std::string> out;
  std::istringstream entries(cuda_visible_devices);
  for (std::string entry; std::getline(entries, entry, ',');) {
    entry.erase(0, entry.find_first_not_of(' '));
    entry.erase(entry.find_last_not_of(' ') + 1);
    out.push_back(entry);
  }
  return out;
}

}  // namespace ddp::launcher
