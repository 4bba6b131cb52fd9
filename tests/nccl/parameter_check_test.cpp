// Parameters on a GPU that have drifted apart, over the stand-in and on a GPU.
#include <ddp/parameter_check.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "tests/nccl/rank.hpp"

namespace ddp::nccl_test {
namespace {

using testing::run_ranks;
using ::testing::StartsWith;

constexpr std::size_t kParameters = 300;  // more than one launch takes

// Empty if there is none.
std::string difference(ProcessGroup& group, const std::vector<Parameter>& parameters) {
  try {
    check_parameters_equal(group, parameters);
    return "";
  } catch (const MismatchError& error) {
    return error.what();
  }
}

TEST(ParameterCheckOnAGpu, NamesTheFirstParameterThatDiffers) {
  for (const char* const backend : {"nccl", "cpu:cpu,cuda:nccl"}) {
    SCOPED_TRACE(backend);
    run_ranks(3, [&](int rank) {
      auto group = join(testing::kPatience, {.backend = backend});
      std::deque<Array<float>> memory;
      std::vector<Parameter> parameters;
      for (std::size_t p = 0; p < kParameters; ++p) {
        const std::size_t count = p * 7 % 1'000;
        const auto& values = memory.emplace_back(group.device(), std::vector<float>(count, static_cast<float>(p)));
        parameters.push_back({"p" + std::to_string(p), {static_cast<std::int64_t>(count)}, values.range()});
      }
      EXPECT_EQ(difference(group, parameters), "");
      std::vector<float> changed = memory[200].values();
      if (rank == 1) changed.back() += 1;
      memory[200].write(changed);
      EXPECT_THAT(difference(group, parameters), StartsWith("parameter p200 (index 200 of 300) is not the same on all "
                                                            "ranks: rank 1 differs from the other 2 ranks\n"));
      group.barrier();
    });
  }
}

// Whether a parameter is on a GPU or in host memory, its hash is the same.
TEST(ParameterCheckOnAGpu, ComparesParametersOfBothKindsOfMemory) {
  run_ranks(2, [](int rank) {
    auto group = join(testing::kPatience, {.backend = "cpu:cpu,cuda:nccl"});
    std::vector<float> numbers(5'000);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
    const Array<float> on_gpu(group.device(), numbers);
    const MemoryRange there = on_gpu.range(), here(numbers);
    const std::vector<Parameter> parameters{{"a", {5'000}, rank == 0 ? there : here},
                                            {"b", {5'000}, rank == 0 ? here : there}};
    EXPECT_EQ(difference(group, parameters), "");
    if (rank == 1) numbers[4'321] = -1;
    EXPECT_THAT(difference(group, parameters), StartsWith("parameter a (index 0 of 2) is not the same"));
    group.barrier();
  });
}

TEST(ParameterCheckOnAGpu, RefusesMemoryThatTheGroupDoesNotHave) {
  run_ranks(1, [](int) {
    auto group = join();
    float value = 0;
    const MemoryRange elsewhere(&value, 1, DataType::float32, {Device::Kind::cuda, 1'000});
    EXPECT_THROW(check_parameters_equal(group, {{"w", {1}, elsewhere}}), InvalidArgument);
  });
}

}  // namespace
}  // namespace ddp::nccl_test
