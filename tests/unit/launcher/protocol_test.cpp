#include "launcher/guardian/protocol.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <cstddef>

#include "ddp/error.hpp"

namespace ddp::launcher::guardian {
namespace {

class Protocol : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    left.reset(pair[0]);
    right.reset(pair[1]);
  }
  base::UniqueFd left, right;
  bool closed = false;
};

TEST_F(Protocol, CarriesARequestWithItsDescriptors) {
  const base::UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const int descriptors[] = {null.get(), null.get(), null.get()};
  ASSERT_EQ(send_request(left.get(), packet_of({RequestKind::spawn, 5, 0, {"A=1", "EMPTY=", "B=x y"}}), descriptors),
            Sent::done);
  const auto got = receive_request(right.get(), closed);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->content.kind, RequestKind::spawn);
  EXPECT_EQ(got->content.local_rank, 5);
  EXPECT_THAT(got->content.variables, ::testing::ElementsAre("A=1", "EMPTY=", "B=x y"));
  ASSERT_EQ(got->descriptors.size(), 3u);
  struct stat want {
  }, have{};
  ::fstat(null.get(), &want);
  for (const auto& fd : got->descriptors) {
    ASSERT_EQ(::fstat(fd.get(), &have), 0);
    EXPECT_EQ(have.st_rdev, want.st_rdev);
    EXPECT_TRUE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  }
}

TEST_F(Protocol, CarriesNoVariableWithANulByte) {
  const std::string two("MASTER_ADDR=127.0.0.1\0LD_PRELOAD=/tmp/evil.so", 45);
  EXPECT_THROW(static_cast<void>(packet_of({RequestKind::spawn, 0, 0, {two}})), Error);
}

TEST_F(Protocol, TakesAVariableApartByItsLengthOnly) {
  struct {
    RequestKind kind = RequestKind::spawn;
    int local_rank = 0, signal_number = 0;
    std::uint32_t length = 7;
    char variable[7] = {'A', '=', '1', '\0', 'B', '=', '2'};
    char another[4] = {9, 0, 0, 0};  // it says more than there is
    char end = 'C';
  } packet;
  ASSERT_EQ(::send(left.get(), &packet, offsetof(decltype(packet), end) + 1, 0), 28);
  const auto got = receive_request(right.get(), closed);
  ASSERT_TRUE(got);
  EXPECT_THAT(got->content.variables, ::testing::ElementsAre(std::string("A=1\0B=2", 7), ::testing::_));
  EXPECT_LE(got->content.variables.back().size(), 2u);
}

TEST_F(Protocol, CarriesReportsInOrder) {
  const Report reports[] = {{ReportKind::ended, 1, 100, 9}, {ReportKind::tree_empty, 0, 0, 0}};
  ASSERT_TRUE(send_reports(left.get(), reports, {}));
  const auto got = receive_reports(right.get(), closed);
  ASSERT_TRUE(got);
  ASSERT_EQ(got->content.size(), 2u);
  EXPECT_EQ(got->content[0].kind, ReportKind::ended);
  EXPECT_EQ(got->content[0].local_rank, 1);
  EXPECT_EQ(got->content[0].pid, 100);
  EXPECT_EQ(got->content[0].value, 9);
  EXPECT_EQ(got->content[1].kind, ReportKind::tree_empty);
}

TEST_F(Protocol, TellsNothingWaitingFromClosed) {
  EXPECT_FALSE(receive_request(right.get(), closed));
  EXPECT_FALSE(closed);
  left.reset();
  EXPECT_FALSE(receive_request(right.get(), closed));
  EXPECT_TRUE(closed);
  EXPECT_EQ(send_request(right.get(), packet_of({RequestKind::kill_tree, 0, SIGKILL, {}}), {}), Sent::failed);
}

TEST_F(Protocol, RefusesWhatIsTooLong) {
  const auto packet = packet_of({RequestKind::spawn, 0, 0, {std::string(kPacketBytesMax, 'x')}});
  EXPECT_EQ(send_request(left.get(), packet, {}), Sent::failed);
}

TEST_F(Protocol, WaitsForNoRoom) {
  const auto packet = packet_of({RequestKind::kill_tree, 0, SIGKILL, {}});
  auto how = Sent::done;
  for (int i = 0; i < 1'000'000 && how == Sent::done; ++i) how = send_request(left.get(), packet, {});
  EXPECT_EQ(how, Sent::no_room);
}

}  // namespace
}  // namespace ddp::launcher::guardian
