// What only this process knows of workers that failed: their pids, and where their words are.
#pragma once

#include <string>
#include <vector>

#include "launcher/agent/guardian_link.hpp"
#include "launcher/agent/reason_files.hpp"
#include "launcher/command_line/launch_config.hpp"
#include "launcher/gpu_faults/gpu_faults.hpp"
#include "launcher/node/node_core.hpp"
#include "launcher/output/output.hpp"

namespace ddp::launcher {

// Adds the details that SendRoundEnded lacks.
rendezvous::RoundEnded with_details(rendezvous::RoundEnded ended, const LaunchConfig& config,
                                    const GuardianLink& guardian, const Output& output,
                                    const std::vector<GpuFault>& gpu_faults);

// The files that ReadReasons asks for.
ReasonFiles::Paths reason_paths(const std::vector<int>& local_ranks, const Output& output);

// Adds the last lines on stderr of workers whose stderr is in no file.
Reasons with_tails(Reasons reasons, const std::vector<int>& local_ranks, const Output& output);

// In the form in which a launcher that started this one reads the reason of any worker.
RootCause root_cause_of(const NodeCore::TellCaller& what, const Output& output);

}  // namespace ddp::launcher
