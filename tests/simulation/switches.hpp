// The faults that have a switch: they befall a history only where they are asked for.
#pragma once

#include <array>
#include <cstddef>
#include <set>
#include <string>

namespace ddp::simulation {

enum class Fault {
  reset,       // a connection between live processes is reset, what is under way on it is lost
  refusal,     // for a while the kernel of a live host refuses connections to a port that a process listens on
  close,       // an agent that lives and has workers closes its connection as a client that ends does, and comes again
  one_way,     // for a while nothing goes from one host to another, while the way back works
  cut,         // for a while two hosts can't reach each other, and reach all others
  stall,       // an event loop does nothing, its connections stay open and what comes over them waits
  late_death,  // a worker is killed, and its end is reported up to 2 s later
  replaced_host,      // a new ddprun comes in place of another one that is gone, before anybody may have noticed
  stop,               // one ddprun gets SIGTERM
  slow_files,         // for a while whatever a ddprun does with files takes up to 3 s
  failed_calls,       // for a while one of Call fails on a host
  replaced_endpoint,  // a new ddprun comes at the endpoint in place of the one that was there
  full_daemon,        // for a while other jobs have all places that the daemon has, or as many as they get
  crashed_hosts,      // all processes of two hosts are killed, and new ddpruns come there that prove it
  // Those from here on are settings of the job, or of how something happens: they befall no history by themselves.
  restart_window,  // restarts count for a while only
  time_limit,      // each ddprun has --timeout
  reasons,         // failed workers leave error files and last lines on stderr
  deadly_signals,  // ddprun, or its guardian, dies by one of several signals, and the guardian says by which
  stop_signals,    // who is told to stop gets SIGTERM, SIGINT or SIGHUP
};
constexpr std::size_t kFaults = 19;
constexpr bool befalls(Fault fault) { return fault < Fault::restart_window; }

constexpr std::size_t index_of(Fault fault) { return static_cast<std::size_t>(fault); }
std::string name_of(Fault fault);

// Of names divided by commas, or "all". Throws std::invalid_argument, which lists the names.
std::set<Fault> faults_of(const std::string& names);

// What an agent asks of its host.
enum class Call { spawn, seats, store, output };
constexpr std::size_t kCalls = 4;
std::string name_of(Call call);

using CallCounts = std::array<std::size_t, kCalls>;    // by Call
using FaultCounts = std::array<std::size_t, kFaults>;  // by Fault

}  // namespace ddp::simulation
