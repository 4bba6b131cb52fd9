#include "worker_runtime/core/sockets/local_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "tests/descriptor_limit.hpp"
#include "tests/unit/worker_runtime/soon.hpp"

namespace ddp::core {
namespace {

using Clock = std::chrono::steady_clock;
using ::testing::HasSubstr;

using test::soon;

class SocketPair : public ::testing::Test {
 protected:
  const std::string name_ = "ddp-local-socket-test-" + std::to_string(::getpid());
  base::UniqueFd listener_ = listen_locally(name_, 1);
  base::UniqueFd follower_ = connect_locally(name_);
  base::UniqueFd coordinator_ = accept_locally(listener_.get());
};

TEST_F(SocketPair, ADescriptorComesWithItsMessage) {
  auto deadline = soon();
  send_message(follower_.get(), {Message::Kind::hello, 3, 17, {}}, 0, deadline);
  const auto message = receive_message(coordinator_.get());
  ASSERT_TRUE(message);
  EXPECT_EQ(message->rank, 3);
  EXPECT_TRUE(message->fd);
}

TEST_F(SocketPair, ADescriptorThatFindsNoRoomIsAnError) {
  auto deadline = soon();
  send_message(follower_.get(), {Message::Kind::hello, 3, 17, {}}, 0, deadline);
  const testing::DescriptorLimit limit(0);
  try {
    receive_message(coordinator_.get());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const NoDescriptorLeft& error) {
    EXPECT_THAT(error.what(), HasSubstr("Too many open files"));
  }
}

TEST(PollUntil, SaysThatTheLimitOfOpenFilesIsInTheWay) {
  const testing::DescriptorLimit limit(0);
  std::vector<pollfd> polled(10'000, pollfd{-1, POLLIN, 0});
  EXPECT_THROW(poll_until(polled, soon()), Error);
}

}  // namespace
}  // namespace ddp::core
