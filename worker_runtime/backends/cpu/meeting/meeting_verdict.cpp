#include "worker_runtime/backends/cpu/meeting/meeting_verdict.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>

#include "worker_runtime/process_group/rank_list.hpp"

namespace ddp::cpu_backend {

using Clock = std::chrono::steady_clock;
using process_group::list_ranks;
using process_group::Membership;

std::string here_key(const MeetingPlace& place, int rank) { return place.key_prefix + "here/" + std::to_string(rank); }

std::string door_key(const MeetingPlace& place, int leader) {
  return place.key_prefix + "socket" + (leader == 0 ? "" : "/" + std::to_string(leader));
}

std::string verdict_key(const MeetingPlace& place) { return place.key_prefix + "verdict"; }

std::string encode(const Door& door) {
  std::string text = door.socket + "\n" + door.identity + "\n" + door.secret + "\n" + door.endpoint.address + "\n";
  return text + std::to_string(door.endpoint.port) + "\n";
}

Door decode_door(const std::string& text) {
  std::istringstream lines(text);
  Door door;
  std::string port;
  std::getline(lines, door.socket);
  std::getline(lines, door.identity);
  std::getline(lines, door.secret);
  std::getline(lines, door.endpoint.address);
  std::getline(lines, port);
  std::from_chars(port.data(), port.data() + port.size(), door.endpoint.port);
  return door;
}

std::string where(const Membership& who) {
  return "\nwhere: the meeting of the process group, rank " + std::to_string(who.rank) + " of " +
         std::to_string(who.size) + ", pid " + std::to_string(::getpid());
}

std::string missing_text(const std::vector<int>& missing, const io::Deadline& deadline) {
  return list_ranks(missing) + " did not come within " + std::to_string(deadline.full_time().count()) + " ms";
}

namespace {

// "lost 1 3\n" and the message of the error.
std::string verdict_of(const std::exception& error) {
  std::string head = "refused";
  std::vector<int> ranks;
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) {
    head = "timeout";
    ranks = timeout->ranks();
  } else if (const auto* failure = dynamic_cast<const RankFailure*>(&error)) {
    head = "lost";
    ranks = failure->ranks();
  }
  for (const int rank : ranks) head += " " + std::to_string(rank);
  return head + "\n" + error.what();
}

}  // namespace

void throw_verdict(const std::string& verdict) {
  const std::size_t line = std::min(verdict.find('\n'), verdict.size());
  const std::string text = verdict.substr(std::min(line + 1, verdict.size()));
  std::istringstream head(verdict.substr(0, line));
  std::string kind;
  head >> kind;
  const std::vector<int> ranks{std::istream_iterator<int>(head), {}};
  if (kind == "timeout") throw TimeoutError(text, ranks);
  if (kind == "lost") throw RankFailure(text, ranks);
  throw Error(text);
}

void publish_verdict(const MeetingPlace& place, const std::vector<int>& leaders, const std::exception& error) {
  try {
    const auto end = Clock::now() + kAskStore;
    place.store.set(verdict_key(place), verdict_of(error), end);
    for (const int leader : leaders) place.store.set(door_key(place, leader), "", end);
    // A set has no answer: only what comes after it says that others can read it.
    static_cast<void>(place.store.check({verdict_key(place)}, end));
  } catch (const Error&) {
    return;
  }
}

std::optional<std::string> read_verdict(const MeetingPlace& place) {
  try {
    const auto end = Clock::now() + kAskStore;
    if (place.store.check({verdict_key(place)}, end)) return place.store.get(verdict_key(place), end);
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ddp::cpu_backend
