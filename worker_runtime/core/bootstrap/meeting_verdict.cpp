#include "worker_runtime/core/bootstrap/meeting_verdict.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <system_error>

#include "ddp/error.hpp"
#include "worker_runtime/core/failure/start_message.hpp"

namespace ddp::core {

using Clock = std::chrono::steady_clock;
using process_group::GroupMember;

std::string here_key(const MeetingPlace& place, int rank) { return place.key_prefix + "here/" + std::to_string(rank); }

std::string endpoint_key(const MeetingPlace& place, int leader) {
  return place.key_prefix + "socket" + (leader == 0 ? "" : "/" + std::to_string(leader));
}

std::string verdict_key(const MeetingPlace& place) { return place.key_prefix + "verdict"; }

std::string verdict_count_key(const MeetingPlace& place) { return place.key_prefix + "verdict_count"; }

std::string encode(const CoordinatorEndpoint& endpoint) {
  std::string text =
      endpoint.socket + "\n" + endpoint.identity + "\n" + endpoint.secret + "\n" + endpoint.tcp.address + "\n";
  return text + std::to_string(endpoint.tcp.port) + "\n";
}

CoordinatorEndpoint decode_endpoint(const std::string& text) {
  std::istringstream lines(text);
  CoordinatorEndpoint endpoint;
  std::string port;
  std::getline(lines, endpoint.socket);
  std::getline(lines, endpoint.identity);
  std::getline(lines, endpoint.secret);
  std::getline(lines, endpoint.tcp.address);
  std::getline(lines, port);
  std::from_chars(port.data(), port.data() + port.size(), endpoint.tcp.port);
  return endpoint;
}

base::UniqueFd shared_file_of(const MakeSharedFile& make, const HostLayout& layout, int host) {
  return make ? make(layout, host) : base::UniqueFd();
}

base::UniqueFd make_layout_file(const HostLayout& layout) {
  base::UniqueFd file(::memfd_create("ddp-layout", MFD_CLOEXEC));
  if (!file) throw std::system_error(errno, std::generic_category(), "memfd_create");
  std::vector<std::int32_t> host_of;
  for (int rank = 0; rank < layout.size(); ++rank) host_of.push_back(layout.host_of(rank));
  const std::size_t bytes = host_of.size() * sizeof(host_of[0]);
  if (::pwrite(file.get(), host_of.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw std::system_error(errno, std::generic_category(), "pwrite");
  }
  return file;
}

HostLayout read_layout_file(int file, int size) {
  std::vector<std::int32_t> host_of(static_cast<std::size_t>(size));
  const std::size_t bytes = host_of.size() * sizeof(host_of[0]);
  if (::pread(file, host_of.data(), bytes, 0) != static_cast<ssize_t>(bytes)) {
    throw std::system_error(errno, std::generic_category(), "pread");
  }
  return HostLayout({host_of.begin(), host_of.end()});
}

namespace {

StartingRank starting(const GroupMember& who) {
  return {.backend = "cpu", .rank = who.rank, .size = who.size, .pid = ::getpid()};
}

}  // namespace

std::string where(const GroupMember& who) { return where_starting(starting(who)); }

void throw_did_not_join(const GroupMember& who, const std::vector<int>& missing, const base::Deadline& deadline) {
  throw TimeoutError(did_not_join_message(starting(who), missing, deadline.full_time()), missing);
}

void publish_verdict(const MeetingPlace& place, const std::vector<int>& leaders, const std::exception& error) {
  try {
    const auto end = Clock::now() + kAskStore;
    place.store.set(verdict_key(place), encode(verdict_of(error)), end);
    place.store.add(verdict_count_key(place), 1, end);
    for (const int leader : leaders) place.store.set(endpoint_key(place, leader), "", end);
    // A set may have no answer. The answer to a later call says that others can read what was set.
    place.store.add(verdict_count_key(place), 1, end);
  } catch (const Error&) {
    return;
  }
}

std::optional<Verdict> read_verdict(const MeetingPlace& place) {
  try {
    const auto end = Clock::now() + kAskStore;
    if (place.store.add(verdict_count_key(place), 0, end) > 0) {
      return decode_verdict(place.store.get(verdict_key(place), end));
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ddp::core
