#include "worker_runtime/backends/cpu/communication_queue.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ddp/error.hpp"
#include "tests/no_threads.hpp"

namespace ddp::cpu_backend {
namespace {

class Queue : public ::testing::Test {
 protected:
  ~Queue() override { queue_->stop(); }

  std::shared_ptr<CommunicationQueue> queue_ = std::make_shared<CommunicationQueue>();
};

void fail() { throw Error("broken"); }

TEST_F(Queue, ABlockingCallOnAnIdleQueueRunsOnTheCallersThread) {
  std::thread::id ran_on;
  queue_->run([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  queue_->submit([] {})->wait();
  queue_->run([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST_F(Queue, WorkCompletesThoughNobodyWaits) {
  for (int i = 0; i < 100; ++i) {  // the first starts the thread, the others wake it
    const auto work = queue_->submit([] {});
    while (!work->is_completed()) std::this_thread::yield();
  }
}

TEST_F(Queue, WhoWaitsForARunningJobIsWoken) {
  for (int i = 0; i < 200; ++i) {
    std::atomic<bool> begun{false};
    std::atomic<bool> may_end{false};
    const auto work = queue_->submit([&] {
      begun = true;
      while (!may_end) std::this_thread::yield();
    });
    while (!begun) std::this_thread::yield();  // on the communication thread: nobody has waited yet
    std::thread other([&] { may_end = true; });
    if (i % 2 == 0) {
      work->wait();
    } else {
      queue_->run([] {});
    }
    EXPECT_TRUE(work->is_completed());
    other.join();
  }
}

TEST_F(Queue, JobsRunOneAtATimeInOrderWhoeverRunsThem) {
  std::vector<int> order;  // plain memory: the queue alone keeps jobs apart
  std::vector<std::shared_ptr<Work::State>> works;
  for (int i = 0; i < 3000; ++i) {
    works.push_back(queue_->submit([&order, i] { order.push_back(i); }));
    if (i % 7 == 0) works.back()->wait();
    if (i % 11 == 0) queue_->run([&] { EXPECT_EQ(order.back(), i); });
  }
  works.back()->wait();
  ASSERT_EQ(order.size(), 3000u);
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_F(Queue, SeveralThreadsMayWait) {
  std::atomic<int> done{0};
  std::vector<std::shared_ptr<Work::State>> works;
  for (int i = 0; i < 500; ++i) works.push_back(queue_->submit([&] { ++done; }));
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = thread; i < works.size(); i += 2) works[i]->wait();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(done, 500);
}

TEST_F(Queue, AnErrorBelongsToItsWork) {
  const auto work = queue_->submit(fail);
  EXPECT_THROW(work->wait(), Error);
  EXPECT_THROW(work->wait(), Error);
  EXPECT_NO_THROW(queue_->throw_unclaimed_error());
  EXPECT_THROW(queue_->run(fail), Error);
  EXPECT_NO_THROW(queue_->throw_unclaimed_error());
}

TEST_F(Queue, AnErrorNobodyWaitedForIsThrownOnceByTheNextCall) {
  const auto work = queue_->submit(fail);
  while (!work->is_completed()) std::this_thread::yield();
  EXPECT_THROW(queue_->run([] { ADD_FAILURE() << "this was to wait"; }), Error);
  EXPECT_NO_THROW(queue_->throw_unclaimed_error());
  EXPECT_NO_THROW(queue_->run([] {}));
}

// A job that runs on the communication thread until the test lets it end.
class HeldUp {
 public:
  explicit HeldUp(CommunicationQueue& queue, bool fails = false) {
    work_ = queue.submit([this, fails] {
      begun_ = true;
      while (!may_end_) std::this_thread::yield();
      if (fails) fail();
    });
    while (!begun_) std::this_thread::yield();
  }
  ~HeldUp() { end(); }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;

  Work::State& work() { return *work_; }
  void end() {
    may_end_ = true;
    while (!work_->is_completed()) std::this_thread::yield();
  }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> may_end_{false};
  std::shared_ptr<Work::State> work_;
};

std::string message_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  }
  return "";
}

TEST_F(Queue, AWorkTellsHowLongItsJobTook) {
  using Clock = std::chrono::steady_clock;
  HeldUp first(*queue_);
  Clock::time_point begin, end;
  const auto before = Clock::now();
  const auto second = queue_->submit([&] {
    begin = Clock::now();
    while (Clock::now() == begin) continue;
    end = Clock::now();
  });
  EXPECT_FALSE(first.work().duration());
  EXPECT_FALSE(second->duration());
  while (Clock::now() < before + std::chrono::milliseconds(1)) std::this_thread::yield();
  first.end();
  second->wait();
  EXPECT_GT(first.work().duration().value(), std::chrono::milliseconds(1));
  EXPECT_GE(second->duration().value(), end - begin);
  EXPECT_LE(second->duration().value(), Clock::now() - before - std::chrono::milliseconds(1)) << "with its wait";
  const auto failed = queue_->submit(fail);
  EXPECT_THROW(failed->wait(), Error);
  EXPECT_FALSE(failed->duration());
}

TEST_F(Queue, AWaitWithALimitLeavesTheJobToGoOn) {
  HeldUp first(*queue_);
  bool is_done = false;
  const auto second = queue_->submit([&] { is_done = true; });
  EXPECT_FALSE(first.work().wait_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(2)));
  EXPECT_FALSE(second->wait_until({}));
  first.end();
  EXPECT_TRUE(second->wait_until(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
  EXPECT_TRUE(is_done);
  EXPECT_TRUE(first.work().wait_until({})) << "it had completed";
}

TEST_F(Queue, AWaitWithALimitThrowsWhatTheJobThrew) {
  HeldUp first(*queue_, true);
  EXPECT_FALSE(first.work().wait_until({}));
  first.end();
  EXPECT_THROW(first.work().wait_until({}), Error);
  EXPECT_NO_THROW(queue_->throw_unclaimed_error()) << "somebody was told";
}

TEST_F(Queue, CallbacksAreCalledOnceWhenTheJobHasEnded) {
  std::atomic<int> calls{0};
  HeldUp job(*queue_);
  for (int i = 0; i < 3; ++i) {
    job.work().on_completed([&](const std::exception_ptr& error) {
      EXPECT_EQ(error, nullptr);
      EXPECT_TRUE(job.work().is_completed());
      ++calls;
    });
  }
  EXPECT_EQ(calls, 0);
  job.end();
  queue_->run([] {});
  while (calls < 3) std::this_thread::yield();
  job.work().on_completed([&](const std::exception_ptr&) { ++calls; });
  EXPECT_EQ(calls, 4) << "at once, where it has ended";
  queue_->stop();
  EXPECT_EQ(calls, 4);
  queue_ = std::make_shared<CommunicationQueue>();
}

TEST_F(Queue, ACallbackIsToldOfTheErrorWhichThenIsNobodyElsesNews) {
  std::string told;
  {
    HeldUp job(*queue_, true);
    job.work().on_completed([&](const std::exception_ptr& error) { told = message_of(error); });
    job.end();
    EXPECT_NO_THROW(queue_->run([] {}));
    queue_->stop();
  }
  EXPECT_EQ(told, "broken");
  queue_ = std::make_shared<CommunicationQueue>();
  HeldUp job(*queue_, true);
  job.end();
  job.work().on_completed([&](const std::exception_ptr& error) { told += message_of(error); });
  EXPECT_EQ(told, "brokenbroken");
  EXPECT_NO_THROW(queue_->throw_unclaimed_error());
}

TEST_F(Queue, WhatACallbackHoldsMayCallTheQueueAsItEnds) {
  std::atomic<bool> has_called{false};
  {
    HeldUp job(*queue_);
    const std::shared_ptr<void> at_its_end(nullptr, [&](void*) {
      queue_->submit([] {});
      has_called = true;
    });
    job.work().on_completed([held = at_its_end](const std::exception_ptr&) {});
  }
  while (!has_called) std::this_thread::yield();
}

TEST_F(Queue, ACallbackOfWorkThatHasEndedTakesNobodysTurn) {
  const auto work = queue_->submit([] {});
  work->wait();
  const CommunicationQueue::Turn turn(*queue_);
  ASSERT_TRUE(static_cast<bool>(turn));
  work->on_completed([](const std::exception_ptr&) {});
  EXPECT_FALSE(static_cast<bool>(CommunicationQueue::Turn(*queue_)));
}

TEST_F(Queue, ItsLengthIsBounded) {
  std::atomic<bool> begun{false};
  std::atomic<bool> may_end{false};
  queue_->submit([&] {
    begun = true;
    while (!may_end) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  std::atomic<std::size_t> done{0};
  for (std::size_t i = 0; i < CommunicationQueue::kTasksMax; ++i) queue_->submit([&] { ++done; });
  EXPECT_THROW(queue_->submit([&] { ++done; }), Error);
  may_end = true;
  queue_->run([] {});
  EXPECT_EQ(done, CommunicationQueue::kTasksMax);
  EXPECT_NO_THROW(queue_->submit([] {}));
}

TEST_F(Queue, WithoutAThreadNothingIsEnqueued) {
  std::optional<ddp::testing::NoThreads> no_threads(std::in_place);
  EXPECT_THROW(queue_->submit([] { ADD_FAILURE() << "this was refused"; }), Error);
  no_threads.reset();
  EXPECT_NO_THROW(queue_->submit([] {})->wait());
}

TEST_F(Queue, StopRunsWhatIsLeft) {
  std::atomic<int> done{0};
  std::vector<std::shared_ptr<Work::State>> works;
  for (int i = 0; i < 100; ++i) works.push_back(queue_->submit([&] { ++done; }));
  queue_->stop();
  EXPECT_EQ(done, 100);
  queue_.reset();
  works.back()->wait();
  queue_ = std::make_shared<CommunicationQueue>();
}

}  // namespace
}  // namespace ddp::cpu_backend
