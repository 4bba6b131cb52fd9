// What leaders of 2 to 7 hosts gather at the opening of a call, and what goes round them in a ring, each leader a
// thread.
//
// This program stands in for the C library's recv and recvmsg, so that a test can cut a stream into small pieces, and
// for its poll, so that a test knows when a receiver waits.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.hpp"
#include "ddp/error.hpp"
#include "tests/unit/worker_runtime/soon.hpp"
#include "worker_runtime/backends/cpu/hosts/host_opening.hpp"
#include "worker_runtime/backends/cpu/hosts/host_ring.hpp"
#include "worker_runtime/backends/cpu/hosts/host_streams.hpp"

namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
std::atomic<std::size_t> receive_bytes_max{kNoLimit};  // of one call
std::atomic<std::size_t> cut_count{0};                 // calls that got less room than they asked for
std::atomic<std::size_t> poll_count{0};                // calls, all threads together

std::size_t cut_room(std::size_t bytes) {
  const std::size_t most = receive_bytes_max.load();
  if (bytes > most) ++cut_count;
  return std::min(bytes, most);
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) ssize_t recv(int fd, void* room, std::size_t bytes, int flags) {
  using Function = ssize_t (*)(int, void*, std::size_t, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "recv"));
  return real(fd, room, cut_room(bytes), flags);
}

// Under a limit only the first part of the message is filled.
__attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using Function = ssize_t (*)(int, msghdr*, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "recvmsg"));
  if (receive_bytes_max == kNoLimit) return real(fd, message, flags);
  iovec first = *std::find_if(message->msg_iov, message->msg_iov + message->msg_iovlen,
                              [](const iovec& part) { return part.iov_len > 0; });
  first.iov_len = cut_room(first.iov_len);
  msghdr shorter = *message;
  shorter.msg_iov = &first;
  shorter.msg_iovlen = 1;
  return real(fd, &shorter, flags);
}

__attribute__((visibility("default"))) int poll(pollfd* polled, nfds_t count, int timeout_ms) {
  using Function = int (*)(pollfd*, nfds_t, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "poll"));
  ++poll_count;
  poll_count.notify_all();
  return real(polled, count, timeout_ms);
}

}  // extern "C"

namespace ddp::cpu_backend {
namespace {

using namespace core;

using Clock = std::chrono::steady_clock;
using End = HostStreams::End;

using process_group::CollectiveKind;
using test::kPatience;

// Host 1 has two ranks, every other one.
HostLayout layout_of(int hosts) {
  std::vector<int> host_of(static_cast<std::size_t>(hosts));
  std::iota(host_of.begin(), host_of.end(), 0);
  host_of.push_back(1);
  return HostLayout(host_of);
}

// A connection between each two, and a thread for each.
class Leaders {
 public:
  explicit Leaders(int hosts) : layout_(layout_of(hosts)), sockets_(static_cast<std::size_t>(hosts)) {
    for (auto& of_host : sockets_) of_host.resize(static_cast<std::size_t>(hosts));
    for (std::size_t a = 0; a < sockets_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        std::array<int, 2> ends{};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
        sockets_[a][b].reset(ends[0]);
        sockets_[b][a].reset(ends[1]);
      }
    }
  }

  const HostLayout& layout() const { return layout_; }
  void hang_up(std::size_t host) { sockets_[host].clear(); }
  void hang_up_between(std::size_t a, std::size_t b) {
    sockets_[a][b].reset();
    sockets_[b][a].reset();
  }

