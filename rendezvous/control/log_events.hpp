// Log events (base/event_log.hpp) for the messages between agents and membership, and for what happens in the process
// that serves a job's membership.
//
// Pure.
#pragma once

#include <optional>

#include "base/event_log.hpp"
#include "rendezvous/host/host_core.hpp"

namespace ddp::rendezvous {

// The event has the message's name on the wire.
base::LogEvent log_event_of(const ToMembership& message);
base::LogEvent log_event_of(const ToAgent& message);

// The level of the log event, at a small part of its cost. Empty if the action is not logged.
base::LogLevel log_level_of(const HostCore::Event& event);
std::optional<base::LogLevel> log_level_of(const HostCore::Action& action);

base::LogEvent log_event_of(const HostCore::Event& event);
base::LogEvent log_event_of(const HostCore::Action& action);  // requires an action that is logged

// The job's present state: "phase phase=running round=3 ...". Level info; error if the job has failed.
base::LogEvent log_event_of(const HostCore& core);

}  // namespace ddp::rendezvous
