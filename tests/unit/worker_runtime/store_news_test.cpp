#include "worker_runtime/core/failure/store_news.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "rendezvous/store/store_thread.hpp"

namespace ddp::core {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{100};
constexpr milliseconds kAtOnce{0};

// A store, and the news of processes that have met there: each StoreNews stands for a process.
class StoreNewsOfProcesses : public ::testing::Test {
 protected:
  std::unique_ptr<StoreNews> process() {
    return std::make_unique<StoreNews>(StoreNews::Place{"127.0.0.1", store_->port(), "ddp/round_1/"});
  }

  bool tell(StoreNews& process, const std::string& news) {
    return process.ask(kPatience, cut_,
                       [&](store::Client& store, store::TimePoint deadline) { process.tell(store, news, deadline); });
  }

  std::optional<store::StoreThread> store_{store::StoreThreadOptions{.addresses = {"127.0.0.1"}}};
  base::Cut cut_;
};

TEST_F(StoreNewsOfProcesses, ReachAllIncludingThoseThatListenLater) {
  const auto teller = process();
  const auto listener = process();
  std::thread waiting([&] { EXPECT_TRUE(listener->wait_for("group_1/report", kPatience, cut_)); });
  ASSERT_TRUE(tell(*teller, "group_0/report"));
  ASSERT_TRUE(tell(*teller, "group_1/report"));
  waiting.join();
  EXPECT_TRUE(listener->wait_for("group_0/report", kAtOnce, cut_)) << "it came before";
  EXPECT_TRUE(teller->wait_for("group_0/report", kPatience, cut_)) << "own news are news too";
  EXPECT_TRUE(process()->wait_for("group_1/report", kPatience, cut_));
  EXPECT_FALSE(listener->wait_for("group_2/report", kAtOnce, cut_));
}

TEST_F(StoreNewsOfProcesses, AreToldOnceThoughAllTellThem) {
  const auto first = process();
  const auto second = process();
  ASSERT_TRUE(tell(*first, "report"));
  ASSERT_TRUE(second->wait_for("report", kPatience, cut_));
  ASSERT_TRUE(tell(*second, "report"));
  ASSERT_TRUE(tell(*second, "all"));
  ASSERT_TRUE(first->wait_for("all", kPatience, cut_));
  ASSERT_TRUE(first->ask(kPatience, cut_, [](store::Client& store, store::TimePoint deadline) {
    EXPECT_EQ(store.get("ddp/round_1/news/1", deadline), "all");
  }));
}

TEST_F(StoreNewsOfProcesses, AskWhileTheyWaitAndGoOnWaiting) {
  const auto teller = process();
  const auto listener = process();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(listener->ask(
        kPatience, cut_, [](store::Client& store, store::TimePoint deadline) { store.add("asked", 1, deadline); }));
  }
  ASSERT_TRUE(tell(*teller, "report"));
  EXPECT_TRUE(listener->wait_for("report", kPatience, cut_));
}

TEST_F(StoreNewsOfProcesses, ConnectAnewAfterAnErrorOfACall) {
  const auto listener = process();
  EXPECT_FALSE(listener->ask(kPatience, cut_, [](store::Client& store, store::TimePoint) {
    store.get("never set", std::chrono::steady_clock::now() + milliseconds(1));
  }));
  ASSERT_TRUE(tell(*listener, "report"));
  EXPECT_TRUE(listener->wait_for("report", kPatience, cut_));
}

TEST_F(StoreNewsOfProcesses, AWaitEndsByItsCut) {
  const auto listener = process();
  base::Cut cut;
  std::thread waiting([&] { EXPECT_FALSE(listener->wait_for("report", kPatience, cut)); });
  cut.cut("enough");
  waiting.join();
}

TEST_F(StoreNewsOfProcesses, WithoutAStoreAnAnswerComesWithinTheLimit) {
  const auto listener = process();
  ASSERT_TRUE(tell(*listener, "report"));
  store_.reset();
  EXPECT_FALSE(listener->ask(milliseconds(200), cut_,
                             [](store::Client& store, store::TimePoint deadline) { store.add("asked", 1, deadline); }));
}

TEST_F(StoreNewsOfProcesses, ServeAllGroupsOfAProcessByOneObject) {
  const StoreNews::Place place{"127.0.0.1", store_->port(), "ddp/round_1/"};
  auto of_group = StoreNews::at(place);
  EXPECT_EQ(StoreNews::at(place), of_group);
  EXPECT_NE(StoreNews::at({"127.0.0.1", store_->port(), "ddp/round_2/"}), of_group);
  const std::weak_ptr<StoreNews> gone = std::exchange(of_group, nullptr);
  EXPECT_TRUE(gone.expired()) << "the last group has ended";
}

}  // namespace
}  // namespace ddp::core
