// Log events (base/event_log.hpp) for what happens on a node and for what the node core decides.
//
// Pure.
#pragma once

#include <optional>
#include <vector>

#include "base/event_log.hpp"
#include "launcher/node/node_core.hpp"

namespace ddp::launcher {

// Returns nothing for what happens at every training step.
std::vector<base::LogEvent> log_events_of(const NodeCore::Event& event);

// Empty if the action is not logged.
std::optional<base::LogEvent> log_event_of(const NodeCore::Action& action);

}  // namespace ddp::launcher
