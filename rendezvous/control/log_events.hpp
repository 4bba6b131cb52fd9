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

// Empty if the event or action is not logged.
std::optional<base::LogEvent> log_event_of(const HostCore::Event& event);
std::optional<base::LogEvent> log_event_of(const HostCore::Action& action);

// The job's present state: "phase phase=running round=3 ...". Level info; error if the job has failed.
base::LogEvent log_event_of(const HostCore& core);

}  // namespace ddp::rendezvous
