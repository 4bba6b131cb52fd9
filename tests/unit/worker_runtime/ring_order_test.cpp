#include "worker_runtime/backends/cpu/hosts/ring_order.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace {

using ddp::DataType;
using ddp::cpu_backend::RingOrder;

class RingOrders : public ::testing::TestWithParam<int> {
 protected:
  RingOrder of(int host) { return {GetParam(), host, std::as_writable_bytes(std::span(elements_)), DataType::float32}; }

 private:
  std::vector<float> elements_ = std::vector<float>(1000);
};

TEST_P(RingOrders, NextHostReceivesInEachTurnWhatThisHostSends) {
  for (int host = 0; host < GetParam(); ++host) {
    const RingOrder order = of(host), next = of(order.next());
    EXPECT_EQ(next.before(), host);
    for (std::size_t turn = 0; turn < order.turns(); ++turn) {
      EXPECT_EQ(order.sent_in(turn).data(), next.received_in(turn).data());
      EXPECT_EQ(order.sent_in(turn).size(), next.received_in(turn).size());
    }
  }
}

TEST_P(RingOrders, HostSendsOnWhatItReceivedInTheTurnBefore) {
  const RingOrder order = of(0);
  for (std::size_t turn = 1; turn < order.turns(); ++turn) {
    EXPECT_EQ(order.sent_in(turn).data(), order.received_in(turn - 1).data());
  }
}

TEST_P(RingOrders, EachHostCompletesOneSumInTheLastTurnWithSums) {
  const auto hosts = static_cast<std::size_t>(GetParam());
  const RingOrder order = of(GetParam() - 1);
  ASSERT_EQ(order.turns(), 2 * (hosts - 1));
  for (std::size_t turn = 0; turn < order.turns(); ++turn) {
    EXPECT_EQ(order.is_sum(turn), turn < hosts - 1);
    EXPECT_EQ(order.completes_sum(turn), turn == hosts - 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, RingOrders, ::testing::Values(2, 3, 5));

TEST(RingOrder, OfTwoHostsEverySumBeginsAtHost0) {
  const auto first = [](int hosts, int own) {
    return RingOrder(hosts, own, {}, DataType::float32).own_elements_first();
  };
  EXPECT_TRUE(first(2, 0));
  EXPECT_FALSE(first(2, 1));
  EXPECT_FALSE(first(3, 0));
}

}  // namespace
