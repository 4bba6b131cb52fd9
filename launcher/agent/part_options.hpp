// Options of the agent's parts, from the command line.
#pragma once

#include <memory>
#include <string>

#include "base/warning.hpp"
#include "ddp/round.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/node/node_core.hpp"
#include "rendezvous/security/tls.hpp"
#include "rendezvous/store/server.hpp"

namespace ddp::launcher {

// The user's, or one made from the term.
std::string run_id_of(const LaunchConfig& config, const RoundId& term);

// Null without a token. Throws TokenError if OpenSSL can't be loaded.
std::shared_ptr<const security::Security> security_of(const LaunchConfig& config);

NodeOptions node_options(const LaunchConfig& config);

store::ServerOptions store_options(const LaunchConfig& config, base::Warn warn);

}  // namespace ddp::launcher
