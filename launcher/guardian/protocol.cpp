#include "launcher/guardian/protocol.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "ddp/error.hpp"

namespace ddp::launcher::guardian {
namespace {

constexpr std::size_t kControlBytes = CMSG_SPACE(kDescriptorsPerPacketMax * sizeof(int));

// Behind it each variable: its length as std::uint32_t, and its bytes.
struct RequestHead {
  RequestKind kind;
  int local_rank;
  int signal_number;
};

template <class Value>
void append(std::vector<char>& bytes, const Value& value) {
  const auto* at = reinterpret_cast<const char*>(&value);
  bytes.insert(bytes.end(), at, at + sizeof value);
}

// Takes it off the front; empty where there is less.
template <class Value>
std::optional<Value> take(std::span<const char>& bytes) {
  if (bytes.size() < sizeof(Value)) return {};
  Value value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

Sent send_packet(int socket, std::span<const char> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(bytes.size())) return Sent::done;
  if (sent >= 0) return Sent::failed;
  if (errno == ETOOMANYREFS) return Sent::too_many_descriptors;
  return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::no_room : Sent::failed;
}

// Empty where nothing waits or the other side is gone.
std::vector<char> receive_packet(int socket, std::vector<base::UniqueFd>& descriptors, bool& closed) {
  static const auto buffer = std::make_unique<char[]>(kPacketBytesMax);  // one thread, one packet at a time
  iovec part{buffer.get(), kPacketBytesMax};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t received = -1;
  do {
    received = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received <= 0) {
    closed = received == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return {};
  }
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return {buffer.get(), buffer.get() + received};
}

}  // namespace

std::vector<char> packet_of(const Request& request) {
  std::vector<char> bytes;
  append(bytes, RequestHead{request.kind, request.local_rank, request.signal_number});
  for (const auto& variable : request.variables) {
    if (variable.find('\0') != std::string::npos)
      throw Error("a variable for the workers holds a NUL byte: " + variable.substr(0, variable.find('\0')));
    append(bytes, static_cast<std::uint32_t>(variable.size()));
    bytes.insert(bytes.end(), variable.begin(), variable.end());
  }
  return bytes;
}

Sent send_request(int socket, std::span<const char> packet, std::span<const int> descriptors) {
  return packet.size() <= kPacketBytesMax ? send_packet(socket, packet, descriptors) : Sent::failed;
}

bool send_reports(int socket, std::span<const Report> reports, std::span<const int> descriptors) {
  const auto bytes = std::as_bytes(reports);
  return send_packet(socket, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, descriptors) == Sent::done;
}

std::optional<Received<Request>> receive_request(int socket, bool& closed) {
  Received<Request> out;
  const auto bytes = receive_packet(socket, out.descriptors, closed);
  std::span<const char> rest(bytes);
  const auto head = take<RequestHead>(rest);
  if (!head) return {};
  out.content = {head->kind, head->local_rank, head->signal_number, {}};
  while (const auto length = take<std::uint32_t>(rest)) {
    const auto variable = rest.first(std::min<std::size_t>(*length, rest.size()));
    out.content.variables.emplace_back(variable.begin(), variable.end());
    rest = rest.subspan(variable.size());
  }
  return out;
}

std::optional<Received<std::vector<Report>>> receive_reports(int socket, bool& closed) {
  Received<std::vector<Report>> out;
  const auto bytes = receive_packet(socket, out.descriptors, closed);
  if (bytes.size() < sizeof(Report)) return {};
  out.content.resize(bytes.size() / sizeof(Report));
  std::memcpy(out.content.data(), bytes.data(), out.content.size() * sizeof(Report));
  return out;
}

}  // namespace ddp::launcher::guardian
