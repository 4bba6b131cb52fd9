// Plays the agent of RankProcesses: the other end of each rank's socket, in the hands of the test.
//
// Threads: the test's main thread only.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/unique_fd.hpp"
#include "rendezvous/worker_link/message.hpp"
#include "tests/integration/rank_processes.hpp"

namespace ddp::testing {

constexpr std::uint32_t kRound = 3;  // that the ranks are in, for tests to which any number will do

inline std::string round_id(std::uint32_t round) { return "1763723112-9f3a17c2b4d8e6f0-" + std::to_string(round); }

class StandInAgent {
 public:
  // Made before the ranks are.
  explicit StandInAgent(int ranks) {
    for (int i = 0; i < ranks; ++i) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
        throw std::system_error(errno, std::generic_category(), "socketpair");
      own_.emplace_back(pair[0]);
      workers_.emplace_back(pair[1]);
    }
  }

  // In the rank's process: what a worker of this round finds.
  void adopt(int rank, std::uint32_t round) {
    struct stat status {};
    const int descriptor = workers_[at(rank)].get();
    if (::fstat(descriptor, &status) != 0) throw std::runtime_error("no socket");
    ::setenv(worker_link::kSocketVariable, (std::to_string(descriptor) + ":" + std::to_string(status.st_ino)).c_str(),
             1);
    ::setenv("DDPRUN_ROUND_ID", round_id(round).c_str(), 1);
    for (auto& socket : own_) socket.reset();
  }

  void tell(int rank, const worker_link::ToWorker& message) const {
    const auto packet = worker_link::encode(message);
    EXPECT_EQ(::send(own_[at(rank)].get(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
  }

  void tell_all(const worker_link::ToWorker& message) const {
    for (std::size_t i = 0; i < own_.size(); ++i) tell(static_cast<int>(i), message);
  }

  // The next of its messages that is a T; those before it are passed over.
  template <class T>
  T hear(int rank) const {
    pollfd polled{own_[at(rank)].get(), POLLIN, 0};
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience);
    while (::poll(&polled, 1, static_cast<int>(limit.count())) == 1) {
      const auto message = receive(rank, 0);
      if (!message) break;
      if (const auto* wanted = std::get_if<T>(&*message)) return *wanted;
    }
    throw std::runtime_error("rank " + std::to_string(rank) + " does not say it");
  }

  // How many of the messages that it has sent and nobody has heard yet are a T; of a rank that has ended.
  template <class T>
  int count_rest(int rank) const {
    int times = 0;
    while (auto message = receive(rank, MSG_DONTWAIT)) times += std::holds_alternative<T>(*message) ? 1 : 0;
    return times;
  }

  void hang_up(int rank) const { ::shutdown(own_[at(rank)].get(), SHUT_RDWR); }  // forked processes hold it open

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  // Empty where there is none.
  std::optional<worker_link::FromWorker> receive(int rank, int flags) const {
    char packet[worker_link::kPacketBytesMax];
    const auto length = ::recv(own_[at(rank)].get(), packet, sizeof packet, flags);
    if (length <= 0) return {};
    auto message = worker_link::parse_from_worker({packet, static_cast<std::size_t>(length)});
    if (!message) throw std::runtime_error("rank " + std::to_string(rank) + " says what is no message");
    return message;
  }

  std::vector<base::UniqueFd> own_, workers_;
};

}  // namespace ddp::testing
