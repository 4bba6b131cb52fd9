// The kernels of libddp against the host's arithmetic: the same bits, but for which NaN a NaN is, and for norms.
//
// Each test is a rank of its own, because ranks are forked and CUDA does not live through a fork.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/nccl/gate.hpp"
#include "tests/nccl/rank.hpp"
#include "worker_runtime/backends/nccl/cuda_arithmetic.hpp"
#include "worker_runtime/backends/nccl/gradient_kernels.hpp"
#include "worker_runtime/backends/nccl/nccl_backend.hpp"
#include "worker_runtime/engine/sharded/optimizer_numbers.hpp"
#include "worker_runtime/process_group/device_arithmetic.hpp"
#include "worker_runtime/tensor/convert.hpp"

namespace ddp::nccl_test {
namespace {

using process_group::DeviceArithmetic;
using process_group::HostCopy;
using testing::run_ranks;

constexpr DataType kTypes[] = {DataType::float32, DataType::float64, DataType::float16, DataType::bfloat16};
constexpr DataType kHalfTypes[] = {DataType::float16, DataType::bfloat16};
constexpr std::size_t kCounts[] = {0, 1, 3, 1023, (1U << 20) + 5};
constexpr std::size_t kOffsets[] = {0, 1, 3, 7};  // elements from an address that vectors may have

using Bytes = std::vector<std::byte>;

// An element as a number of 64 bits. NaNs are alike.
std::uint64_t element_of(const std::byte* element, DataType type) {
  constexpr std::uint64_t kNan = 0x7fff'ffff'ffff'ffff;
  if (type == DataType::float64) {
    double value = 0;
    std::memcpy(&value, element, sizeof value);
    return std::isnan(value) ? kNan : std::bit_cast<std::uint64_t>(value);
  }
  float value = 0;
  if (type == DataType::float32) {
    std::memcpy(&value, element, sizeof value);
  } else {
    std::uint16_t half = 0;
    std::memcpy(&half, element, sizeof half);
    tensor::widen(&half, &value, 1, type);
  }
  return std::isnan(value) ? kNan : std::bit_cast<std::uint32_t>(value);
}

void set_element(Bytes& bytes, std::size_t index, DataType type, double value) {
  std::byte* const to = bytes.data() + index * size_of(type);
  const auto as_float = static_cast<float>(value);
  if (type == DataType::float64) {
    std::memcpy(to, &value, sizeof value);
  } else if (type == DataType::float32) {
    std::memcpy(to, &as_float, sizeof as_float);
  } else {
    std::uint16_t half = 0;
    tensor::narrow(&as_float, &half, 1, type);
    std::memcpy(to, &half, sizeof half);
  }
}

// Of many magnitudes, subnormal ones too. is_finite: else some are infinite, and some NaNs.
Bytes values_of(std::size_t count, DataType type, bool is_finite) {
  std::mt19937_64 random(count);
  const int smallest = type == DataType::float64 ? -1070 : type == DataType::float16 ? -24 : -140;
  const int largest = type == DataType::float64 ? 400 : type == DataType::float16 ? 15 : 60;
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    const auto draw = random();
    const auto exponent = smallest + static_cast<int>(draw % static_cast<unsigned>(largest - smallest));
    double value = std::ldexp(1 + static_cast<double>(draw >> 40) / 0x1p24, exponent);
    if ((draw >> 32) % 2 != 0) value = -value;
    if (!is_finite && (draw >> 33) % 16 == 0) value = HUGE_VAL * ((draw >> 32) % 2 != 0 ? -1 : 1);
    if (!is_finite && (draw >> 33) % 16 == 1) value = std::numeric_limits<double>::quiet_NaN();
    if ((draw >> 33) % 16 == 2) value = (draw >> 32) % 2 != 0 ? -0.0 : 0.0;
    set_element(bytes, i, type, value);
  }
  return bytes;
}

void expect_same(const Bytes& device, const Bytes& host, DataType type) {
  ASSERT_EQ(device.size(), host.size());
  for (std::size_t i = 0; i < host.size() / size_of(type); ++i) {
    const std::size_t at = i * size_of(type);
    ASSERT_EQ(element_of(device.data() + at, type), element_of(host.data() + at, type)) << "element " << i;
  }
}

// Elements in a block of device memory, `offset` elements from its start. What is in front and behind must stay.
class OnDevice {
 public:
  OnDevice(const Bytes& bytes, DataType type, std::size_t offset)
      : type_(type), begin_(offset * size_of(type)), count_(bytes.size() / size_of(type)), block_(block(bytes)) {
    EXPECT_EQ(cudaMalloc(&memory_, block_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(memory_, block_.data(), block_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  MemoryRange range() const {
    return {static_cast<std::byte*>(memory_) + begin_, count_, type_, {Device::Kind::cuda, 0}};
  }

  Bytes bytes() const {
    Bytes read(block_.size());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(read.data(), memory_, read.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const auto end = begin_ + count_ * size_of(type_);
    for (std::size_t i = 0; i < read.size(); ++i) {
      if (i >= begin_ && i < end) continue;
      EXPECT_EQ(read[i], block_[i]) << "byte " << i << " is not of the range";
    }
    return {read.begin() + static_cast<std::ptrdiff_t>(begin_), read.begin() + static_cast<std::ptrdiff_t>(end)};
  }

 private:
  Bytes block(const Bytes& bytes) const {
    Bytes all(begin_ + bytes.size() + 16, std::byte{0x55});
    std::copy(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(begin_));
    return all;
  }

  DataType type_;
  std::size_t begin_;
  std::size_t count_;
  Bytes block_;
  void* memory_ = nullptr;
};

double value_of(const std::unique_ptr<HostCopy>& copy) { return process_group::value_of<double>(*copy); }

std::shared_ptr<DeviceArithmetic> on_device() {
  static_cast<void>(take_place());
  return nccl_backend::make_cuda_arithmetic(0, nccl_backend::memory_of_device(0));
}

// Runs `test` for each type, count and offset.
template <class Test>
void for_each_case(const Test& test) {
  for (const DataType type : kTypes) {
    for (const std::size_t count : kCounts) {
      for (const std::size_t offset : kOffsets) {
        SCOPED_TRACE(std::string(name_of(type)) + ", count " + std::to_string(count) + ", offset " +
                     std::to_string(offset));
        test(type, count, offset);
      }
    }
  }
}

MemoryRange on_host(Bytes& bytes, DataType type) { return {bytes.data(), bytes.size() / size_of(type), type}; }

// A range on the device, and the same values on the host.
struct Both {
  Both(DataType type_, std::size_t count, std::size_t offset, bool is_finite)
      : type(type_), values(values_of(count, type, is_finite)), memory(values, type, offset) {}

  void expect_equal() const { expect_same(memory.bytes(), values, type); }

  DataType type;
  Bytes values;  // on the host
  OnDevice memory;
  MemoryRange on_gpu = memory.range(), on_cpu = on_host(values, type);
};

template <class Test>
void for_each_range(bool is_finite, const Test& test) {
  for_each_case([&](DataType type, std::size_t count, std::size_t offset) {
    const Both both(type, count, offset, is_finite);
    test(both);
  });
}

// What a call does to a range, on the device and on the host.
template <class Call>
void compare(const Call& call, bool is_finite) {
  const auto device = on_device();
  const auto host = process_group::host_arithmetic();
  for_each_range(is_finite, [&](const Both& both) {
    call(*device, {&both.on_gpu, 1});
    call(*host, {&both.on_cpu, 1});
    both.expect_equal();
  });
}

TEST(GradientKernels, ScaleHasTheBitsOfTheHost) {
  run_ranks(1, [](int) {
    for (const double factor : {0.3, 0x1p-16, 1e-30, 1e30, -1.0 / 3}) {
      SCOPED_TRACE(factor);
      compare([&](DeviceArithmetic& its, DeviceArithmetic::Ranges all) { its.scale(all, factor, nullptr); }, false);
    }
  });
}

TEST(GradientKernels, ClampHasTheBitsOfTheHost) {
  run_ranks(1, [](int) {
    for (const double limit : {0.3, 1e-42, 65503.0, 1e300}) {
      SCOPED_TRACE(limit);
      compare([&](DeviceArithmetic& its, DeviceArithmetic::Ranges all) { its.clamp(all, limit, nullptr); }, false);
    }
  });
}

TEST(GradientKernels, AnElementThatIsNotFiniteIsFoundWhereverItIs) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const Array<std::int32_t> found({}, std::vector<std::int32_t>{77});
    auto* const flag = static_cast<std::int32_t*>(found.range().data);
    for_each_case([&](DataType type, std::size_t count, std::size_t offset) {
      const Bytes finite = values_of(count, type, true);
      const OnDevice memory(finite, type, offset);
      const MemoryRange range = memory.range();
      device->find_non_finite({&range, 1}, flag, nullptr);
      EXPECT_EQ(found.values().front(), 0);
      if (count == 0) return;
      for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
        for (const double bad : {HUGE_VAL, -HUGE_VAL, std::numeric_limits<double>::quiet_NaN()}) {
          Bytes one(size_of(type));
          set_element(one, 0, type, bad);
          std::byte* const at = static_cast<std::byte*>(range.data) + place * one.size();
          cudaMemcpy(at, one.data(), one.size(), cudaMemcpyHostToDevice);
          device->find_non_finite({&range, 1}, flag, nullptr);
          EXPECT_EQ(found.values().front(), 1) << bad << " at " << place;
          cudaMemcpy(at, finite.data() + place * one.size(), one.size(), cudaMemcpyHostToDevice);
        }
      }
    });
  });
}

TEST(GradientKernels, ScaleUnlessLooksAtTheFlagOnTheDevice) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const Array<std::int32_t> flag({}, std::vector<std::int32_t>{0, 1});
    const auto* const flags = static_cast<const std::int32_t*>(flag.range().data);
    for (const DataType type : kTypes) {
      SCOPED_TRACE(name_of(type));
      Bytes values = values_of(10'000, type, true);
      const OnDevice memory(values, type, 0);
      const MemoryRange range = memory.range(), expected = on_host(values, type);
      device->scale_unless(flags + 1, {&range, 1}, 0.3, nullptr);
      expect_same(memory.bytes(), values, type);
      device->scale_unless(flags, {&range, 1}, 0.3, nullptr);
      process_group::host_arithmetic()->scale({&expected, 1}, 0.3, nullptr);
      expect_same(memory.bytes(), values, type);
    }
  });
}