  void run(const std::function<void(int host, HostStreams& streams, const HostStreams::Wait& wait)>& body) {
    std::vector<std::thread> threads;
    for (std::size_t host = 0; host < sockets_.size(); ++host) {
      if (sockets_[host].empty()) continue;
      threads.emplace_back([&, host] {
        std::vector<int> own;
        for (const base::UniqueFd& socket : sockets_[host]) own.push_back(socket.get());
        HostStreams streams(layout_, static_cast<int>(host), own);
        base::Deadline deadline(Clock::now(), Clock::now() + kPatience);
        body(static_cast<int>(host), streams, {[] { return false; }, deadline});
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  HostLayout layout_;
  std::vector<std::vector<base::UniqueFd>> sockets_;  // by host, then by the other host
};

class HostExchange : public ::testing::TestWithParam<int> {};

// As long as it lives, a stream arrives in pieces of at most so many bytes.
class Pieces {
 public:
  explicit Pieces(std::size_t bytes) {
    cut_count = 0;
    receive_bytes_max = bytes;
  }
  ~Pieces() {
    receive_bytes_max = kNoLimit;
    EXPECT_GT(cut_count, 0u) << "nothing was cut";
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;
};

Fingerprint call_of(std::uint64_t count) { return {.kind = CollectiveKind::all_gather, .count = count}; }

std::size_t bytes_of(int host) { return static_cast<std::size_t>(host) * 777; }  // nothing of host 0

void expect_opening_reaches_all(int hosts) {
  Leaders leaders(hosts);
  leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
    HostOpening opening(leaders.layout(), host);
    const std::vector<Fingerprint> calls(leaders.layout().ranks_of(host).size(), call_of(5));
    for (int round = 0; round < 3; ++round) {
      const auto value_of = [&](int of) { return static_cast<std::byte>(of * 16 + round); };
      const std::vector<std::byte> own(bytes_of(host), value_of(host));
      ASSERT_EQ(opening.run(streams, calls, own, bytes_of, wait).kind, End::Kind::complete);
      EXPECT_TRUE(opening.is_same_everywhere());
      for (int other = 0; other < leaders.layout().host_count(); ++other) {
        const auto bytes = opening.bytes_of(other);
        EXPECT_THAT(bytes, ::testing::SizeIs(bytes_of(other)));
        EXPECT_THAT(bytes, ::testing::Each(value_of(other)));
      }
    }
  });
}

TEST_P(HostExchange, WhatEachHostAddsToTheOpeningReachesAll) { expect_opening_reaches_all(GetParam()); }

TEST_P(HostExchange, AnOpeningArrivesWhereverTheStreamIsCut) {
  const Pieces pieces(3);
  expect_opening_reaches_all(GetParam());
}

TEST_P(HostExchange, ACallThatDiffersIsKnownToAllWhateverItsSize) {
  for (const bool is_leaders : {true, false}) {
    Leaders leaders(GetParam());
    leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
      HostOpening opening(leaders.layout(), host);
      std::vector<Fingerprint> calls(leaders.layout().ranks_of(host).size(), call_of(5));
      if (host == 1) (is_leaders ? calls.front() : calls.back()) = call_of(9);
      const std::vector<std::byte> own(host == 1 ? 30'000 : bytes_of(host));
      ASSERT_EQ(opening.run(streams, calls, own, bytes_of, wait).kind, End::Kind::complete);
      EXPECT_FALSE(opening.is_same_everywhere());
      for (int rank = 0; rank < leaders.layout().size(); ++rank) {
        const bool is_other = rank == (is_leaders ? 1 : leaders.layout().size() - 1);
        EXPECT_EQ(opening.call_of(rank).count, is_other ? 9u : 5u) << "rank " << rank;
      }
    });
  }
}

TEST_P(HostExchange, BytesThatAreNotThoseOfTheCallAreRefused) {
  Leaders leaders(GetParam());
  leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
    HostOpening opening(leaders.layout(), host);
    const std::vector<Fingerprint> calls(leaders.layout().ranks_of(host).size(), call_of(5));
    const std::vector<std::byte> own(bytes_of(host) + (host == 1 ? 1 : 0));
    EXPECT_THROW(opening.run(streams, calls, own, bytes_of, wait), Error);
  });
}

// A plain computation in the order that host_ring.hpp tells.
float sum_of(std::size_t first_host, std::size_t hosts, std::size_t i, bool is_average) {
  const auto value = [&](std::size_t host) { return static_cast<float>((i * 7919 + host * 104'729) % 10'007) / 7; };
  float sum = value(first_host);
  for (std::size_t n = 1; n < hosts; ++n) sum += value((first_host + n) % hosts);
  return is_average ? sum / 100 : sum;
}

void expect_ring_sums(int hosts, std::size_t count, ReduceOp op) {
  Leaders leaders(hosts);
  leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
    HostRing ring;
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = sum_of(static_cast<std::size_t>(host), 1, i, false);
    const auto end =
        ring.all_reduce(streams, std::as_writable_bytes(std::span(values)), DataType::float32, op, 100, wait);
    ASSERT_EQ(end.kind, End::Kind::complete);
    std::size_t wrong = 0;
    for (int slice = 0; slice < hosts; ++slice) {
      const Slice part = slice_of(count, DataType::float32, slice, hosts);
      const auto first = static_cast<std::size_t>(hosts == 2 ? 0 : slice);
      for (std::size_t i = part.begin; i < part.end; ++i) {
        const float wanted = sum_of(first, static_cast<std::size_t>(hosts), i, op == ReduceOp::average);
        wrong += std::memcmp(&values[i], &wanted, sizeof wanted) != 0 ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0u);
  });
}

TEST_P(HostExchange, TheRingGivesAllLeadersTheSumsInTheOrderOfTheirSlices) {
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{17}, std::size_t{1001}, std::size_t{400'003}}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
      SCOPED_TRACE(count);
      expect_ring_sums(GetParam(), count, op);
    }
  }
}

