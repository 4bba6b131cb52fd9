// Collectives among ranks on several hosts, against a plain computation, bit by bit.
#include <ddp/ddp.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/integration/collective_checks.hpp"
#include "tests/integration/collective_values.hpp"
#include "tests/integration/rank_processes.hpp"
#include "tests/multihost/multihost.hpp"

namespace ddp {
namespace {

using test::Hosts;
using testing::Buffer;
using testing::concatenated;
using testing::elements;
using testing::expect_bits;
using testing::of_all_ranks;
using testing::ops_for;
using testing::options_for;
using testing::RanksByHost;
using testing::reduced;
using testing::run_ranks;

using HostOf = std::vector<int>;  // by rank

// Ranks by host, as sums go: the host with the lowest rank first.
RanksByHost ranks_by_host(const HostOf& host_of) {
  RanksByHost by_host;
  std::vector<int> order;
  for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
    const int host = host_of[static_cast<std::size_t>(rank)];
    auto at = std::find(order.begin(), order.end(), host);
    if (at == order.end()) {
      at = order.insert(order.end(), host);
      by_host.emplace_back();
    }
    by_host[static_cast<std::size_t>(at - order.begin())].push_back(rank);
  }
  return by_host;
}

enum class Where { plain, registered, registered_on_some };

template <class T>
Buffer<T> buffer(ProcessGroup& group, Where where, std::size_t count) {
  const bool is_registered = where == Where::registered || (where == Where::registered_on_some && group.rank() < 2);
  return Buffer<T>(group, where != Where::plain, is_registered, count);
}

enum class Sum { of_all_reduce, of_reduce };

// Where the elements of an all_reduce or reduce go round the hosts, in one go or block by block: the sums of a slice
// for each host, of whole cache lines, begin at that host. Those of few elements, or of two hosts, all begin at the
// first.
template <class T>
class Sums {
 public:
  Sums(const RanksByHost& by_host, Sum kind, std::size_t count) : from_(by_host.size(), by_host) {
    for (std::size_t host = 0; host < from_.size(); ++host) {
      std::rotate(from_[host].begin(), from_[host].begin() + static_cast<std::ptrdiff_t>(host), from_[host].end());
    }
    const bool has_others =
        std::any_of(by_host.begin(), by_host.end(), [](const auto& host) { return host.size() > 1; });
    goes_round_ = by_host.size() > 2 && count * sizeof(Exchanged) > kGatheredBytes / by_host.size();
    const bool is_in_one_go = kind == Sum::of_all_reduce && !has_others && sizeof(T) == sizeof(Exchanged);
    block_ = is_in_one_go ? count : std::min(count, kBlockBytes / sizeof(Exchanged));
    count_ = count;
  }

  std::vector<T> of(ReduceOp op) const {
    const auto sums_from = [&](std::size_t host) { return reduced<T>(op, from_[host], count_); };
    std::vector<T> all(sums_from(0), sums_from(0) + count_);
    if (!goes_round_) return all;
    const std::size_t in_line = 64 / sizeof(Exchanged);
    const std::size_t hosts = from_.size();
    for (std::size_t begin = 0; begin < count_; begin += block_) {
      const std::size_t count = std::min(block_, count_ - begin);
      const std::size_t lines = (count + in_line - 1) / in_line;
      std::size_t at = 0;
      for (std::size_t host = 0; host < hosts; ++host) {
        const std::size_t end_line = lines / hosts * (host + 1) + std::min(host + 1, lines % hosts);
        const std::size_t end = std::min(end_line * in_line, count);
        std::copy(sums_from(host) + begin + at, sums_from(host) + begin + end, all.data() + begin + at);
        at = end;
      }
    }
    return all;
  }

 private:
  using Exchanged = testing::Wide<T>;
  static constexpr std::size_t kBlockBytes = 1u << 20;
  static constexpr std::size_t kGatheredBytes = 256u << 10;

