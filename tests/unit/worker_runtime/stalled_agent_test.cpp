#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string_view>
#include <variant>

#include "base/unique_fd.hpp"
#include "worker_runtime/agent_link/agent_link.hpp"
#include "tests/unit/worker_runtime/soon.hpp"

namespace ddp::agent_link {
namespace {

using worker_link::FromWorker;
using worker_link::LinkProgress;
using worker_link::LinkStopping;

// Far more than a socket holds, whatever its size is by default.
constexpr std::uint32_t kRounds = 20'000;
using test::kPatience;

std::optional<FromWorker> unread_message(int socket) {
  char packet[worker_link::kPacketBytesMax];
  const auto length = ::recv(socket, packet, sizeof packet, MSG_DONTWAIT);
  if (length <= 0) return {};
  return worker_link::parse_from_worker({packet, static_cast<std::size_t>(length)});
}

TEST(AgentThatDoesNotRead, HoldsNoWorkerUpAndLosesOnlyProgress) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
  base::UniqueFd agent(pair[0]);
  AgentLink link{base::UniqueFd(pair[1])};
  auto worker = std::async(std::launch::async, [&link] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      link.begin_round(round);
      link.tell({true, round, {}});  // each is news, as it is of another round
    }
    for (std::uint32_t round = 0; round < 10; ++round) link.send(LinkStopping{round});
  });
  const bool is_held_up = worker.wait_for(kPatience) != std::future_status::ready;
  EXPECT_FALSE(is_held_up);
  std::uint32_t progress = 0, stops = 0;
  do {
    while (const auto message = unread_message(agent.get())) {
      progress += std::holds_alternative<LinkProgress>(*message) ? 1 : 0;
      stops += std::holds_alternative<LinkStopping>(*message) ? 1 : 0;
    }
  } while (is_held_up && worker.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready);
  EXPECT_GT(progress, 0U);
  EXPECT_LT(progress, kRounds) << "the socket was full";
  EXPECT_EQ(stops, 10U);
  link.begin_round(kRounds);
  link.tell({true, 1, {}});
  const auto last = unread_message(agent.get());
  ASSERT_TRUE(last && std::holds_alternative<LinkProgress>(*last)) << "once it reads it hears all that is known";
  EXPECT_EQ(std::get<LinkProgress>(*last).round, kRounds);
}

}  // namespace
}  // namespace ddp::agent_link
