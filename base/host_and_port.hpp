// A host and a port in one text, as a user types them: "node0:29400", "10.0.0.1:29400", "[fd00::1]:29400".
#pragma once

#include <cstdint>
#include <string>

namespace ddp::base {

// `port` may be a word that stands for one.
inline std::string host_and_port(const std::string& host, const std::string& port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

inline std::string host_and_port(const std::string& host, std::uint16_t port) {
  return host_and_port(host, std::to_string(port));
}

}  // namespace ddp::base