  std::vector<RanksByHost> from_;  // by the host that they begin at
  bool goes_round_ = false;
  std::size_t block_ = 0, count_ = 0;
};

// On a root's memory where others have none.
template <class T>
MemoryRange only_at(ProcessGroup& group, int root, const Buffer<T>& memory) {
  return group.rank() == root ? memory.range() : MemoryRange{};
}

template <class T>
void check_rooted_collectives(ProcessGroup& group, const RanksByHost& by_host, Where where, std::size_t count) {
  const auto all = count * static_cast<std::size_t>(group.size());
  const auto own = count * static_cast<std::size_t>(group.rank());
  const Sums<T> sums(by_host, Sum::of_reduce, count);
  for (const int root : {0, group.size() - 1}) {
    if (root == 0 && count > 1000) continue;
    SCOPED_TRACE("root " + std::to_string(root));
    const bool is_root = group.rank() == root;
    for (const ReduceOp op : {ReduceOp::average, ReduceOp::max}) {
      auto input = buffer<T>(group, where, count);
      auto output = buffer<T>(group, where, count);
      group.reduce(input.range(), only_at(group, root, output), root, op, options_for(op, group.rank()));
      if (is_root) expect_bits("reduce", output.data(), sums.of(op));
      expect_bits("input of reduce", input.data(), elements<T>(group.rank(), count), count);
      group.reduce(input.range(), only_at(group, root, input), root, op, options_for(op, group.rank()));
      if (is_root) expect_bits("reduce in place", input.data(), sums.of(op));
    }
    auto one = buffer<T>(group, where, count);
    auto many = buffer<T>(group, where, all);
    group.gather(one.range(), only_at(group, root, many), root);
    if (is_root) expect_bits("gather", many.data(), concatenated<T>(of_all_ranks(group.size(), 0, count)));
    auto given = buffer<T>(group, where, all);
    group.scatter(only_at(group, root, given), one.range(), root);
    expect_bits("scatter", one.data(), elements<T>(root, own + count) + own, count);
  }
  auto given = buffer<T>(group, where, all);
  auto taken = buffer<T>(group, where, all);
  group.all_to_all(given.range(), taken.range());
  expect_bits("all_to_all", taken.data(), concatenated<T>(of_all_ranks(group.size(), own, count)));
}

template <class T>
void check_collectives(ProcessGroup& group, const RanksByHost& by_host, Where where, std::size_t count) {
  const Sums<T> sums(by_host, Sum::of_all_reduce, count);
  for (const ReduceOp op : ops_for<T>(count)) {
    auto inout = buffer<T>(group, where, count);
    group.all_reduce(inout.range(), op, options_for(op, group.rank()));
    expect_bits("all_reduce", inout.data(), sums.of(op));
  }
  const int roots = count > 100'000 ? 1 : group.size();
  for (int root = 0; root < roots; ++root) {
    auto inout = buffer<T>(group, where, count);
    group.broadcast(inout.range(), root);
    expect_bits("broadcast", inout.data(), elements<T>(root, count), count);
  }
  const std::size_t each = count / 2 + count % 2;
  const std::size_t all = each * static_cast<std::size_t>(group.size());
  const std::size_t own = each * static_cast<std::size_t>(group.rank());
  const std::vector<T> gathered = concatenated<T>(of_all_ranks(group.size(), 0, each));
  auto one = buffer<T>(group, where, each);
  auto output = buffer<T>(group, where, all);
  group.all_gather(one.range(), output.range());
  expect_bits("all_gather", output.data(), gathered);
  auto in_place = buffer<T>(group, where, all);
  std::copy_n(one.data(), each, in_place.data() + own);
  group.all_gather({in_place.data() + own, each}, in_place.range());
  expect_bits("all_gather in place", in_place.data(), gathered);
  for (const ReduceOp op : ops_for<T>(count)) {
    auto input = buffer<T>(group, where, all);
    group.reduce_scatter(input.range(), one.range(), op, options_for(op, group.rank()));
    expect_bits("reduce_scatter", one.data(), reduced<T>(op, by_host, all) + own, each);
  }
}

struct Layout {
  const char* name;
  HostOf host_of;
};

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

class CollectivesOverHosts : public test::Multihost, public ::testing::WithParamInterface<Layout> {};

template <class T>
void check_layout(Hosts& hosts, const HostOf& host_of, const std::vector<Where>& wheres) {
  run_ranks({hosts, host_of, ""}, [&](int rank) {
    const auto by_host = ranks_by_host(host_of);
    auto group = init_process_group({.timeout = std::chrono::seconds(60)});
    EXPECT_EQ(group.rank(), rank);
    EXPECT_EQ(group.size(), static_cast<int>(host_of.size()));
    group.barrier();
    for (const Where where : wheres) {
      const std::size_t two_blocks = (1u << 20) / sizeof(testing::Wide<T>) + 9001;  // as the hosts exchange them
      for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{37}, two_blocks}) {
        SCOPED_TRACE(std::to_string(count) + " elements, memory " + std::to_string(static_cast<int>(where)));
        check_collectives<T>(group, by_host, where, count);
        testing::check_uneven_collectives<T, Buffer>(group, by_host, testing::Where::plain, count / 4);
        if (count != 1) check_rooted_collectives<T>(group, by_host, where, count == two_blocks ? count / 3 : count);
      }
    }
    group.barrier();
  });
}

