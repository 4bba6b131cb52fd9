// Why a job stops, and why a round began. Values, of which sentences are made where somebody reads them.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "rendezvous/membership/failure.hpp"
#include "rendezvous/membership/node_id.hpp"

namespace ddp::rendezvous {

// The job is told to stop.
struct JobStop {
  enum class Source {
    ddprun,   // a node's ddprun was told so
    workers,  // workers have died of the signal, and no ddprun has said that it got one
  };
  Source source = Source::ddprun;
  int signal_number = 0;
  std::string host;
  std::optional<NodeId> asker{};  // the node of that ddprun, whose user knows why
  // Job times of what followed: the stop of a round that was at work, and the first worker that died of a signal.
  std::optional<std::chrono::milliseconds> round_stopped_at{}, workers_signalled_at{};
  std::optional<std::chrono::milliseconds> time_limit{};  // of --timeout there, which is over; empty: a signal came

  void note_signalled(std::chrono::milliseconds when) {
    workers_signalled_at = std::min(workers_signalled_at.value_or(when), when);
  }

  std::string why() const {
    if (time_limit) return "the time limit of " + describe_duration(*time_limit) + " on host " + host + " (--timeout)";
    return signal_name(signal_number) + (source == Source::ddprun
                                             ? " to ddprun on host " + host
                                             : " to the processes of host " + host + ", workers among them");
  }
};

// What the next round tells of those before it.
struct RoundReasons {
  std::optional<std::string> ended{};      // the last round that began
  std::optional<std::string> unstarted{};  // the last round after that one, which did not begin

  // One line; empty before the first round.
  std::optional<std::string> text() const {
    if (!ended) return unstarted;
    if (!unstarted || *unstarted == *ended) return ended;
    return *ended + "; then " + *unstarted;
  }
};

}  // namespace ddp::rendezvous
