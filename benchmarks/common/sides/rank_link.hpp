// A rank's connection to the benchmark that started it, and the memory that the ranks of its side share.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "benchmarks/common/sides/spin_barrier.hpp"

namespace ddp::benchmarks {

// At the start of the shared file; what follows it is the side's own.
struct SharedHeader {
  SpinBarrierLines pace;   // where ranks meet between calls
  SpinBarrierLines floor;  // the barrier of the bare kernels
};
constexpr std::size_t kSharedHeaderBytes = 64 << 10;
static_assert(sizeof(SharedHeader) <= kSharedHeaderBytes);

// The address of an abstract socket.
inline std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() + 1 > sizeof address.sun_path) throw std::invalid_argument("too long for a socket: " + name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

constexpr std::chrono::seconds kEndLimit{10};  // for a rank to end by itself

class RankLink {
 public:
  RankLink(const std::string& socket_name, int rank) {
    const auto [address, length] = abstract_address(socket_name);
    socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0 || ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      throw std::system_error(errno, std::generic_category(), "no benchmark at " + socket_name);
    }
    say(std::to_string(rank));
    receive_shared_file();
    void* const header = ::mmap(nullptr, kSharedHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, shared_file_, 0);
    if (header == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of the shared header");
    header_ = static_cast<SharedHeader*>(header);
    end_with_benchmark();
  }
  ~RankLink() {
    if (header_ != nullptr) ::munmap(header_, kSharedHeaderBytes);
    if (shared_file_ >= 0) ::close(shared_file_);
    ::close(socket_);
  }
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  SharedHeader& header() const { return *header_; }
  int shared_file() const { return shared_file_; }

  // Nothing when the benchmark has no more to ask.
  std::optional<std::string> line() {
    for (;;) {
      if (const auto end = text_.find('\n'); end != std::string::npos) {
        const std::string found = text_.substr(0, end);
        text_.erase(0, end + 1);
        return found;
      }
      char buffer[4096];
      const auto got = ::read(socket_, buffer, sizeof buffer);
      if (got <= 0) return std::nullopt;
      text_.append(buffer, static_cast<std::size_t>(got));
    }
  }

  void say(const std::string& words) {
    const std::string text = words + '\n';
    for (std::size_t done = 0; done < text.size();) {
      const auto sent = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (sent <= 0) throw std::system_error(errno, std::generic_category(), "the benchmark is gone");
      done += static_cast<std::size_t>(sent);
    }
  }

 private:
  // A rank that spins in a call that never ends would do so for ever where the benchmark was killed. The thread has a
  // descriptor of its own and ends with the process.
  void end_with_benchmark() {
    std::thread([socket = ::fcntl(socket_, F_DUPFD_CLOEXEC, 0)] {
      pollfd hung_up{socket, POLLRDHUP, 0};
      while (::poll(&hung_up, 1, -1) < 0) {
      }
      std::this_thread::sleep_for(kEndLimit);
      ::_exit(1);
    }).detach();
  }

  void receive_shared_file() {
    char byte = 0;
    iovec data{&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_, &message, MSG_CMSG_CLOEXEC) != 1 || CMSG_FIRSTHDR(&message) == nullptr) {
      throw std::runtime_error("the benchmark sent no shared memory");
    }
    std::memcpy(&shared_file_, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof shared_file_);
  }

  int socket_ = -1, shared_file_ = -1;
  SharedHeader* header_ = nullptr;
  std::string text_;
};

}  // namespace ddp::benchmarks
