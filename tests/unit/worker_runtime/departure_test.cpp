#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/unique_fd.hpp"
#include "worker_runtime/agent_link/agent_link.hpp"

namespace ddp::agent_link {
namespace {

using worker_link::Departure;
using worker_link::LinkHello;

class DepartureOfAWorker : public ::testing::Test {
 protected:
  using Kind = Departure::Kind;

  DepartureOfAWorker() {
    int pair[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    agent_.reset(pair[0]);
    link_.emplace(base::UniqueFd(pair[1]));
    hellos();
  }

  // All hellos that the agent has not read yet.
  std::vector<LinkHello> hellos() {
    std::vector<LinkHello> out;
    char packet[worker_link::kPacketBytesMax];
    while (true) {
      const auto length = ::recv(agent_.get(), packet, sizeof packet, MSG_DONTWAIT);
      if (length <= 0) return out;
      const auto message = worker_link::parse_from_worker({packet, static_cast<std::size_t>(length)});
      if (message && std::holds_alternative<LinkHello>(*message)) out.push_back(std::get<LinkHello>(*message));
    }
  }
  void expect_told(const std::optional<Departure>& departure) {
    const auto told = hellos();
    ASSERT_EQ(told.size(), 1u);
    EXPECT_EQ(told.front().departure, departure);
  }

  base::UniqueFd agent_;
  std::optional<AgentLink> link_;
};

TEST_F(DepartureOfAWorker, IsTheFirstOfItsRound) {
  const Departure first{3, Kind::for_others, {1}, "rank 1 died"};
  link_->depart(first);
  expect_told(first);
  link_->depart({3, Kind::own_error, {}, ""});
  link_->depart({3, Kind::in_order, {}, ""});
  EXPECT_TRUE(hellos().empty());
  const Departure next{4, Kind::in_order, {}, ""};
  link_->depart(next);
  expect_told(next);
}

TEST_F(DepartureOfAWorker, GivesWayToAnErrorIfItIsInOrder) {
  link_->depart({3, Kind::in_order, {}, ""});
  hellos();
  const Departure error{3, Kind::own_error, {}, "an error"};
  link_->depart(error);
  expect_told(error);
}

TEST_F(DepartureOfAWorker, NamesNoMoreRanksThanAMessageHolds) {
  Departure departure{3, Kind::for_others, std::vector<int>(worker_link::kRanksMax + 1, 7), "many died"};
  link_->depart(departure);
  departure.ranks.pop_back();
  expect_told(departure);
}

TEST_F(DepartureOfAWorker, IsForgottenOnceTheProcessHasAGroupAgain) {
  link_->begin_round(3);
  EXPECT_TRUE(hellos().empty()) << "there was nothing to forget";
  link_->depart({3, Kind::own_error, {}, "an error"});
  hellos();
  EXPECT_FALSE(link_->begin_round(3));
  expect_told(std::nullopt);
  const Departure later{3, Kind::in_order, {}, ""};
  link_->depart(later);
  expect_told(later);
}

}  // namespace
}  // namespace ddp::agent_link
