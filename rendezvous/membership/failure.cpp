#include "rendezvous/membership/failure.hpp"

#include <csignal>
#include <cstring>

namespace ddp::rendezvous {

bool is_schedulers_signal(const Ending& ending) {
  const bool is_killed = ending.kind == Ending::Kind::killed;
  if (!is_killed && ending.kind != Ending::Kind::exited) return false;
  const int number = is_killed ? ending.value : ending.value - 128;
  return number == SIGTERM || number == SIGINT || number == SIGUSR1;
}

std::string counted(int count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

std::string signal_name(int signal_number) {
  const char* abbreviation = sigabbrev_np(signal_number);
  return abbreviation != nullptr ? std::string("SIG") + abbreviation : "signal " + std::to_string(signal_number);
}

std::string describe(const Ending& ending) {
  switch (ending.kind) {
    case Ending::Kind::exited: return "ended with exit code " + std::to_string(ending.value);
    case Ending::Kind::killed:
      return "was killed by " + signal_name(ending.value) +
             (ending.core_dumped             ? " (core dumped)"
              : ending.out_of_memory == true ? " (out of memory)"
                                             : "");
    case Ending::Kind::not_started: return std::string("could not be started: ") + std::strerror(ending.value);
    case Ending::Kind::left: return "left its process group";
  }
  return {};
}

std::string describe_duration(std::chrono::milliseconds duration) {
  const auto ms = duration.count();
  const auto minutes = ms / 60'000;
  if (ms < 1000) return std::to_string(ms) + " ms";
  if (minutes < 2)
    return std::to_string(ms / 1000) + (ms % 1000 < 100 ? "" : "." + std::to_string(ms % 1000 / 100)) + " s";
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string describe_failure(const FailureReport& failure) {
  auto text = "rank " + std::to_string(failure.rank) + " " +
              (failure.is_killed_by_ddprun() ? "was killed by ddprun" : describe(failure.ending));
  if (failure.ending.kind != Ending::Kind::not_started) text += " after " + describe_duration(failure.after);
  if (failure.is_killed_by_ddprun()) text += ": " + failure.killed_for;
  return text;
}

}  // namespace ddp::rendezvous
