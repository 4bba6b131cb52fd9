// Messages between two ranks of a host, both of which are this process.
#include "worker_runtime/backends/cpu/pairs/point_to_point.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "tests/unit/worker_runtime/soon.hpp"
#include "worker_runtime/backends/cpu/memory/peer_memory.hpp"
#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"

namespace ddp::cpu_backend {
namespace {

using namespace core;

using Clock = std::chrono::steady_clock;
using Kind = PairEnd::Kind;

class Rank {
 public:
  Rank(int rank, int shared_file, std::function<bool(int rank)> is_here)
      : memory_(std::make_shared<SharedMemory>(base::UniqueFd(::fcntl(shared_file, F_DUPFD_CLOEXEC, 0)),
                                               HostLayout::one_host(2), rank)),
        peer_memory_({0, 0}, rank),
        pairs_(rank, 2, *memory_, peer_memory_, {std::move(is_here), [](int) { return false; }, [] { return false; }}) {
    pairs_.channels().attach(memory_->reserve(PairChannels::shared_bytes(2)), 0);
  }

  Kind send(const std::vector<std::byte>& values, int to, base::Deadline deadline) {
    process_group::Collective call;
    call.kind = CollectiveKind::send;
    call.input = {values.data(), values.size(), DataType::uint8};
    return pairs_.run({&call, 1}, {&to, 1}, deadline).kind;
  }

  Kind receive(std::vector<std::byte>& values, int from, base::Deadline deadline) {
    process_group::Collective call;
    call.kind = CollectiveKind::receive;
    call.output = {values.data(), values.size(), DataType::uint8};
    return pairs_.run({&call, 1}, {&from, 1}, deadline).kind;
  }

 private:
  std::shared_ptr<SharedMemory> memory_;
  PeerMemory peer_memory_;
  PointToPoint pairs_;
};

using test::soon;
base::Deadline at_once() { return {Clock::now(), Clock::now()}; }

// What the sender does next may change the memory that is being read, so what was read counts for nothing.
TEST(PointToPoint, SenderThatGivesUpWhileItsMessageIsReadHasNotSent) {
  for (const std::size_t bytes : {1, 5'000}) {
    SCOPED_TRACE(bytes);
    const base::UniqueFd file = SharedMemory::make_file(HostLayout::one_host(2), 0);
    int questions = 0;
    Rank sender(0, file.get(), [](int) { return true; });
    Rank receiver(1, file.get(), [&](int) { return ++questions == 1; });  // no longer when asked again
    const std::vector<std::byte> sent(bytes, std::byte{7});
    std::vector<std::byte> received(bytes);
    EXPECT_EQ(sender.send(sent, 1, at_once()), Kind::timed_out);
    EXPECT_EQ(receiver.receive(received, 0, soon()), Kind::lost);
    EXPECT_EQ(received, sent) << "it was read before the sender gave up";
  }
}

TEST(KeptMessages, RoomIsTakenByMessagesOnTheirWay) {
  const auto sent = [](std::size_t bytes) {
    return core::Fingerprint{.type = DataType::uint8, .root = 3, .count = bytes};
  };
  KeptMessages kept;
  auto first = kept.prepare(1, 1, sent(KeptMessages::kBytesMax - 1));
  ASSERT_TRUE(first);
  EXPECT_FALSE(kept.prepare(2, 1, sent(2)));
  auto second = kept.prepare(2, 1, sent(1));
  ASSERT_TRUE(second);
  kept.keep(std::move(*second));
  kept.keep(std::move(*first));
  EXPECT_FALSE(kept.prepare(2, 2, sent(1)));
  EXPECT_EQ(kept.take(2, 3).bytes.size(), 1U);
  EXPECT_TRUE(kept.prepare(2, 2, sent(1)));
}

TEST(KeptMessages, TheirNumberHasABoundToo) {
  KeptMessages kept;
  for (std::size_t i = 0; i < KeptMessages::kCountMax; ++i) ASSERT_TRUE(kept.prepare(1, i + 1, {}));
  EXPECT_FALSE(kept.prepare(1, KeptMessages::kCountMax + 1, {}));
}

TEST(PointToPoint, MessageOfASenderThatStaysArrives) {
  const base::UniqueFd file = SharedMemory::make_file(HostLayout::one_host(2), 0);
  const auto always = [](int) { return true; };
  Rank sender(0, file.get(), always), receiver(1, file.get(), always);
  const std::vector<std::byte> sent(5'000, std::byte{7});
  std::vector<std::byte> received(5'000);
  EXPECT_EQ(sender.send(sent, 1, at_once()), Kind::timed_out) << "nobody has taken it yet";
  EXPECT_EQ(receiver.receive(received, 0, soon()), Kind::complete);
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace ddp::cpu_backend
