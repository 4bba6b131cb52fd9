// The command line of ddp-rendezvous.
//
// Pure: words in, a decision out.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ddp/error.hpp"
#include "rendezvous/daemon/daemon_log.hpp"
#include "rendezvous/store/memory_budget.hpp"

namespace ddp::rendezvous {

// Text to print, and no more: --help, --version.
struct ShowText {
  std::string text;
};

// `ddp-rendezvous store`: a store alone.
struct ServeStore {
  std::uint16_t port = 29500;        // 0 takes a free one; the default is that of PyTorch's TCPStore
  std::vector<std::string> hosts{};  // addresses to listen on; empty: all of this host's
  std::vector<std::string> allow{};  // as ServerOptions::allow, checked
  int memory_mib = store::kMemoryMibDefault;
  DaemonLogOptions log{};
};

// `ddp-rendezvous`: the membership of jobs.
struct ServeJobs {
  std::uint16_t port = 29400;                          // 0 takes a free one; the default is that of --rdzv-endpoint
  std::vector<std::string> hosts{};                    // addresses to listen on; empty: all of this host's
  std::chrono::milliseconds heartbeat_timeout{3'000};  // silence of a node that counts as its death
  std::optional<std::string> token_file{};             // as security::find_tokens()
  std::optional<std::string> scrape_token_file{};      // as security::find_scrape_tokens()
  DaemonLogOptions log{};
};

// "port 29400 of all addresses".
std::string listening_text(const std::vector<std::string>& hosts, std::uint16_t port);

// Wrong use, with one line of what was wrong.
class CommandLineError : public Error {
 public:
  using Error::Error;
};

// Throws CommandLineError.
std::variant<ShowText, ServeStore, ServeJobs> parse_command_line(const std::vector<std::string>& arguments,
                                                                 const std::string& version);

}  // namespace ddp::rendezvous
