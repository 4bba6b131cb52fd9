#include "tests/simulation/switches.hpp"

#include <algorithm>
#include <stdexcept>

namespace ddp::simulation {

namespace {

constexpr const char* kNames[kFaults] = {"reset",       "refusal",        "close",          "one-way",
                                         "cut",         "stall",          "late-death",     "replaced-host",
                                         "stop",        "slow-files",     "failed-calls",   "replaced-endpoint",
                                         "full-daemon", "crashed-hosts",  "restart-window", "time-limit",
                                         "reasons",     "deadly-signals", "stop-signals"};
constexpr const char* kCallNames[kCalls] = {"spawn", "seats", "store", "output"};

}  // namespace

std::string name_of(Fault fault) { return kNames[index_of(fault)]; }

std::string name_of(Call call) { return kCallNames[static_cast<std::size_t>(call)]; }

std::set<Fault> faults_of(const std::string& names) {
  std::set<Fault> out;
  for (std::size_t at = 0; at <= names.size();) {
    const auto end = std::min(names.find(',', at), names.size());
    const auto name = names.substr(at, end - at);
    at = end + 1;
    bool is_known = false;
    for (std::size_t i = 0; i < kFaults; ++i)
      if (name == "all" || name == kNames[i]) {
        out.insert(static_cast<Fault>(i));
        is_known = true;
      }
    if (is_known) continue;
    std::string known = "all";
    for (const auto* other : kNames) known += std::string(", ") + other;
    throw std::invalid_argument("there is no fault '" + name + "'; there are: " + known);
  }
  return out;
}

}  // namespace ddp::simulation
