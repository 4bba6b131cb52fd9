#include "worker_runtime/backends/cpu/pairs/peer_links.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <span>

#include "base/unique_fd.hpp"
#include "tests/unit/worker_runtime/soon.hpp"
#include "worker_runtime/core/sockets/local_socket.hpp"

namespace ddp::cpu_backend {
namespace {

using test::soon;

// Rank 0, and the connections of rank 1 to it.
class ClosedLinks : public ::testing::Test {
 protected:
  static PeerLinks make_links(int rank) {
    return PeerLinks(rank, 2, {.own_address = "127.0.0.1", .store_address = "127.0.0.1"}, "group",
                     [] { return false; });
  }

  // As rank 1 makes it.
  bool connect() {
    peer_.learn(0, links_.announcement());
    auto deadline = soon();
    return peer_.connect(0, deadline);
  }

  // Without a RankHello.
  base::UniqueFd connect_silently() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(links_.announcement()[2]));
    base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return socket;
  }

  PeerLinks links_ = make_links(0), peer_ = make_links(1);
};

bool has_ended(int socket) {
  auto deadline = soon();
  std::byte byte{};
  try {
    return core::receive_all(socket, {&byte, 1}, deadline) && false;
  } catch (const core::ConnectionLost&) {
    return true;
  }
}

TEST_F(ClosedLinks, APeerThatWasNotAcceptedYetGetsTheFarewell) {
  ASSERT_TRUE(connect());
  links_.close(Presence::aborted);
  links_.stop_accepting();
  peer_.await_farewell(0);
  EXPECT_EQ(peer_.link(0).presence(), Presence::aborted);
}

// A peer that waits for an answer would wait until its timeout.
TEST_F(ClosedLinks, AConnectionWhoseHelloHasNotComeEnds) {
  const base::UniqueFd accepted = connect_silently();
  links_.accept_pending();
  const base::UniqueFd waiting = connect_silently();
  links_.close(Presence::aborted);
  links_.stop_accepting();
  EXPECT_TRUE(has_ended(accepted.get()));
  EXPECT_TRUE(has_ended(waiting.get()));
}

TEST_F(ClosedLinks, AcceptNobodyMore) {
  links_.close(Presence::left);
  links_.stop_accepting();
  EXPECT_FALSE(connect());
}

}  // namespace
}  // namespace ddp::cpu_backend
