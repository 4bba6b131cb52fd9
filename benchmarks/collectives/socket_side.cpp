#include "benchmarks/collectives/socket_side.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "benchmarks/common/sides/collective_side.hpp"
#include "benchmarks/common/sides/spin_barrier.hpp"

namespace ddp::benchmarks {

namespace {

constexpr std::size_t kWholeBytesMax = 64 << 10;
constexpr int kPauses = 20;  // between two looks, as in libddp

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

base::UniqueFd tcp_socket() {
  base::UniqueFd out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!out) fail("socket");
  return out;
}

// `fifo` carries the port of rank 0 to rank 1.
base::UniqueFd connected(int rank, const char* fifo) {
  base::UniqueFd out = tcp_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const base::UniqueFd pipe(::open(fifo, (rank == 0 ? O_WRONLY : O_RDONLY) | O_CLOEXEC));
  if (!pipe) fail("the named pipe");
  if (rank == 0) {
    const auto listener = std::move(out);
    if (::bind(listener.get(), name, length) != 0 || ::listen(listener.get(), 1) != 0) fail("listen");
    if (::getsockname(listener.get(), name, &length) != 0) fail("getsockname");
    if (::write(pipe.get(), &address.sin_port, sizeof address.sin_port) != sizeof address.sin_port) fail("write");
    out.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!out) fail("accept");
  } else {
    if (::read(pipe.get(), &address.sin_port, sizeof address.sin_port) != sizeof address.sin_port) fail("read");
    if (::connect(out.get(), name, length) != 0) fail("connect");
  }
  const int on = 1;
  ::setsockopt(out.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return out;
}

// How many bytes went or came; none where that can't be at once.
std::size_t moved(ssize_t result) {
  if (result > 0) return static_cast<std::size_t>(result);
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  throw std::runtime_error("the other process has closed the connection");
}

class SocketSide : public PlainMemorySide {
 public:
  SocketSide(int rank, base::UniqueFd socket) : PlainMemorySide(rank, 2), socket_(std::move(socket)) {}

 private:
  void all_reduce(float* data, std::size_t count) override {
    if (count * sizeof(float) <= kWholeBytesMax) return add(data, data, count, count);
    const std::size_t half = count / 2;
    float* const own = rank() == 0 ? data : data + half;
    float* const other = rank() == 0 ? data + half : data;
    const std::size_t own_count = rank() == 0 ? half : count - half;
    add(other, own, count - own_count, own_count);
    exchange(own, own_count, other, count - own_count);
  }

  // Sends `out`, and adds what comes to `to`.
  void add(const float* out, float* to, std::size_t out_count, std::size_t count) {
    received_.resize(std::max(received_.size(), count));
    exchange(out, out_count, received_.data(), count);
    for (std::size_t i = 0; i < count; ++i) to[i] += received_[i];
  }

  void exchange(const float* out, std::size_t out_count, float* in, std::size_t in_count) {
    const auto* from = reinterpret_cast<const char*>(out);
    auto* to = reinterpret_cast<char*>(in);
    std::size_t to_send = out_count * sizeof(float), to_receive = in_count * sizeof(float);
    while (to_send > 0 || to_receive > 0) {
      const std::size_t sent =
          to_send > 0 ? moved(::send(socket_.get(), from, to_send, MSG_NOSIGNAL | MSG_DONTWAIT)) : 0;
      const std::size_t came = to_receive > 0 ? moved(::recv(socket_.get(), to, to_receive, MSG_DONTWAIT)) : 0;
      from += sent, to_send -= sent;
      to += came, to_receive -= came;
      for (int i = 0; sent + came == 0 && i < kPauses; ++i) relax();
    }
  }

  void broadcast(float*, std::size_t) override { refuse(); }
  void all_gather(float*, std::size_t) override { refuse(); }
  void reduce_scatter(const float*, float*, std::size_t) override { refuse(); }
  void barrier() override { refuse(); }
  [[noreturn]] static void refuse() { throw std::invalid_argument("bare sockets have all_reduce alone"); }

  base::UniqueFd socket_;
  std::vector<float> received_;
};

}  // namespace

int be_socket_rank(char** arguments) {
  const int rank = std::atoi(arguments[1]);
  RankLink link(arguments[0], rank);
  SocketSide side(rank, connected(rank, arguments[2]));
  serve(side, link, rank, 2);
  return 0;
}

}  // namespace ddp::benchmarks
