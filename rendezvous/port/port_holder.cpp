#include "rendezvous/port/port_holder.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace ddp::port {
namespace {

constexpr int kListening = 0x0A;  // TCP_LISTEN
constexpr std::size_t kCommandBytesShown = 80;

// The inodes of sockets that listen on the port: "sl local remote st tx:rx tr:when retrnsmt uid timeout inode ...".
std::set<std::string> listening_inodes(std::uint16_t port) {
  std::set<std::string> out;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);
    while (std::getline(table, line)) {
      std::istringstream words(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      unsigned its_port = 0, its_state = 0;
      const auto colon = local.rfind(':');
      if (colon == std::string::npos || std::sscanf(local.c_str() + colon, ":%x", &its_port) != 1 ||
          std::sscanf(state.c_str(), "%x", &its_state) != 1)
        continue;
      if (its_port == port && its_state == kListening) out.insert("socket:[" + inode + "]");
    }
  }
  return out;
}

std::string command_of(const std::filesystem::path& process) {
  std::ifstream file(process / "cmdline", std::ios::binary);
  std::string text;
  std::getline(file, text, '\xff');
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text)
    if (std::isprint(static_cast<unsigned char>(c)) == 0) c = ' ';
  return text.substr(0, kCommandBytesShown);
}

}  // namespace

std::string holder_of(std::uint16_t port) {
  const auto inodes = listening_inodes(port);
  if (inodes.empty()) return {};
  std::error_code error;
  for (const auto& process : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = process.path().filename().string();
    if (!std::all_of(pid.begin(), pid.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) continue;
    for (auto entry = std::filesystem::directory_iterator(process.path() / "fd", error);
         !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (inodes.count(std::filesystem::read_symlink(entry->path(), ignored).string()) != 0)
        return "pid " + pid + " (" + command_of(process.path()) + ")";
    }
  }
  return "a process of another user, or a ddprun or ddp-rendezvous with a token";
}

}  // namespace ddp::port
