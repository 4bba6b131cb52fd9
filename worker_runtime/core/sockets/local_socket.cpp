#include "worker_runtime/core/sockets/local_socket.hpp"

#include "base/closed_in_child.hpp"
#include "base/cut.hpp"
#include "base/pidfd.hpp"
#include "base/process_wide.hpp"
#include "base/throw_errno.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <system_error>

namespace ddp::core {

namespace {

constexpr std::uint32_t kMagic = 0x64647031;  // "ddp1"; a change of the messages below changes it

struct Header {
  std::uint32_t magic = kMagic;
  Message::Kind kind = Message::Kind::hello;
  std::int32_t rank = 0;
  std::int32_t pid = 0;
};

// Room for one descriptor's control message, aligned as the kernel wants it.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

// Nobody writes to it, so its output tells of this process's end: no forked child keeps the input, nor does a program
// that one runs.
struct OwnPipe {
  OwnPipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) base::throw_errno("pipe2");
    output.reset(ends[0]);
    input.reset(ends[1]);
    base::close_in_forked_children(input.get());
  }
  ~OwnPipe() {  // of two that were made at once, one is left
    if (input) base::keep_in_forked_children(input.get());
  }
  base::UniqueFd output, input;
};

struct AbstractAddress {
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t count = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), count);  // the leading zero makes it abstract: no file, no clean-up
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t bytes = 0;
};

base::UniqueFd make_socket(int flags) {
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!socket) base::throw_errno("socket");
  return socket;
}

void wait_until_writable(int socket, base::Deadline& deadline) {
  using Clock = std::chrono::steady_clock;
  while (true) {
    pollfd polled{socket, POLLOUT, 0};
    poll_until({&polled, 1}, deadline);
    if (polled.revents != 0) return;
    if (deadline.passed(Clock::now())) throw Error("a rank does not read its messages");
  }
}

// Takes the descriptors that came along, so that none leaks whatever else is wrong with the message.
base::UniqueFd descriptor_in(msghdr& message) {
  base::UniqueFd received;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof(fd));  // there is room for one, the kernel closes any other
    received.reset(fd);
  }
  return received;
}

}  // namespace

base::UniqueFd listen_locally(const std::string& name, int backlog) {
  base::UniqueFd socket = make_socket(SOCK_NONBLOCK);
  const AbstractAddress address(name);
  if (::bind(socket.get(), address.get(), address.bytes) != 0) base::throw_errno("bind");
  if (::listen(socket.get(), backlog) != 0) base::throw_errno("listen");
  return socket;
}

base::UniqueFd connect_locally(const std::string& name, Backlog backlog) {
  base::UniqueFd socket = make_socket(backlog == Backlog::has_room ? SOCK_NONBLOCK : 0);
  const AbstractAddress address(name);
  while (::connect(socket.get(), address.get(), address.bytes) != 0) {
    if (errno != EINTR) base::throw_errno("connect");
  }
  return socket;
}

base::UniqueFd accept_locally(int listener) {
  while (true) {
    base::UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket && uid_of_peer(socket.get()) != ::geteuid()) continue;
    if (socket || errno == EAGAIN) return socket;
    if (errno != EINTR && errno != ECONNABORTED) base::throw_errno("accept");
  }
}

uid_t uid_of_peer(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) base::throw_errno("SO_PEERCRED");
  return peer.uid;
}

void send_message(int socket, const Message& message, int fd, base::Deadline& deadline) {
  Header header{kMagic, message.kind, message.rank, message.pid};
  iovec part{&header, sizeof(header)};
  Control control{};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  if (fd >= 0) {
    packet.msg_control = control.bytes.data();
    packet.msg_controllen = control.bytes.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&packet);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(fd));
    std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  }
  while (::sendmsg(socket, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EAGAIN) {
      wait_until_writable(socket, deadline);
    } else if (errno != EINTR) {
      base::throw_errno("sendmsg");
    }
  }
}

std::optional<Message> receive_message(int socket) {
  Header header;
  iovec part{&header, sizeof(header)};
  Control control{};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = control.bytes.data();
  packet.msg_controllen = CMSG_LEN(sizeof(int));  // the padding would hold a second one

  ssize_t bytes = 0;
  while ((bytes = ::recvmsg(socket, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT)) < 0) {
    if (errno == EAGAIN) return std::nullopt;
    if (errno != EINTR) base::throw_errno("recvmsg");
  }
  Message message;
  message.fd = descriptor_in(packet);
  if (bytes == 0) throw Error("the connection was closed");
  if ((packet.msg_flags & MSG_CTRUNC) != 0 && !message.fd) {
    throw NoDescriptorLeft(
        "this process can't take in a descriptor of another rank: " + std::generic_category().message(EMFILE) +
        "\ntry:   a higher limit of open files, `ulimit -n`");
  }
  const bool is_whole = static_cast<std::size_t>(bytes) == sizeof(header) && (packet.msg_flags & MSG_TRUNC) == 0;
  if (!is_whole || header.magic != kMagic) throw Error("a foreign message came");
  message.kind = header.kind;
  message.rank = header.rank;
  message.pid = header.pid;
  return message;
}

void poll_until(std::span<pollfd> polled, const base::Deadline& deadline) {
  const int timeout_ms = deadline.poll_timeout_ms(std::chrono::steady_clock::now());
  std::vector<pollfd> with_cut;
  std::span<pollfd> all = polled;
  if (const base::Cut* cut = deadline.cut()) {
    with_cut.assign(polled.begin(), polled.end());
    with_cut.push_back({cut->descriptor(), POLLIN, 0});
    all = with_cut;
  }
  if (::poll(all.data(), all.size(), timeout_ms) < 0) {
    if (errno != EINTR) {
      throw Error("the system refuses to watch " + std::to_string(all.size()) +
                  " descriptors: " + std::generic_category().message(errno) +
                  "\ntry:   a limit of open files above that number, `ulimit -n`");
    }
    for (pollfd& each : all) each.revents = 0;  // they are undefined after an error
  }
  if (deadline.cut() == nullptr) return;
  deadline.cut()->throw_if_cut();
  std::copy(with_cut.begin(), with_cut.end() - 1, polled.begin());
}

base::UniqueFd own_end() {
  base::UniqueFd end = base::open_pidfd(::getpid());
  if (!end) end.reset(::fcntl(base::process_wide<OwnPipe>().output.get(), F_DUPFD_CLOEXEC, 0));
  if (!end) base::throw_errno("a descriptor that tells of this process's end");
  return end;
}

}  // namespace ddp::core