TEST(GradientKernels, TheNormIsTheHostsButForRoundingAndTheSameOnEveryRun) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const auto host = process_group::host_arithmetic();
    for_each_range(true, [&](const Both& both) {
      const double norm = value_of(device->norm({&both.on_gpu, 1}, nullptr));
      const double on_cpu = value_of(host->norm({&both.on_cpu, 1}, nullptr));
      EXPECT_NEAR(norm, on_cpu, 1e-12 * on_cpu);
      EXPECT_EQ(norm, value_of(device->norm({&both.on_gpu, 1}, nullptr)));
      both.expect_equal();
    });
  });
}

TEST(GradientKernels, ClippingScalesByTheNormThatItReturns) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const auto host = process_group::host_arithmetic();
    for_each_range(true, [&](const Both& both) {
      const double norm = value_of(device->norm({&both.on_gpu, 1}, nullptr));
      if (norm == 0) {  // of nothing, or of squares that are too small for a double
        EXPECT_EQ(value_of(device->clip_by_norm({&both.on_gpu, 1}, 1, nullptr)), 0);
        return;
      }
      EXPECT_EQ(value_of(device->clip_by_norm({&both.on_gpu, 1}, norm, nullptr)), norm);
      both.expect_equal();  // it is not above the largest
      EXPECT_EQ(value_of(device->clip_by_norm({&both.on_gpu, 1}, norm / 3, nullptr)), norm);
      host->scale({&both.on_cpu, 1}, norm / 3 / norm, nullptr);
      both.expect_equal();
    });
  });
}