TEST_P(CollectivesOverHosts, EqualAPlainComputationBitByBit) {
  const HostOf& host_of = GetParam().host_of;
  Hosts* const hosts = make_hosts({.count = *std::max_element(host_of.begin(), host_of.end()) + 1});
  if (hosts == nullptr) return;
  const std::vector<Where> all{Where::plain, Where::registered, Where::registered_on_some};
  check_layout<float>(*hosts, host_of, all);
  check_layout<tensor::Float16>(*hosts, host_of, all);
  const std::vector<Where> both_ways{Where::registered_on_some};  // in place on the first host, staged on others
  check_layout<double>(*hosts, host_of, both_ways);
  check_layout<std::int64_t>(*hosts, host_of, both_ways);
  check_layout<tensor::Bfloat16>(*hosts, host_of, both_ways);
  check_layout<std::int32_t>(*hosts, host_of, both_ways);
  check_layout<std::uint8_t>(*hosts, host_of, both_ways);
  check_layout<testing::Float8E4m3fn>(*hosts, host_of, both_ways);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CollectivesOverHosts,
                         ::testing::Values(Layout{"OneRankEach", {0, 1}}, Layout{"TwoEach", {0, 0, 1, 1}},
                                           Layout{"Unequal", {0, 0, 0, 1}}, Layout{"Mixed", {0, 1, 0, 2, 1}},
                                           Layout{"OneRankOnEachOfFour", {0, 1, 2, 3}},
                                           Layout{"StoreIsElsewhere", {1, 2, 1}}),
                         [](const auto& tested) { return tested.param.name; });

class GroupOverHosts : public test::Multihost {};

TEST_F(GroupOverHosts, CollectivesRunBesideTheProgram) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1, 0, 1}, ""}, [](int rank) {
    auto group = init_process_group();
    std::vector<std::vector<double>> values(100, std::vector<double>(1000, rank));
    std::vector<Work> works;
    for (auto& each : values) works.push_back(group.all_reduce_async(each));
    for (std::size_t i = 0; i < works.size(); ++i) works[i * 7 % works.size()].wait();
    for (const auto& each : values) EXPECT_EQ(each[999], 6);
  });
}

TEST_F(GroupOverHosts, TwoGroupsOneAfterTheOtherMeetEach) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1, 1}, ""}, [](int) {
    for (int i = 0; i < 5; ++i) {
      auto group = init_process_group();
      std::vector<float> ones(10, 1);
      group.all_reduce(ones);
      EXPECT_EQ(ones[9], 3);
    }
  });
}

TEST_F(GroupOverHosts, MeetsOverIPv6) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1, 1}, Hosts::ipv6(0)}, [](int) { init_process_group().barrier(); });
}

TEST_F(GroupOverHosts, MeetsByNameOfTheStoresHost) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1}, Hosts::name(0)}, [](int) { init_process_group().barrier(); });
}

TEST_F(GroupOverHosts, MeetsThoughRank0ReachesTheStoreByLoopback) {
  Hosts* const hosts = make_hosts({});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1}, ""}, [](int rank) {
    if (rank == 0) ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    init_process_group().barrier();
  });
}

TEST_F(GroupOverHosts, UsesTheInterfaceAndThePortsThatAreAskedFor) {
  Hosts* const hosts = make_hosts({.count = 2, .interfaces = 2});
  if (hosts == nullptr) return;
  run_ranks({*hosts, {0, 1}, ""}, [](int rank) {
    ::setenv("DDP_SOCKET_IFNAME", "eth1", 1);
    ::setenv("DDPRUN_PORT_RANGE", "4100-4101", 1);
    auto group = init_process_group();
    group.barrier();
    if (rank == 0) {
      std::ifstream connections("/proc/self/net/tcp");
      const std::string text((std::istreambuf_iterator<char>(connections)), {});
      EXPECT_THAT(text, ::testing::HasSubstr("01014D0A:1004 02014D0A:")) << "10.77.1.1:4100, from 10.77.1.2";
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace ddp