TEST_P(HostExchange, RingSumsAreExactWhereverTheStreamIsCut) {
  for (const std::size_t bytes : {1, 3, 5}) {  // no multiple of the bytes of an element
    SCOPED_TRACE(bytes);
    const Pieces pieces(bytes);
    for (const std::size_t count : {std::size_t{17}, std::size_t{1001}}) {
      expect_ring_sums(GetParam(), count, ReduceOp::sum);
    }
  }
}

TEST_P(HostExchange, ALeaderWhoseNeighbourIsGoneNamesIt) {
  Leaders leaders(GetParam());
  leaders.hang_up(1);
  std::atomic<int> named{0};
  leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait&) {
    HostRing ring;
    std::vector<float> values(400'003);
    base::Deadline deadline(Clock::now(), Clock::now() + std::chrono::milliseconds(1'000));
    const auto end = ring.all_reduce(streams, std::as_writable_bytes(std::span(values)), DataType::float32,
                                     ReduceOp::sum, 1, {[] { return false; }, deadline});
    EXPECT_NE(end.kind, End::Kind::complete);
    if (end.kind != End::Kind::host_lost) return;
    EXPECT_THAT(end.hosts, ::testing::ElementsAre(1));
    EXPECT_EQ(host, 2 % GetParam()) << "it receives from host 1";
    ++named;
  });
  EXPECT_EQ(named, 1);
}

TEST_P(HostExchange, WhatARootHasGoesRoundToAllLeaders) {
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{700'017}}) {
    for (int root = 0; root < GetParam(); ++root) {
      SCOPED_TRACE(root);
      Leaders leaders(GetParam());
      leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
        const auto value_at = [&](std::size_t i) { return static_cast<std::byte>((i * 7919 + count) >> 5); };
        std::vector<std::byte> bytes(count);
        for (std::size_t i = 0; host == root && i < count; ++i) bytes[i] = value_at(i);
        ASSERT_EQ(HostRing::broadcast(streams, bytes, root, wait).kind, End::Kind::complete);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < count; ++i) wrong += bytes[i] != value_at(i) ? 1 : 0;
        EXPECT_EQ(wrong, 0u);
      });
    }
  }
}

// So a root sends once, however many hosts there are.
TEST(Broadcast, GoesFromEachLeaderToTheNextAlone) {
  constexpr int kHosts = 4, kRoot = 2;
  Leaders leaders(kHosts);
  leaders.hang_up_between(kRoot, 0);
  leaders.hang_up_between(kRoot, 1);
  leaders.hang_up_between(3, 1);
  leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait& wait) {
    std::vector<std::byte> bytes(1'000'000, host == kRoot ? std::byte{7} : std::byte{});
    ASSERT_EQ(HostRing::broadcast(streams, bytes, kRoot, wait).kind, End::Kind::complete);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{7}), static_cast<std::ptrdiff_t>(bytes.size()));
  });
}