TEST(GradientKernels, ClippingLeavesGradientsWithoutAFiniteNormAlone) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    for (const DataType type : kTypes) {
      for (const double bad : {HUGE_VAL, std::numeric_limits<double>::quiet_NaN()}) {
        SCOPED_TRACE(std::string(name_of(type)) + ", " + std::to_string(bad));
        Bytes values = values_of(1'000, type, true);
        set_element(values, 500, type, bad);
        const OnDevice memory(values, type, 0);
        const MemoryRange range = memory.range();
        EXPECT_FALSE(std::isfinite(value_of(device->clip_by_norm({&range, 1}, 1e-3, nullptr))));
        expect_same(memory.bytes(), values, type);
      }
    }
  });
}

TEST(GradientKernels, ManyRangesOfAllTypesAreOneNorm) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const auto host = process_group::host_arithmetic();
    std::vector<Bytes> values;
    std::vector<DataType> types;
    std::vector<std::unique_ptr<OnDevice>> memories;
    std::vector<MemoryRange> ranges, expected;
    for (std::size_t i = 0; i < 600; ++i) {
      types.push_back(kTypes[i * i % 4 == 1 ? 0 : i % 4]);
      Bytes each(i * 7 % 5'000 * size_of(types.back()));
      for (std::size_t k = 0; k < each.size() / size_of(types.back()); ++k) {
        set_element(each, k, types.back(), std::ldexp(1.0, static_cast<int>((i + k) % 7) - 3));
      }
      values.push_back(std::move(each));
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      memories.push_back(std::make_unique<OnDevice>(values[i], types[i], i % 3));
      ranges.push_back(memories.back()->range());
      expected.push_back(on_host(values[i], types[i]));
    }
    const double norm = value_of(device->clip_by_norm(ranges, 1, nullptr));
    EXPECT_EQ(norm, value_of(host->clip_by_norm(expected, 1, nullptr)));  // all squares are exact, and so are sums
    EXPECT_GT(norm, 1);
    device->clamp(ranges, 0.001, nullptr);
    host->clamp(expected, 0.001, nullptr);
    for (std::size_t i = 0; i < values.size(); ++i) {
      SCOPED_TRACE("range " + std::to_string(i));
      expect_same(memories[i]->bytes(), values[i], types[i]);
    }
  });
}

