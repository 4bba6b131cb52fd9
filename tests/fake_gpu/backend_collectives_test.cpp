// Calls of a group of the backend nccl where only the stand-in shows what comes of them: an old NCCL, memory that can't
// be had, what is left behind. The others are in tests/nccl.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/fake_gpu/backend_rank.hpp"
#include "tests/integration/collective_checks.hpp"
#include "tests/integration/pair_checks.hpp"
#include "tests/nccl/numbered.hpp"
#include "tests/sanitized.hpp"

namespace ddp::fake_gpu {
namespace {

using nccl_test::kCount;
using nccl_test::numbered;
using nccl_test::numbered_by_all;
using ::testing::HasSubstr;
using testing::run_ranks;
using testing::thrown_by;
using Values = std::vector<std::int64_t>;

TEST(Backend, HasADeviceOfItsOwn) {
  run_ranks(2, [](int) {
    const auto group = join();
    EXPECT_EQ(group.device(), (Device{Device::Kind::cuda, group.rank()}));
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, group.rank());
  });
}

// Each process that begins to use a GPU takes memory there: no rank does so on another's.
TEST(Backend, TouchesNoOtherDevice) {
  const testing::AllHere both_have_split;
  run_ranks(2, [&](int rank) {
    {
      auto group = join();
      const Array<std::int64_t> values(group.device(), numbered(rank));
      std::thread other([&] {  // which has chosen no device
        group.all_reduce(values.range());
        group.barrier();
        static_cast<void>(group.allocate(100));
      });
      other.join();
      const ProcessGroup half = group.split(rank);
      both_have_split.wait(2);
      if (rank == 1) group.abort("enough");
      EXPECT_THROW(
          {
            for (;;) group.barrier();
          },
          Error);
    }
    EXPECT_GT(fake_gpu_calls(("context on device " + std::to_string(rank)).c_str()), 0U);
    EXPECT_EQ(fake_gpu_calls(("context on device " + std::to_string(1 - rank)).c_str()), 0U);
  });
}

// Device memory for the checks that all backends have (tests/integration/collective_checks.hpp).
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer(ProcessGroup& group, bool any_registered, bool is_registered, std::size_t count)
      : count_(count), device_(group.device()) {
    if (any_registered) registered_ = group.allocate(count * sizeof(T) + 1);
    EXPECT_EQ(cudaMalloc(&plain_, count * sizeof(T) + 1), cudaSuccess);
    data_ = static_cast<T*>(is_registered ? registered_.data() : plain_);
    const T* const own = testing::elements<T>(group.rank(), count);
    write(0, {own, own + count});
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : count_(other.count_),
        device_(other.device_),
        registered_(std::move(other.registered_)),
        plain_(std::exchange(other.plain_, nullptr)),
        data_(other.data_) {}
  ~DeviceBuffer() { cudaFree(plain_); }

  MemoryRange range() const { return part(0, count_); }
  MemoryRange part(std::size_t begin, std::size_t count) const {
    return {data_ + begin, count, DataTypeOf<T>::value, device_};
  }
  std::vector<T> values() const {
    std::vector<T> read(count_);
    EXPECT_EQ(cudaMemcpy(read.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return read;
  }
  void write(std::size_t begin, const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_ + begin, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }

 private:
  std::size_t count_;
  Device device_;
  RegisteredMemory registered_;
  void* plain_ = nullptr;
  T* data_ = nullptr;
};

// The stand-in sums as the cpu backend does, so that even the bits are the same.
template <class T>
class SharedCollectives : public ::testing::Test {};
using AllTypes =
    ::testing::Types<float, double, std::int64_t, tensor::Float16, tensor::Bfloat16, std::int32_t, std::uint8_t,
                     std::int8_t, testing::Boolean, testing::Float8E4m3fn, testing::Float8E5m2>;
TYPED_TEST_SUITE(SharedCollectives, AllTypes);

constexpr std::size_t kSharedCountMax = test::kIsSanitized ? 5'021 : 50'021;  // the stand-in stages nothing

TYPED_TEST(SharedCollectives, EqualAPlainComputationBitByBit) {
  for (const int size : {1, 3}) {
    SCOPED_TRACE("ranks: " + std::to_string(size));
    run_ranks(size, [](int) {
      auto group = join();
      const bool is_small = sizeof(TypeParam) == 1;  // what depends on sizes is the same for all types
      testing::check_collectives<TypeParam, DeviceBuffer>(group, is_small ? kSharedCountMax / 10 : kSharedCountMax);
    });
  }
}

TEST(Backend, SendsAndReceivesWhatWasSent) {
  run_ranks(3, [](int) {
    auto group = join();
    testing::check_pairs<std::int32_t, DeviceBuffer>(group);
  });
}

TEST(Backend, DoesWithoutWhatAnOlderNcclLacksAndSaysSoOnce) {
  run_ranks(3, [](int rank) {
    set_variable("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL_OLD);
    ::testing::internal::CaptureStderr();
    auto group = join();
    auto second = join();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("libddp: NCCL 2.19.3 at "));
    EXPECT_THAT(said, HasSubstr(" has no ncclAlltoAll, ncclGather, ncclScatter"));
    EXPECT_EQ(said.find("ncclAlltoAll"), said.rfind("ncclAlltoAll"));

    const Values own = numbered(rank);
    const Array<std::int64_t> input(group.device(), own);
    const Array<std::int64_t> gathered(group.device(), 3 * kCount);
    const MemoryRange nothing({}, 0, DataType::int64, group.device());
    group.gather(input.range(), rank == 1 ? gathered.range() : nothing, 1);
    EXPECT_EQ(gathered.values(), rank == 1 ? numbered_by_all(3) : Values(3 * kCount));
    const Array<std::int64_t> scattered(group.device(), kCount);
    group.scatter(rank == 1 ? gathered.range() : nothing, scattered.range(), 1);
    EXPECT_EQ(scattered.values(), own);
    const Array<std::int64_t> to_all(group.device(), numbered_by_all(3));
    const Array<std::int64_t> from_all(group.device(), 3 * kCount);
    group.all_to_all(to_all.range(), from_all.range());
    for (std::size_t i = 0; i < 3; ++i) {
      const Values all = from_all.values();
      EXPECT_TRUE(std::equal(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(i * kCount)));
    }
    const RegisteredMemory memory = group.allocate(1000);
    group.all_reduce({memory.data(), 125, DataType::int64, group.device()});
  });
}

TEST(Backend, Float8IsMovedByAnyNcclAndReducedFrom2_24On) {
  run_ranks(2, [](int rank) {
    set_variable("DDP_NCCL_LIBRARY", DDP_FAKE_NCCL_OLD);
    auto group = join();
    const Array<std::uint8_t> own(group.device(), {static_cast<std::uint8_t>(0x40 + rank), 0x7f});
    const Array<std::uint8_t> all(group.device(), 4);
    const auto as_float8 = [](MemoryRange range) {
      range.type = DataType::float8_e4m3fn;
      return range;
    };
    group.all_gather(as_float8(own.range()), as_float8(all.range()));
    EXPECT_EQ(all.values(), (std::vector<std::uint8_t>{0x40, 0x7f, 0x41, 0x7f}));
    const auto error = thrown_by<InvalidArgument>([&] { group.all_reduce(as_float8(own.range())); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("all_reduce: NCCL 2.19.3 at "));
    EXPECT_THAT(error->what(), HasSubstr(" reduces no float8_e4m3fn, which NCCL has from 2.24.3 on"));
    group.barrier();
  });
}

TEST(Backend, MemoryThatOneRankCantHaveIsRefusedOnAllAndTheGroupGoesOn) {
  run_ranks(2, [](int rank) {
    if (rank == 1)
      set_faults("ncclMemAlloc:1:return:1;cudaMalloc:2:return:2");  // the first holds the group's own words
    auto group = join();
    const auto error = thrown_by<Error>([&] { group.allocate(1000); });
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("rank 1 can't have 1000 bytes of device memory: out of memory"));
    const RegisteredMemory memory = group.allocate(1000);
    group.barrier();
  });
}

TEST(Backend, HasNeitherTagsNorReceivesFromAnyAndGoesOnWithoutThem) {
  run_ranks(2, [](int rank) {
    auto group = join();
    const Array<std::int64_t> values(group.device(), numbered(rank));
    const auto tag = thrown_by<InvalidArgument>([&] { group.send(values.range(), 1 - rank, {.tag = 3}); });
    ASSERT_TRUE(tag);
    EXPECT_THAT(tag->what(), HasSubstr("send: a tag of 3, and NCCL has no tags"));
    const auto any = thrown_by<InvalidArgument>([&] { group.receive_from_any(values.range()); });
    ASSERT_TRUE(any);
    EXPECT_THAT(any->what(), HasSubstr("NCCL receives from one rank only"));
    rank == 0 ? group.send(values.range(), 1) : group.receive(values.range(), 0);
    EXPECT_EQ(values.values(), numbered(0));
  });
}

TEST(Backend, GivesEverythingBack) {
  run_ranks(2, [](int) {
    for (int i = 0; i < 3; ++i) {
      auto group = join();
      auto other = group.split(0);
      const RegisteredMemory memory = group.allocate(100);
      Work work = group.all_reduce_async({memory.data(), 25, DataType::float32, group.device()});
      work.wait();
      group.all_reduce({memory.data(), 25, DataType::float32, group.device()}, ReduceOp::premul_sum, {.factor = 2});
      EXPECT_EQ(fake_gpu_live("ncclRedOp"), 0U) << "once it is called";
      group.barrier();
    }
    EXPECT_EQ(fake_gpu_calls("ncclRedOpCreatePreMulSum"), 3U);
    for (const char* kind : {"ncclComm", "ncclMemAlloc", "ncclCommRegister", "cudaStream", "cudaMalloc"}) {
      EXPECT_EQ(fake_gpu_live(kind), 0U) << kind;
    }
    EXPECT_EQ(fake_gpu_live("cudaEvent"), 0U);
    EXPECT_EQ(fake_gpu_calls("ncclCommAbort"), 0UL);
  });
}

}  // namespace
}  // namespace ddp::fake_gpu
