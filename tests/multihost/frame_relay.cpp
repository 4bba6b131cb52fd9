#include "tests/multihost/frame_relay.hpp"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <utility>

#include "base/throw_errno.hpp"

namespace ddp::test {

namespace {

constexpr std::size_t kHeldMax = 8192;          // frames; one more is lost
constexpr std::size_t kFrameBytesMax = 65'536;  // of any interface
constexpr int kBurst = 64;                      // frames that one direction moves before the other has its turn
constexpr int kReceiveBytes = 16 << 20;         // what the kernel keeps while the relay has no turn

template <class Value>
void set_option(const base::UniqueFd& socket, int level, int option, const Value& value) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof value) != 0)
    base::throw_errno("setsockopt of a packet socket");
}

// Takes every frame that comes in by the interface, whomever it is for.
base::UniqueFd open_end(const std::string& interface) {
  base::UniqueFd end(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!end) base::throw_errno("packet socket");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(::if_nametoindex(interface.c_str()));
  if (address.sll_ifindex == 0) base::throw_errno(interface);
  packet_mreq promiscuous{};
  promiscuous.mr_ifindex = address.sll_ifindex;
  promiscuous.mr_type = PACKET_MR_PROMISC;
  set_option(end, SOL_PACKET, PACKET_ADD_MEMBERSHIP, promiscuous);
  set_option(end, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
  set_option(end, SOL_SOCKET, SO_RCVBUFFORCE, kReceiveBytes);
  if (::bind(end.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    base::throw_errno("bind " + interface);
  return end;
}

void send(const base::UniqueFd& end, const std::vector<char>& frame) {
  [[maybe_unused]] const auto sent = ::send(end.get(), frame.data(), frame.size(), 0);
}

timespec as_timespec(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return {static_cast<std::time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
}

}  // namespace

bool can_relay_frames() { return static_cast<bool>(base::UniqueFd(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0))); }

void finish_frames_in_software(const std::string& interface) {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) base::throw_errno("socket");
  for (const std::uint32_t feature : {ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO, ETHTOOL_STXCSUM}) {
    ethtool_value off{feature, 0};
    ifreq request{};
    interface.copy(request.ifr_name, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&off);
    if (::ioctl(socket.get(), SIOCETHTOOL, &request) != 0) base::throw_errno("offloads of " + interface);
  }
}

FrameRelay::FrameRelay(const Options& options)
    : disturbance_(options.disturbance),
      random_(options.seed),
      is_lost_(options.disturbance.loss),
      from_(open_end(options.from)),
      to_(open_end(options.to)),
      buffer_(kFrameBytesMax) {}

void FrameRelay::run() {
  ::prctl(PR_SET_TIMERSLACK, 1);  // a wait ends when it is over and not 50 us later
  for (;;) {
    wait();
    take_in();
    send_due();
    pass_back();
  }
}

// For a frame from either end, or until the first of those held is due.
void FrameRelay::wait() const {
  std::array<pollfd, 2> polled{pollfd{from_.get(), POLLIN, 0}, pollfd{to_.get(), POLLIN, 0}};
  timespec left{};
  if (!held_.empty()) left = as_timespec(std::max(held_.front().due - Clock::now(), Clock::duration::zero()));
  ::ppoll(polled.data(), polled.size(), held_.empty() ? nullptr : &left, nullptr);
}

void FrameRelay::take_in() {
  for (int i = 0; i < kBurst; ++i) {
    auto frame = receive(from_);
    if (!frame) return;
    if (is_lost_(random_) || held_.size() == kHeldMax) continue;
    held_.push_back({Clock::now() + disturbance_.delay, std::move(*frame)});
  }
}

void FrameRelay::send_due() {
  while (!held_.empty() && held_.front().due <= Clock::now()) {
    send(to_, held_.front().frame);
    held_.pop_front();
  }
}

void FrameRelay::pass_back() {
  for (int i = 0; i < kBurst; ++i) {
    const auto frame = receive(to_);
    if (!frame) return;
    send(from_, *frame);
  }
}

// Nothing where none is there, and once after the interface went down.
std::optional<std::vector<char>> FrameRelay::receive(const base::UniqueFd& end) {
  const ssize_t count = ::recv(end.get(), buffer_.data(), buffer_.size(), 0);
  if (count <= 0) return std::nullopt;
  return std::vector<char>(buffer_.begin(), buffer_.begin() + count);
}

}  // namespace ddp::test