TEST(GradientKernels, WideningHasTheBitsOfTheHostForEveryNumber) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    for (const DataType type : kHalfTypes) {
      for (const std::size_t offset : kOffsets) {
        SCOPED_TRACE(std::string(name_of(type)) + ", offset " + std::to_string(offset));
        std::vector<std::uint16_t> halves(1U << 16);
        for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
        Bytes bytes(halves.size() * sizeof(std::uint16_t)), wide(halves.size() * sizeof(float));
        std::memcpy(bytes.data(), halves.data(), bytes.size());
        const OnDevice from(bytes, type, offset), to(wide, DataType::float32, 0);
        device->widen(from.range(), to.range(), nullptr);
        tensor::widen(halves.data(), reinterpret_cast<float*>(wide.data()), halves.size(), type);
        expect_same(to.bytes(), wide, DataType::float32);
      }
    }
  });
}

TEST(GradientKernels, NarrowingHasTheBitsOfTheHost) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    for (const DataType type : kHalfTypes) {
      for (const std::size_t count : kCounts) {
        for (const std::size_t offset : kOffsets) {
          SCOPED_TRACE(std::string(name_of(type)) + ", count " + std::to_string(count) + ", offset " +
                       std::to_string(offset));
          std::mt19937 random(static_cast<unsigned>(count));
          std::vector<std::uint32_t> words(count);  // any bits, so all kinds of numbers
          for (std::uint32_t& word : words) word = random();
          if (count > 2) words[0] = 0x477fefff, words[1] = 0x477ff000, words[2] = 0x33000000;  // around float16's ends
          Bytes wide(count * sizeof(float)), halves(count * sizeof(std::uint16_t));
          if (count > 0) std::memcpy(wide.data(), words.data(), wide.size());
          const OnDevice from(wide, DataType::float32, offset), to(halves, type, 0);
          device->narrow(from.range(), to.range(), nullptr);
          tensor::narrow(reinterpret_cast<const float*>(wide.data()), reinterpret_cast<std::uint16_t*>(halves.data()),
                         count, type);
          expect_same(to.bytes(), halves, type);
        }
      }
    }
  });
}