TEST_P(HostExchange, ABroadcastNamesTheNeighbourThatIsGone) {
  constexpr int kGone = 1;
  for (int root = 0; root < GetParam(); ++root) {
    if (root == kGone) continue;
    SCOPED_TRACE(root);
    Leaders leaders(GetParam());
    leaders.hang_up(kGone);
    std::atomic<int> named{0};
    leaders.run([&](int host, HostStreams& streams, const HostStreams::Wait&) {
      std::vector<std::byte> bytes(3'000'000);
      base::Deadline deadline(Clock::now(), Clock::now() + std::chrono::milliseconds(1'000));
      const auto end = HostRing::broadcast(streams, bytes, root, {[] { return false; }, deadline});
      if (end.kind != End::Kind::host_lost) return;
      EXPECT_THAT(end.hosts, ::testing::ElementsAre(kGone));
      EXPECT_TRUE(host == kGone - 1 || host == (kGone + 1) % GetParam());
      ++named;
    });
    const bool is_last = root == (kGone + 1) % GetParam();  // nobody receives from it
    EXPECT_EQ(named, is_last || GetParam() == 2 ? 1 : 2);
  }
}

// The whole message waits in the socket, so no receive finds it empty and the exchange never sleeps.
TEST(HostStreamsDeadline, HoldsAlthoughEveryByteArrivesInTime) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const base::UniqueFd own(ends[0]), peer(ends[1]);
  std::vector<std::byte> contents(100'000);
  const std::array<std::uint64_t, 2> header{1, contents.size()};  // of the first exchange
  ASSERT_EQ(::send(peer.get(), header.data(), sizeof header, MSG_DONTWAIT), static_cast<ssize_t>(sizeof header));
  ASSERT_EQ(::send(peer.get(), contents.data(), contents.size(), MSG_DONTWAIT), static_cast<ssize_t>(contents.size()));
  const Pieces pieces(1);
  const HostLayout layout({0, 1});
  HostStreams streams(layout, 0, {-1, own.get()});
  const auto now = Clock::now();
  base::Deadline deadline(now, now + std::chrono::milliseconds(2));
  const std::vector<HostStreams::Parcel> parcels{{}, {{}, contents}};
  const End end = streams.transfer(parcels, {[] { return false; }, deadline});
  EXPECT_EQ(end.kind, End::Kind::timed_out) << "100'000 receives take longer than 2 ms";
  EXPECT_THAT(end.hosts, ::testing::ElementsAre(1));
}

// The writer sends a byte each time that the receiver has run out of bytes and begins to wait. A machine that is too
// slow for a few bytes gets a longer limit.
TEST(HostStreamsDeadline, HoldsAlthoughEachByteEndsAWaitInTime) {
  // More than can arrive within any of the limits, because the receiver tries for 50 us before it waits.
  constexpr std::size_t kBytes = 200'000;
  std::size_t sent = 0;
  for (std::chrono::milliseconds limit{20}; sent < 3; limit *= 2) {
    ASSERT_LT(limit, std::chrono::seconds(5)) << "the receiver never waits";
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const base::UniqueFd own(ends[0]), peer(ends[1]);
    std::vector<std::byte> contents(kBytes);
    const std::array<std::uint64_t, 2> header{1, contents.size()};  // of the first exchange
    ASSERT_EQ(::send(peer.get(), header.data(), sizeof header, MSG_DONTWAIT), static_cast<ssize_t>(sizeof header));
    std::atomic<bool> is_over{false};
    std::thread writer([&, seen = poll_count.load()]() mutable {
      for (sent = 0; sent < kBytes; ++sent) {
        poll_count.wait(seen);
        seen = poll_count;
        if (is_over) return;
        ASSERT_EQ(::send(peer.get(), "", 1, MSG_NOSIGNAL), 1);
      }
    });
    const HostLayout layout({0, 1});
    HostStreams streams(layout, 0, {-1, own.get()});
    const auto now = Clock::now();
    base::Deadline deadline(now, now + limit);
    const std::vector<HostStreams::Parcel> parcels{{}, {{}, contents}};
    const End end = streams.transfer(parcels, {[] { return false; }, deadline});
    is_over = true;
    ++poll_count;
    poll_count.notify_all();
    writer.join();
    ASSERT_EQ(end.kind, End::Kind::timed_out);
    EXPECT_THAT(end.hosts, ::testing::ElementsAre(1));
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostExchange, ::testing::Values(2, 3, 4, 5, 7));

}  // namespace
}  // namespace ddp::cpu_backend
