#include "base/file_thread.hpp"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <future>
#include <string>

namespace ddp::base {
namespace {

using namespace std::chrono_literals;

// A task that waits stands for a disk that does not answer.
class Tasks : public ::testing::Test {
 protected:
  bool post(FileThread& thread, const std::string& name, std::size_t bytes = 0) {
    return thread.post([] {}, [this, name] { done_ += name + " "; }, bytes);
  }

  bool post_stalled(FileThread& thread, std::size_t bytes = 0) {
    return thread.post([this] { disk_.get_future().wait(); }, [this] { done_ += "stalled "; }, bytes);
  }

  boost::asio::io_context io_{1};
  std::promise<void> disk_;
  std::string done_;
};

TEST_F(Tasks, BeyondTheBoundAreRefusedAndTheOthersStillRun) {
  FileThread thread(io_, {.end_limit = 60s, .tasks_max = 3});
  ASSERT_TRUE(post_stalled(thread));
  EXPECT_TRUE(post(thread, "a"));
  EXPECT_TRUE(post(thread, "b"));
  EXPECT_FALSE(post(thread, "c"));
  disk_.set_value();
  io_.run();  // returns when nothing is left, so a refused task leaves nothing
  EXPECT_EQ(done_, "stalled a b ");
  EXPECT_TRUE(post(thread, "d"));
  io_.restart();
  io_.run();
  EXPECT_EQ(done_, "stalled a b d ");
}

TEST_F(Tasks, BeyondTheBytesAreRefusedAndSmallOnesFit) {
  FileThread thread(io_, {.end_limit = 60s, .bytes_max = 100});
  ASSERT_TRUE(post_stalled(thread, 60));
  EXPECT_FALSE(post(thread, "large", 41));
  EXPECT_TRUE(post(thread, "small", 40));
  disk_.set_value();
  io_.run();
  EXPECT_EQ(done_, "stalled small ");
  EXPECT_TRUE(post(thread, "large", 100));
  io_.restart();
  io_.run();
  EXPECT_EQ(done_, "stalled small large ");
}

}  // namespace
}  // namespace ddp::base