// Three steps of an optimizer on pieces of a few sizes, on the host and on the device.
void compare_updates(const std::variant<AdamWOptions, SgdOptions>& options, DataType type, bool has_m, bool has_v) {
  constexpr std::size_t kPieces[] = {1, 3, 1023, 100'003};
  constexpr float kScale = 0.125F;
  struct Values {
    Bytes p, g, m, v, rounded;
  };
  struct OnGpu {
    OnGpu(const Values& its, DataType type_of_g, std::size_t k)
        : p(its.p, DataType::float32, k),
          g(its.g, type_of_g, 2 * k),
          m(its.m, DataType::float32, 0),
          v(its.v, DataType::float32, 3),
          rounded(its.rounded, type_of_g, 0) {}
    OnDevice p, g, m, v, rounded;
  };
  static_cast<void>(take_place());
  std::vector<Values> host;
  std::deque<OnGpu> device;
  nccl_backend::kernels::PieceBatch batch;
  batch.type = type;
  const auto address = [](const OnDevice& its, bool is_there) { return is_there ? its.range().data : nullptr; };
  const bool has_rounded = type != DataType::float32;
  for (const std::size_t count : kPieces) {
    const auto k = static_cast<std::size_t>(batch.count);
    Values& its = host.emplace_back(Values{values_of(count, DataType::float32, true), values_of(count, type, true),
                                           Bytes(count * sizeof(float)), Bytes(count * sizeof(float)),
                                           Bytes(count * size_of(type))});
    const OnGpu& on_gpu = device.emplace_back(its, type, k);
    batch.pieces[batch.count++] = {
        static_cast<float*>(on_gpu.p.range().data),    on_gpu.g.range().data,
        static_cast<float*>(address(on_gpu.m, has_m)), static_cast<float*>(address(on_gpu.v, has_v)),
        address(on_gpu.rounded, has_rounded),          count};
  }
  for (std::size_t step = 1; step <= 3; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const auto launched = std::visit(
        [&](const auto& its) {
          return nccl_backend::kernels::update(batch, gradient_engine::numbers_of(its, step, kScale), nullptr);
        },
        options);
    ASSERT_EQ(launched, cudaSuccess);
    for (std::size_t i = 0; i < host.size(); ++i) {
      SCOPED_TRACE("a piece of " + std::to_string(kPieces[i]));
      Values& its = host[i];
      const auto floats = [](Bytes& bytes) { return reinterpret_cast<float*>(bytes.data()); };
      const tensor::OptimizedPiece piece{.type = type,
                                         .p = floats(its.p),
                                         .g = its.g.data(),
                                         .m = has_m ? floats(its.m) : nullptr,
                                         .v = has_v ? floats(its.v) : nullptr,
                                         .rounded = has_rounded ? its.rounded.data() : nullptr,
                                         .count = kPieces[i]};
      std::visit([&](const auto& each) { tensor::update(piece, gradient_engine::numbers_of(each, step, kScale)); },
                 options);
      expect_same(device[i].p.bytes(), its.p, DataType::float32);
      expect_same(device[i].m.bytes(), its.m, DataType::float32);
      expect_same(device[i].v.bytes(), its.v, DataType::float32);
      expect_same(device[i].rounded.bytes(), its.rounded, type);
    }
  }
}

constexpr DataType kOptimized[] = {DataType::float32, DataType::float16, DataType::bfloat16};

TEST(GradientKernels, AdamWHasTheBitsOfTheHost) {
  run_ranks(1, [](int) {
    for (const DataType type : kOptimized) {
      SCOPED_TRACE(name_of(type));
      compare_updates(AdamWOptions{}, type, true, true);
      compare_updates(AdamWOptions{.learning_rate = 0.3, .beta1 = 0, .weight_decay = 0}, type, true, true);
    }
  });
}

TEST(GradientKernels, SgdHasTheBitsOfTheHost) {
  run_ranks(1, [](int) {
    for (const DataType type : kOptimized) {
      SCOPED_TRACE(name_of(type));
      compare_updates(SgdOptions{.weight_decay = 0.01}, type, false, false);
      compare_updates(SgdOptions{.momentum = 0.9, .weight_decay = 0.01}, type, true, false);
      compare_updates(SgdOptions{.momentum = 0.9, .nesterov = true}, type, true, false);
    }
  });
}

// Around the ends of vectors, of blocks of 1 KiB and of what a block of threads takes; and nothing.
TEST(GradientKernels, HashesAreTheHostsWhereverTheRangesAre) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    const auto host = process_group::host_arithmetic();
    constexpr std::size_t kSizes[] = {0,     1,     15,    16,    17,     63,     64,     1'023,  1'024,
                                      1'025, 2'047, 2'048, 2'049, 16'383, 16'384, 16'385, 65'537, (40U << 20) + 3};
    std::vector<Bytes> values;
    std::vector<std::unique_ptr<OnDevice>> memories;
    std::vector<MemoryRange> ranges, expected;
    for (const std::size_t size : kSizes) {
      for (const std::size_t offset : {0, 1, 4, 8}) {
        if (size > 1U << 20 && offset > 1) continue;
        std::mt19937_64 random(size + offset);
        Bytes bytes(size);
        for (std::byte& each : bytes) each = static_cast<std::byte>(random());
        memories.push_back(std::make_unique<OnDevice>(bytes, DataType::uint8, offset));
        ranges.push_back(memories.back()->range());
        values.push_back(std::move(bytes));
      }
    }
    while (values.size() < 300) {  // more than one launch takes
      values.emplace_back(values.size(), std::byte{3});
      memories.push_back(std::make_unique<OnDevice>(values.back(), DataType::uint8, 0));
      ranges.push_back(memories.back()->range());
    }
    for (Bytes& each : values) expected.push_back(on_host(each, DataType::uint8));
    const auto hashes_by = [](DeviceArithmetic& its, DeviceArithmetic::Ranges all) {
      const auto copy = its.hash(all, nullptr);
      std::vector<std::uint64_t> hashes(all.size());
      EXPECT_EQ(copy->bytes().size(), hashes.size() * sizeof hashes[0]);
      std::memcpy(hashes.data(), copy->bytes().data(), copy->bytes().size());
      return hashes;
    };
    const auto hashes = hashes_by(*host, expected);
    for (int run = 0; run < 3; ++run) EXPECT_EQ(hashes_by(*device, ranges), hashes);
    EXPECT_EQ(std::set<std::uint64_t>(hashes.begin() + 4, hashes.end()).size(), hashes.size() - 4)
        << "all but those of nothing are different";
  });
}

