#include <ddp/parameter_check.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/rank_results.hpp"

namespace {

using ddp::Parameter;
using ddp::ProcessGroup;
using ddp::test::results_of_ranks;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

// What the check throws, and then whether the group still works; empty if it throws nothing.
std::string thrown_by_check(ProcessGroup& world, const std::vector<Parameter>& parameters) {
  try {
    ddp::check_parameters_equal(world, parameters);
    return "";
  } catch (const ddp::MismatchError& error) {
    world.barrier();
    return error.what();
  }
}

// 10,000 parameters, so that hashes go in several pieces.
class Model {
 public:
  Model() {
    for (std::size_t p = 0; p < kCount; ++p) values_.emplace_back(p % 37, static_cast<float>(p));
  }
  std::vector<float>& operator[](std::size_t index) { return values_[index]; }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> result;
    for (std::size_t p = 0; p < kCount; ++p) {
      result.push_back({"p" + std::to_string(p), {static_cast<std::int64_t>(values_[p].size())}, values_[p]});
    }
    return result;
  }

 private:
  static constexpr std::size_t kCount = 10'000;
  std::vector<std::vector<float>> values_;
};

TEST(ParameterCheck, EqualParametersPass) {
  for (int size = 1; size <= 4; ++size) {
    EXPECT_THAT(results_of_ranks(size,
                                 [](ProcessGroup world) {
                                   Model model;
                                   return thrown_by_check(world, model.parameters()) + thrown_by_check(world, {});
                                 }),
                Each(""));
  }
}

TEST(ParameterCheck, NamesTheFirstParameterAndTheRanksOfTheMinority) {
  const auto results = results_of_ranks(4, [](ProcessGroup world) {
    Model model;
    if (world.rank() == 2) model[9000][8] += 1;  // the last of its values
    if (world.rank() == 0) model[9999][0] += 1;
    return thrown_by_check(world, model.parameters());
  });
  EXPECT_THAT(results, Each(StartsWith("parameter p9000 (index 9000 of 10000) is not the same on all ranks: rank 2 "
                                       "differs from the other 3 ranks\nwhere: check_parameters_equal\n")));
}

TEST(ParameterCheck, SaysThatThereIsNoMajority) {
  const auto results = results_of_ranks(4, [](ProcessGroup world) {
    std::vector<double> values{static_cast<double>(world.rank() % 2)};
    return thrown_by_check(world, {{"w", {1}, values}});
  });
  EXPECT_THAT(results, Each(HasSubstr("no majority of the ranks has the same: ranks 0 and 2; ranks 1 and 3\n")));
}

TEST(ParameterCheck, FindsOtherBitsNamesTypesAndCounts) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    const bool is_last = world.rank() == 2;
    std::vector<float> zeros(2, is_last ? -0.0F : 0.0F);
    std::vector<float> same(2);
    const std::string all = thrown_by_check(world, {{"zeros", {2}, zeros}}) +
                            thrown_by_check(world, {{is_last ? "renamed" : "name", {2}, same}}) +
                            thrown_by_check(world, {{"size", {is_last ? 1 : 2}, {same.data(), is_last ? 1U : 2U}}}) +
                            thrown_by_check(world, std::vector<Parameter>(is_last ? 2 : 1, {"n", {2}, same}));
    return all;
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("parameter zeros (index 0 of 1) is not the same"),
                                  HasSubstr("parameter name (index 0 of 1) is not the same"),
                                  HasSubstr("parameter size (index 0 of 1) is not the same"),
                                  HasSubstr("the ranks have different numbers of parameters: rank 2 differs from"))));
}

// Blocks of a hash are added up in any order, so each has its place in it, and the rest of the last one is zeros.
TEST(ParameterCheck, FindsBlocksThatChangedPlacesAndZerosAtTheEnd) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    const bool is_last = world.rank() == 2;
    std::vector<float> values(1000);  // 3.9 blocks of 1 KiB
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const std::string same = thrown_by_check(world, {{"w", {1000}, values}});
    if (is_last) std::swap_ranges(values.begin(), values.begin() + 256, values.begin() + 512);
    const std::string swapped = thrown_by_check(world, {{"swapped", {1000}, values}});
    std::vector<float> zeros(is_last ? 1001 : 1000);
    return same + swapped + thrown_by_check(world, {{"longer", {-1}, zeros}});
  });
  EXPECT_THAT(results, Each(AllOf(StartsWith("parameter swapped (index 0 of 1) is not the same"),
                                  HasSubstr("parameter longer (index 0 of 1) is not the same"))));
}

TEST(ParameterCheck, RefusesMemoryOfAGpuThatTheGroupDoesNotHave) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    float value = 0;
    const ddp::MemoryRange on_gpu(&value, 1, ddp::DataType::float32, {ddp::Device::Kind::cuda, 0});
    try {
      ddp::check_parameters_equal(world, {{"w", {1}, on_gpu}});
    } catch (const ddp::InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  EXPECT_THAT(results, Each(StartsWith("parameter w is not in memory of this group\n")));
}

}  // namespace
