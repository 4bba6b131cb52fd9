// What refused connections leave in the log and in /metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "tests/integration/job.hpp"
#include "tests/security/raw_http.hpp"

namespace ddp::test {
namespace {

using ::testing::HasSubstr;

// From many addresses, each of which would make a line of its own.
TEST(FloodOfRefusals, IsOneLineAMinuteAndIsCounted) {
  constexpr std::uint32_t kSources = 1'500;
  Job::Options options;
  options.program = "ddp-rendezvous";
  Job daemon({"--port=0", "--host=127.0.0.1"}, options);
  const auto port = static_cast<std::uint16_t>(daemon.number_after("membership listens on port "));
  for (std::uint32_t i = 0; i < kSources; ++i) {
    auto socket = store::RawSocket::unconnected();
    const auto source = store::loopback(0, 0x7f010001 + i);
    ASSERT_EQ(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&source), sizeof source), 0);
    socket.connect(port);
    socket.send("\x07");
    ASSERT_TRUE(socket.is_hung_up());
  }
  EXPECT_THAT(answer_to(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              HasSubstr("\nddp_warnings_total{reason=\"protocol that is not served\"} 1500\n"));
  daemon.kill(SIGTERM);
  daemon.wait();
  EXPECT_LT(std::count(daemon.err().begin(), daemon.err().end(), '\n'), 20) << daemon.err();
}

}  // namespace
}  // namespace ddp::test