TEST(GradientKernels, NoCallMakesTheHostWait) {
  run_ranks(1, [](int) {
    const auto device = on_device();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    Bytes values = values_of(10'000, DataType::float32, true);
    const OnDevice memory(values, DataType::float32, 0), halves(Bytes(20'000), DataType::bfloat16, 0);
    const MemoryRange range = memory.range();
    const DeviceArithmetic::Ranges all(&range, 1);
    const Array<std::int32_t> found({}, std::vector<std::int32_t>{77});
    auto* const flag = static_cast<std::int32_t*>(found.range().data);
    std::unique_ptr<HostCopy> norm, clipped, hashes;
    const auto call_each = [&] {
      device->scale(all, 0.5, stream);
      device->clamp(all, 1e10, stream);
      device->find_non_finite(all, flag, stream);
      device->scale_unless(flag, all, 0.5, stream);
      norm = device->norm(all, stream);
      clipped = device->clip_by_norm(all, 1, stream);
      hashes = device->hash(all, stream);
      static_cast<void>(device->norm(all, stream));  // nobody asks for it; its pinned memory is the next call's
      device->narrow(range, halves.range(), stream);
      device->widen(halves.range(), range, stream);
    };
    call_each();  // CUDA loads a kernel when it is used first, and may wait for the device then
    EXPECT_GT(value_of(norm), 1);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const unsigned long synchronised = host_synchronisations();
    Gate gate;
    gate.close(stream);
    call_each();
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    EXPECT_EQ(host_synchronisations(), synchronised);
    gate.open();
    EXPECT_EQ(value_of(norm), value_of(clipped));
    EXPECT_LT(value_of(norm), 1);
    EXPECT_NE(process_group::value_of<std::uint64_t>(*hashes), 0);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaStreamDestroy(stream);
  });
}

}  // namespace
}  // namespace ddp::nccl_test
