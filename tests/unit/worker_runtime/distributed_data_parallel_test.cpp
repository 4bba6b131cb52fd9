#include "ddp/distributed_data_parallel.hpp"

#include "ddp/error.hpp"
#include "ddp/gradient_compression.hpp"
#include "ddp/gradient_scaling.hpp"
#include "tests/no_threads.hpp"
#include "tests/sanitized.hpp"
#include "tests/unit/worker_runtime/rank_results.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using ddp::DistributedDataParallel;
using ddp::DistributedDataParallelOptions;
using ddp::GradientError;
using ddp::InvalidArgument;
using ddp::MemoryRange;
using ddp::MismatchError;
using ddp::Parameter;
using ddp::ProcessGroup;
using ddp::Sync;
using ddp::test::results_of_ranks;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Three parameters, and a bucket for each where the caps are 0: {2}, {1}, {0}.
struct Model {
  std::vector<float> weight = std::vector<float>(6);
  std::vector<float> bias = std::vector<float>(3);
  std::vector<double> scale = std::vector<double>(2);

  std::vector<Parameter> parameters() {
    return {{"body.weight", {2, 3}, weight}, {"head.bias", {3}, bias}, {"scale", {2}, scale}};
  }
};

DistributedDataParallelOptions one_bucket_each() {
  DistributedDataParallelOptions options;
  options.first_bucket_cap_bytes = 0;
  options.bucket_cap_bytes = 0;
  return options;
}

void add(const MemoryRange& gradient, double value) {
  for (std::size_t i = 0; i < gradient.count; ++i) {
    if (gradient.type == ddp::DataType::float64) {
      static_cast<double*>(gradient.data)[i] += value;
    } else {
      static_cast<float*>(gradient.data)[i] += static_cast<float>(value);
    }
  }
}

// The gradient's elements with blanks between them; all tests use numbers that a float holds exactly.
std::string text_of(const MemoryRange& gradient) {
  std::ostringstream text;
  for (std::size_t i = 0; i < gradient.count; ++i) {
    text << (i > 0 ? " " : "")
         << (gradient.type == ddp::DataType::float64 ? static_cast<double*>(gradient.data)[i]
                                                     : static_cast<double>(static_cast<float*>(gradient.data)[i]));
  }
  return text.str();
}

template <class Error, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// One step in which every parameter of this rank's list is used.
void run_step(DistributedDataParallel& model, const std::vector<std::size_t>& used, double gradient) {
  auto step = model.begin_step();
  for (const std::size_t parameter : used) {
    add(model.gradient(parameter), gradient);
    step.ready(parameter);
  }
  step.finish();
}

TEST(DistributedDataParallel, GivesEveryRankTheValuesOfRank0) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Model values;
    std::iota(values.weight.begin(), values.weight.end(), 10.0F * static_cast<float>(world.rank()));
    values.scale = {0.5 + world.rank(), 7};
    DistributedDataParallel model(world, values.parameters());
    return text_of(values.weight) + "|" + text_of(values.scale);
  });
  EXPECT_THAT(results, Each("0 1 2 3 4 5|0.5 7"));
}

TEST(DistributedDataParallel, AveragesGradientsOverRanks) {
  for (const auto& options : {DistributedDataParallelOptions{}, one_bucket_each()}) {
    const auto results = results_of_ranks(4, [&](ProcessGroup world) {
      Model values;
      DistributedDataParallel model(world, values.parameters(), options);
      std::string text = std::to_string(model.bucket_count());
      for (int i = 1; i <= 3; ++i) {
        run_step(model, {2, 1, 0}, i * world.rank());  // mean of 0, 1, 2, 3 is 1.5
        for (std::size_t p = 0; p < 3; ++p) text += "|" + text_of(model.gradient(p));
      }
      return text;
    });
    // Without small caps: one bucket for each data type.
    const std::string buckets = options.bucket_cap_bytes == 0 ? "3" : "2";
    EXPECT_THAT(results, Each(buckets + "|1.5 1.5 1.5 1.5 1.5 1.5|1.5 1.5 1.5|1.5 1.5|3 3 3 3 3 3|3 3 3|3 3"
                                        "|4.5 4.5 4.5 4.5 4.5 4.5|4.5 4.5 4.5|4.5 4.5"));
  }
}

TEST(DistributedDataParallel, ReadinessMayDifferBetweenRanks) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), one_bucket_each());
    const std::vector<std::vector<std::size_t>> orders = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    auto step = model.begin_step();
    for (const std::size_t p : orders[static_cast<std::size_t>(world.rank())]) {
      add(model.gradient(p), 3.0 * static_cast<double>(p + 1) * world.rank());
      step.ready(p);
    }
    step.finish();
    return text_of(model.gradient(0)) + "|" + text_of(model.gradient(1)) + "|" + text_of(model.gradient(2));
  });
  EXPECT_THAT(results, Each("3 3 3 3 3 3|6 6 6|9 9"));
}

TEST(DistributedDataParallel, UnusedParametersAreNamedWithTheirRanksOnEveryRank) {
  const auto results = results_of_ranks(4, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), one_bucket_each());
    const std::vector<std::size_t> used =
        world.rank() % 2 == 1 ? std::vector<std::size_t>{2, 0} : std::vector<std::size_t>{2, 1, 0};
    return message_of<GradientError>([&] { run_step(model, used, 1); });
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("parameter head.bias got no gradient on ranks 1 and 3"),
                                  Not(HasSubstr("body.weight")), HasSubstr("try: "))));
}

TEST(DistributedDataParallel, GoesOnAfterAnUnusedParameter) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    const auto used = world.rank() == 0 ? std::vector<std::size_t>{0, 1, 2} : std::vector<std::size_t>{0};
    const std::string message = message_of<GradientError>([&] { run_step(model, used, 5); });
    run_step(model, {0, 1, 2}, 1 + world.rank());
    return message.substr(0, message.find('\n')) + "|" + text_of(model.gradient(1)) + "|" + text_of(model.gradient(2));
  });
  EXPECT_THAT(results, Each("parameter head.bias got no gradient on rank 1; parameter scale got no gradient on rank 1"
                            "|1.5 1.5 1.5|1.5 1.5"));
}

TEST(DistributedDataParallel, UnusedParametersCountAsZerosIfTheOptionsSaySo) {
  for (const auto unused : {ddp::Unused::zeros, ddp::Unused::keep}) {
    const auto results = results_of_ranks(2, [&](ProcessGroup world) {
      Model values;
      DistributedDataParallelOptions options = one_bucket_each();
      options.unused = unused;
      DistributedDataParallel model(world, values.parameters(), options);
      std::string text;
      const std::vector<std::vector<std::size_t>> steps[] = {{{2, 0}, {2}}, {{1, 2}, {0, 2}}};
      for (const auto& used : steps) {
        add(model.gradient(1), 50);  // whatever is left there does not count
        run_step(model, used[static_cast<std::size_t>(world.rank())], 4);
        for (std::size_t p = 0; p < 3; ++p) {
          text += text_of(model.gradient(p)).substr(0, 1);
          if (unused == ddp::Unused::keep) text += model.is_unused(p) ? "!" : ".";
        }
        text += "|";
      }
      return text;
    });
    EXPECT_THAT(results, Each(unused == ddp::Unused::keep ? "2.0!4.|2.2.4.|" : "204|224|"));
  }
}

// Other bits on each rank, a NaN with a payload among them.
std::vector<std::uint32_t> some_bits(int rank) {
  const auto own = static_cast<std::uint32_t>(rank);
  return {0x7fc01230U + own, 0x3f800000U + own, 0x80000000U};
}

void write_bits(const MemoryRange& gradient, const std::vector<std::uint32_t>& bits) {
  std::memcpy(gradient.data, bits.data(), gradient.bytes());
}

bool has_bits(const MemoryRange& gradient, const std::vector<std::uint32_t>& bits) {
  return std::memcmp(gradient.data, bits.data(), gradient.bytes()) == 0;
}

TEST(DistributedDataParallel, WhatNoRankUsesHasNoPartInNormAndScaling) {
  const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
    std::vector<float> weight(2), bias(3);
    DistributedDataParallelOptions options;
    options.unused = ddp::Unused::keep;
    options.zero_gradients = false;
    DistributedDataParallel model(world, {{"weight", {2}, weight}, {"bias", {3}, bias}}, options);
    std::memset(model.gradient(0).data, 0, model.gradient(0).bytes());
    write_bits(model.gradient(1), some_bits(world.rank()));  // NaN, and others on the other rank
    run_step(model, {0}, 4);
    const double norm = ddp::clip_gradients_by_norm(model, 1).value();
    ddp::clip_gradients_by_value(model, 0.5);
    ddp::LossScaler scaler(world, {.scale = 2});
    const bool is_good = scaler.unscale(model);
    if (!has_bits(model.gradient(1), some_bits(world.rank()))) return "other bits";
    return std::to_string(norm) + (is_good ? " good " : " bad ") + text_of(model.gradient(0));
  });
  EXPECT_THAT(results, Each("5.656854 good 0.25 0.25"));
}

TEST(DistributedDataParallel, AGradientThatNoRankUsesKeepsItsBits) {
  const auto none = [] { return std::shared_ptr<ddp::CommunicationHook>(); };
  const auto compressed = [] { return ddp::compressed_all_reduce(); };
  for (const auto& hook : {std::function<std::shared_ptr<ddp::CommunicationHook>()>(none), {compressed}}) {
    const auto results = results_of_ranks(2, [&](ProcessGroup world) -> std::string {
      std::vector<float> weight(6), bias(3), more(2);
      DistributedDataParallelOptions options;  // one bucket
      options.unused = ddp::Unused::keep;
      options.zero_gradients = false;
      options.communication_hook = hook();
      DistributedDataParallel model(
          world, {{"body.weight", {6}, weight}, {"head.bias", {3}, bias}, {"more", {2}, more}}, options);
      const auto clear = [&](std::size_t p) { std::memset(model.gradient(p).data, 0, model.gradient(p).bytes()); };
      for (int i = 0; i < 2; ++i) {
        for (const std::size_t p : {0, 2}) clear(p);
        write_bits(model.gradient(1), some_bits(world.rank() + i));
        run_step(model, {2, 0}, 4);
        if (!model.is_unused(1) || !has_bits(model.gradient(1), some_bits(world.rank() + i))) return "other bits";
        if (text_of(model.gradient(2)) != "4 4") return text_of(model.gradient(2));
      }
      for (const std::size_t p : {0, 2}) clear(p);
      if (world.rank() == 0) clear(1);
      run_step(model, world.rank() == 0 ? std::vector<std::size_t>{2, 1, 0} : std::vector<std::size_t>{2, 0}, 4);
      return text_of(model.gradient(1));
    });
    EXPECT_THAT(results, Each("2 2 2")) << "zeros count for the rank that did not use it";
  }
}

TEST(DistributedDataParallel, AJoinedRankKeepsTheBitsOfAGradientThatNoRankUses) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) -> std::string {
    Model values;
    DistributedDataParallelOptions options;
    options.unused = ddp::Unused::keep;
    options.zero_gradients = false;
    options.uneven_inputs = ddp::UnevenInputs::divide_by_all;
    DistributedDataParallel model(world, values.parameters(), options);
    write_bits(model.gradient(1), some_bits(world.rank()));
    if (world.rank() == 0) run_step(model, {2, 0}, 4);
    std::string text;
    model.join([&] { text += text_of(model.gradient(2)); });
    return text + (has_bits(model.gradient(1), some_bits(world.rank())) ? "" : "other bits");
  });
  EXPECT_THAT(results, ElementsAre("", "2 2"));
}

TEST(DistributedDataParallel, AStaticGraphMayUseAParameterSeveralTimes) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallelOptions options = one_bucket_each();
    options.static_graph = true;
    DistributedDataParallel model(world, values.parameters(), options);
    std::string text;
    for (int i = 0; i < 3; ++i) {
      run_step(model, {2, 1, 2, 0, 2}, 1 + world.rank());
      text += text_of(model.gradient(2)) + "|" + text_of(model.gradient(1)) + "|";
    }
    const auto other =
        world.rank() == 1 ? std::vector<std::size_t>{2, 1, 0, 2} : std::vector<std::size_t>{2, 1, 2, 0, 2};
    text += message_of<GradientError>([&] { run_step(model, other, 1); });
    run_step(model, {2, 1, 2, 0, 2}, 2);
    return text + text_of(model.gradient(2));
  });
  const std::string steps = "4.5 4.5|1.5 1.5 1.5|4.5 4.5|1.5 1.5 1.5|4.5 4.5|1.5 1.5 1.5|";
  EXPECT_THAT(results, Each(AllOf(testing::StartsWith(steps + "on rank 1 parameter scale became ready 2 times, but 3 "
                                                              "times in the step that fixed the static graph\n"),
                                  testing::EndsWith("6 6"))));
}

TEST(DistributedDataParallel, ParametersFreezeAndThawBetweenSteps) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), one_bucket_each());
    std::string text;
    const auto train = [&](const std::vector<std::size_t>& used) {
      run_step(model, used, 1 + 2 * world.rank());
      for (std::size_t p = 0; p < 3; ++p) text += text_of(model.gradient(p)).substr(0, 1);
      text += "|";
    };
    train({2, 1, 0});
    model.set_frozen(1, true);
    for (int i = 0; i < 3; ++i) train({2, 0});
    model.set_frozen(1, false);
    model.set_frozen(0, true);
    for (int i = 0; i < 2; ++i) train({2, 1});
    model.set_frozen(0, world.rank() == 1);
    const auto used = world.rank() == 1 ? std::vector<std::size_t>{2, 1} : std::vector<std::size_t>{2, 1, 0};
    const std::string message = message_of<MismatchError>([&] { run_step(model, used, 1); });
    text += message.substr(0, message.find('\n')) + "|";
    model.set_frozen(0, false);
    for (int i = 0; i < 2; ++i) train({2, 1, 0});
    return text;
  });
  EXPECT_THAT(results, Each("222|202|202|202|022|022|parameter body.weight is frozen on rank 1, but not on rank 0|"
                            "222|222|"));
}

// Trains for as many steps as this rank has inputs, and then joins. The result: each step's gradient of head.bias.
std::string train_and_join(ProcessGroup world, const DistributedDataParallelOptions& options, int inputs) {
  Model values;
  DistributedDataParallel model(world, values.parameters(), options);
  std::string text;
  for (int epoch = 0; epoch < 2; ++epoch) {
    bool is_stopped = false;
    for (int i = 0; i < inputs && !is_stopped; ++i) {
      auto micro_batch = model.begin_step(Sync::off);
      add(model.gradient(1), 1);
      micro_batch.finish();
      auto step = model.begin_step();
      for (const std::size_t p : {2, 1, 0}) add(model.gradient(p), 5), step.ready(p);
      const int active = step.finish();
      is_stopped = options.uneven_inputs == ddp::UnevenInputs::stop && active < world.size();
      text += is_stopped ? "stop " : text_of(model.gradient(1)).substr(0, 1) + " ";
    }
    if (!is_stopped) model.join([&] { text += text_of(model.gradient(1)).substr(0, 1) + " "; });
    text += "|";
  }
  return text;
}

TEST(DistributedDataParallel, ARankWithoutInputsTakesPartInTheStepsOfTheOthers) {
  const struct {
    ddp::UnevenInputs option;
    ddp::RebuildBuckets rebuild;
    std::vector<std::string> want;
  } cases[] = {
      {ddp::UnevenInputs::divide_by_all, ddp::RebuildBuckets::off, {"6 4 4 2 |6 4 4 2 |"}},
      {ddp::UnevenInputs::divide_by_active, ddp::RebuildBuckets::automatic, {"6 6 6 6 |6 6 6 6 |"}},
      {ddp::UnevenInputs::stop, ddp::RebuildBuckets::off, {"6 |6 |", "6 stop |6 stop |", "6 stop |6 stop |"}},
  };
  for (const auto& c : cases) {
    const auto results = results_of_ranks(3, [&](ProcessGroup world) {
      DistributedDataParallelOptions options = one_bucket_each();
      options.uneven_inputs = c.option;
      options.rebuild_buckets = c.rebuild;
      options.unused = ddp::Unused::keep;
      return train_and_join(world, options, world.rank() == 0 ? 1 : world.rank() == 1 ? 4 : 3);
    });
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(results[rank], c.want[rank % c.want.size()]);
  }
}

TEST(DistributedDataParallel, BuffersAreBroadcastOrAveragedOrLeftAlone) {
  using ddp::BufferSync;
  for (const auto sync : {BufferSync::none, BufferSync::broadcast, BufferSync::average}) {
    const auto results = results_of_ranks(3, [sync](ProcessGroup world) {
      Model values;
      std::vector<double> mean{7.0 + world.rank(), 0};
      std::vector<std::int64_t> count{7 + world.rank()};
      DistributedDataParallelOptions options;
      options.buffers = {{"norm.mean", {2}, mean}, {"norm.count", {}, count}, {"norm.none", {0}, MemoryRange{}}};
      options.buffer_sync = sync;
      DistributedDataParallel model(world, values.parameters(), options);
      const auto text = [&] { return text_of(mean) + " " + std::to_string(count[0]) + "|"; };
      std::string all = text();
      mean = {7.0 + world.rank(), 1.0 * world.rank()};
      model.begin_step(Sync::off).finish();
      all += text();
      auto step = model.begin_step();
      all += text();
      for (const std::size_t p : {2, 1, 0}) step.ready(p);
      step.finish();
      return all + text();
    });
    for (int rank = 0; rank < 3; ++rank) {
      const std::string own = std::to_string(7 + rank) + " " + std::to_string(rank) + " 7|";
      const std::string in_step = sync == BufferSync::broadcast ? "7 0 7|" : own;
      const std::string after = sync == BufferSync::average ? "8 1 7|" : in_step;
      EXPECT_EQ(results[static_cast<std::size_t>(rank)], "7 0 7|" + own + in_step + after);
    }
  }
}

TEST(DistributedDataParallel, AnAutomaticBucketCapIsTheSameOnAllRanksAfterAWhile) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<std::vector<float>> values(3, std::vector<float>(1 << 20));
    std::vector<Parameter> parameters;
    for (std::size_t p = 0; p < 3; ++p) parameters.push_back({std::to_string(p), {1 << 20}, values[p]});
    DistributedDataParallelOptions options;
    options.bucket_cap_bytes = ddp::kAutomaticBucketCap;
    std::string refused = message_of<InvalidArgument>([&] { DistributedDataParallel(world, parameters, options); });
    options.rebuild_buckets = ddp::RebuildBuckets::automatic;
    DistributedDataParallel model(world, parameters, options);
    std::vector<std::string> layouts;
    for (int i = 0; i < 30; ++i) {
      run_step(model, {2, 1, 0}, 1 + 2 * world.rank());
      if (*model.gradient<float>(1).data() != 2) return std::string("a wrong mean in step ") + std::to_string(i);
      if (layouts.empty() || layouts.back() != model.describe_buckets()) layouts.push_back(model.describe_buckets());
    }
    model.rebuild_buckets();
    if (model.describe_buckets() != layouts.back()) return std::string("the choice is lost");
    return refused.substr(0, refused.find('\n')) + "|" + (layouts.size() > 2 ? "" : "nothing was tried") + "|" +
           layouts.back();
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_THAT(results[0],
              testing::StartsWith("an automatic bucket cap without automatic rebuilds||bucket 0: float32, "));
}

TEST(DistributedDataParallel, JoinIsRefusedWithoutTheOption) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    return message_of<InvalidArgument>([&] { model.join(); });
  });
  EXPECT_THAT(results, Each(HasSubstr("the option uneven_inputs")));
}

TEST(DistributedDataParallel, AStepWithoutAnyGradientIsNoHang) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    return message_of<GradientError>([&] { run_step(model, {}, 0); });
  });
  EXPECT_THAT(results, Each(HasSubstr("parameter body.weight got no gradient on any rank")));
}

TEST(DistributedDataParallel, AccumulationGivesWhatOneLargeBatchGives) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), one_bucket_each());
    const double mine = 1 + world.rank();
    const auto accumulate = [&](Sync sync, const std::vector<std::size_t>& used, double gradient) {
      auto step = model.begin_step(sync);
      for (const std::size_t p : used) {
        add(model.gradient(p), gradient * mine);
        step.ready(p);
      }
      step.finish();
    };
    std::string text;
    for (int window = 0; window < 2; ++window) {  // the second must not see what the first left
      accumulate(Sync::off, {2, 1, 0}, 1);
      text += text_of(model.gradient(1)) + "|";  // this rank's own sum
      accumulate(Sync::off, {1}, 2);
      accumulate(Sync::on, {0}, 4);  // the others were used earlier in the window: they are not missing
    }
    return text + text_of(model.gradient(0)) + "|" + text_of(model.gradient(1)) + "|" + text_of(model.gradient(2));
  });
  // Per unit of `mine`: 1 + 4, 1 + 2 and 1; the mean of `mine` is 1.5.
  const std::string means = "7.5 7.5 7.5 7.5 7.5 7.5|4.5 4.5 4.5|1.5 1.5";
  EXPECT_THAT(results, ElementsAre("1 1 1|1 1 1|" + means, "2 2 2|2 2 2|" + means));
}

TEST(DistributedDataParallel, AParameterUnusedInAWholeWindowIsNamed) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    return message_of<GradientError>([&] {
      auto first = model.begin_step(Sync::off);
      first.ready(0);
      if (world.rank() == 0) first.ready(1);
      first.finish();
      run_step(model, {2}, 1);
    });
  });
  EXPECT_THAT(results,
              Each(AllOf(HasSubstr("parameter head.bias got no gradient on rank 1"), Not(HasSubstr("scale")))));
}

TEST(DistributedDataParallel, AParameterReadyTwiceIsRefusedByName) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    auto step = model.begin_step();
    step.ready(1);
    std::string text = message_of<GradientError>([&] { step.ready(1); });
    text += message_of<InvalidArgument>([&] { step.ready(3); });
    text += message_of<InvalidArgument>([&] { (void)model.gradient(3); });
    text += message_of<GradientError>([&] { static_cast<void>(model.begin_step()); });
    for (const std::size_t p : {0, 2}) step.ready(p);
    step.finish();  // the step outlives these mistakes
    return text;
  });
  EXPECT_THAT(results,
              Each(AllOf(HasSubstr("parameter head.bias (index 1) is ready for the second time"),
                         HasSubstr("parameter 3 of a model with 3\nwhere: DistributedDataParallel::Step::ready\n"),
                         HasSubstr("parameter 3 of a model with 3\nwhere: DistributedDataParallel::gradient\n"),
                         HasSubstr("is unfinished"))));
}

TEST(DistributedDataParallel, WithoutZeroingBackwardOverwrites) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallelOptions options;
    options.zero_gradients = false;
    DistributedDataParallel model(world, values.parameters(), options);
    run_step(model, {0, 1, 2}, 2);
    run_step(model, {0, 1, 2}, 2);  // adds to what the first step left
    return text_of(model.gradient(1));
  });
  EXPECT_THAT(results, Each("4 4 4"));
}

TEST(DistributedDataParallel, ModelsThatDifferArePrintedWithBothSidesOnEveryRank) {
  const struct {
    const char* what;
    void (*change)(std::vector<Parameter>& parameters, DistributedDataParallelOptions& options);
    std::vector<const char*> want;
  } cases[] = {
      {"shape",
       [](auto& p, auto&) { std::swap(p[0].shape[0], p[0].shape[1]); },
       {"ranks 0 and 2 have parameter 0 body.weight float32 [2, 3];",
        "rank 1 has parameter 0 body.weight float32 [3, 2]\n"}},
      {"name",
       [](auto& p, auto&) { p[1].name = "head.offset"; },
       {"ranks 0 and 2 have parameter 1 head.bias float32 [3]; rank 1 has parameter 1 head.offset float32 [3]"}},
      {"order",
       [](auto& p, auto&) { std::swap(p[1], p[2]); },
       {"ranks 0 and 2 have parameter 1 head.bias float32 [3]; rank 1 has parameter 1 scale float64 [2]"}},
      {"count",
       [](auto& p, auto&) { p.pop_back(); },
       {"ranks 0 and 2 have parameter 2 scale float64 [2]; rank 1 has no more than 2 parameters"}},
      {"options",
       [](auto&, auto& o) { o.bucket_cap_bytes = 1; },
       {"bucket_cap_bytes = 26214400", "bucket_cap_bytes = 1,"}},
      {"buffers",
       [](auto& p, auto& o) {
         o.buffers = {{"norm.mean", {2}, p[2].values}};
       },
       {"rank 1 has buffer norm.mean float64 [2]"}},
      {"refused",
       [](auto& p, auto&) { p[1].name = "scale"; },
       {"rank 1 has a model that is refused: two parameters are named scale"}},
      {"address",
       [](auto& p, auto&) { p[1].values.data = static_cast<char*>(p[1].values.data) + 2; },
       {"rank 1 has a model that is refused: parameter head.bias is not aligned to float32"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto results = results_of_ranks(3, [&](ProcessGroup world) {
      Model values;
      auto parameters = values.parameters();
      DistributedDataParallelOptions options;
      if (world.rank() == 1) c.change(parameters, options);
      std::string text;
      try {
        DistributedDataParallel model(world, parameters, options);
      } catch (const MismatchError& error) {
        text = error.what();
      } catch (const InvalidArgument& error) {
        text = std::string("rank 1 has a model that is refused: ") + error.what();
      }
      world.barrier();  // the group is as good as before
      return text;
    });
    for (const char* want : c.want) EXPECT_THAT(results, Each(HasSubstr(want)));
  }
}

TEST(DistributedDataParallel, LongLinesAreShownWhereTheyDiffer) {
  for (const std::size_t same_bytes : {0, 500, 1000, 1020, 1500, 5000}) {
    SCOPED_TRACE(std::to_string(same_bytes) + " bytes of the name are the same");
    const auto results = results_of_ranks(2, [&](ProcessGroup world) {
      std::vector<float> values(6);
      const std::string name =
          std::string(same_bytes, 'x') + (world.rank() == 0 ? "zero" : "one") + std::string(2000, 'y');
      return message_of<MismatchError>([&] { DistributedDataParallel model(world, {{name, {6}, values}}); });
    });
    EXPECT_THAT(results, Each(AllOf(HasSubstr("zeroyyy"), HasSubstr("oneyyy"), HasSubstr("rank 0 has "),
                                    HasSubstr("; rank 1 has "))));
    EXPECT_LT(results[0].size(), 2500U) << "more than a person reads";
  }
}

TEST(DistributedDataParallel, RefusesWhatNoRankCanTrain) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    std::vector<float> six(6);
    std::vector<std::int64_t> integers(6);
    const MemoryRange on_gpu(six.data(), 6, ddp::DataType::float32, {ddp::Device::Kind::cuda, 0});
    const std::vector<std::vector<Parameter>> cases = {
        {},
        {{"", {6}, six}},
        {{"a", {6}, six}, {"a", {6}, six}},
        {{"a", {7}, six}},
        {{"a", {-1, -6}, six}},
        {{"a", {std::int64_t{1} << 62, 8, 3}, six}},
        {{"a", {6}, integers}},
        {{"a", {6}, on_gpu}},
        {{"a", {6}, MemoryRange(static_cast<float*>(nullptr), 6)}},
        {{"a",
          {2},
          MemoryRange(six.data() + 1 + reinterpret_cast<std::uintptr_t>(six.data()) / 4 % 2, 2,
                      ddp::DataType::float64)}},
    };
    std::string text;
    for (const auto& parameters : cases) {
      const std::string message =
          message_of<InvalidArgument>([&] { DistributedDataParallel model(world, parameters); });
      text += message.substr(0, message.find('\n')) + "\n";
    }
    return text;
  });
  EXPECT_EQ(results[0],
            "a model without parameters\n"
            "a parameter without a name\n"
            "two parameters are named a\n"
            "parameter a has shape [7] but 6 values\n"
            "parameter a has shape [-1, -6] but 6 values\n"
            "parameter a has shape [4611686018427387904, 8, 3] but 6 values\n"
            "parameter a is of type int64, which has no gradient\n"
            "parameter a is not in the memory of this group's device\n"
            "parameter a has no memory\n"
            "parameter a is not aligned to float64\n");
}

TEST(DistributedDataParallel, AnEmptyParameterAndAScalarAreParametersToo) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> none;
    std::vector<float> one = {1};
    DistributedDataParallel model(world, {{"none", {0, 3}, none}, {"one", {}, one}}, one_bucket_each());
    auto step = model.begin_step();
    add(model.gradient(1), 2 * world.rank());
    step.ready(1);
    step.ready(0);
    step.finish();
    return text_of(model.gradient(0)) + "|" + text_of(model.gradient(1));
  });
  EXPECT_THAT(results, Each("|1"));
}

TEST(DistributedDataParallel, CancelledOnAllRanksTheNextStepStartsAnew) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters(), one_bucket_each());
    const std::vector<std::vector<std::size_t>> used = {{2, 1, 0}, {2}, {}};  // as many buckets are launched
    {
      auto step = model.begin_step();
      for (const std::size_t p : used[static_cast<std::size_t>(world.rank())]) {
        add(model.gradient(p), 5);
        step.ready(p);
      }
      step.cancel();
      step.cancel();  // a step that is over
    }
    world.barrier();  // the group is in step without the next step
    run_step(model, {2, 1, 0}, world.rank());
    return text_of(model.gradient(0)) + "|" + text_of(model.gradient(2));
  });
  EXPECT_THAT(results, Each("1 1 1 1 1 1|1 1"));
}

TEST(DistributedDataParallel, CancelledOnOneRankTheOthersAreToldByName) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    std::string text = message_of<GradientError>([&] {
      auto step = model.begin_step();
      step.ready(1);
      if (world.rank() == 1) return step.cancel();
      if (world.rank() == 0) step.ready(2);  // and leaves a parameter unused, which is no news then
      step.finish();
    });
    text = text.substr(0, text.find('\n'));
    run_step(model, {2, 1, 0}, world.rank());
    return text + "|" + text_of(model.gradient(1));
  });
  const std::string told = "rank 1 cancelled the step|1 1 1";
  EXPECT_THAT(results, ElementsAre(told, "no error|1 1 1", told));
}

TEST(DistributedDataParallel, AnExceptionInBackwardLeavesTheEngineUsable) {
  const struct {
    const char* what;
    bool on_all;
  } cases[] = {{"on all ranks", true}, {"on one rank", false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const auto results = results_of_ranks(2, [&](ProcessGroup world) {
      Model values;
      DistributedDataParallel model(world, values.parameters(), one_bucket_each());
      std::string text = message_of<ddp::Error>([&] {
        auto step = model.begin_step();
        step.ready(world.rank() == 0 ? 2 : 0);
        if (c.on_all || world.rank() == 0) throw ddp::Error("no memory for backward");
        step.finish();
      });
      run_step(model, {2, 1, 0}, 1 + 2 * world.rank());
      return text.substr(0, text.find('\n')) + "|" + text_of(model.gradient(1));
    });
    EXPECT_EQ(results[0], "no memory for backward|2 2 2");
    EXPECT_EQ(results[1], std::string(c.on_all ? "no memory for backward" : "rank 0 cancelled the step") + "|2 2 2");
  }
}

TEST(DistributedDataParallel, ACancelledMicroBatchTakesItsWindowAlong) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    const auto accumulate = [&](double gradient) {
      auto step = model.begin_step(Sync::off);
      for (const std::size_t p : {0, 1, 2}) add(model.gradient(p), gradient), step.ready(p);
      return step;
    };
    accumulate(100).finish();
    accumulate(10).cancel();
    accumulate(1).finish();
    run_step(model, {0, 1, 2}, world.rank());
    return text_of(model.gradient(1));
  });
  EXPECT_THAT(results, Each("1.5 1.5 1.5"));
}

TEST(DistributedDataParallel, AStepThatIsOverIsRefused) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    auto first = model.begin_step();
    for (const std::size_t p : {0, 1, 2}) first.ready(p);
    first.finish();
    auto second = model.begin_step();
    std::string text = message_of<GradientError>([&] { first.ready(0); });
    text += message_of<GradientError>([&] { first.finish(); });
    first.cancel();
    for (const std::size_t p : {0, 1, 2}) second.ready(p);
    second.finish();
    return text;
  });
  EXPECT_THAT(results, Each(AllOf(HasSubstr("ready() is called on a Step that is over"),
                                  HasSubstr("finish() is called on a Step that is over"))));
}

TEST(DistributedDataParallel, BucketsAreRebuiltInTheOrderOfReadinessOnRank0) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    std::vector<float> all(10);
    std::vector<Parameter> parameters;
    for (std::size_t p = 0; p < 5; ++p) parameters.push_back({"p" + std::to_string(p), {2}, {&all[2 * p], 2}});
    DistributedDataParallelOptions options;
    options.first_bucket_cap_bytes = options.bucket_cap_bytes = 16;  // two parameters
    DistributedDataParallel model(world, parameters, options);
    const auto order_in_memory = [&] {
      std::vector<std::size_t> order = {0, 1, 2, 3, 4};
      std::sort(order.begin(), order.end(),
                [&](std::size_t a, std::size_t b) { return model.gradient(a).data < model.gradient(b).data; });
      std::string text;
      for (const std::size_t p : order) text += std::to_string(p);
      return text;
    };
    std::string text = order_in_memory();
    run_step(model,
             world.rank() == 0 ? std::vector<std::size_t>{3, 0, 4, 1, 2} : std::vector<std::size_t>{0, 1, 2, 3, 4}, 1);
    model.rebuild_buckets();
    text += "|" + order_in_memory() + "|" + text_of(model.gradient(3)) + "|" + std::to_string(model.bucket_count());
    for (int i = 0; i < 2; ++i) run_step(model, {4, 3, 2, 1, 0}, 4 * world.rank());
    for (std::size_t p = 0; p < 5; ++p) text += "|" + text_of(model.gradient(p));
    auto step = model.begin_step(Sync::off);
    text += "|" + message_of<GradientError>([&] { model.rebuild_buckets(); }).substr(0, 27);
    step.cancel();
    return text;
  });
  EXPECT_THAT(results, Each("43210|30412|0 0|3|2 2|2 2|2 2|2 2|2 2|rebuild_buckets() is called"));
}

TEST(DistributedDataParallel, BucketsAreRebuiltOnceByThemselvesAndLoseNoAccumulatedGradient) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    DistributedDataParallelOptions options = one_bucket_each();
    options.rebuild_buckets = ddp::RebuildBuckets::automatic;
    DistributedDataParallel model(world, values.parameters(), options);
    const auto order_of_buckets = [&] {
      std::istringstream lines(model.describe_buckets());
      std::string order;
      for (std::string line; std::getline(lines, line);) order += line.substr(line.rfind(' '));
      return order;
    };
    const auto first = world.rank() == 0 ? std::vector<std::size_t>{0, 2, 1} : std::vector<std::size_t>{1, 0, 2};
    std::string text = order_of_buckets();
    const auto accumulate = [&](const std::vector<std::size_t>& used) {
      auto step = model.begin_step(Sync::off);
      for (const std::size_t p : used) add(model.gradient(p), 1 + world.rank()), step.ready(p);
      step.finish();
    };
    accumulate({0, 1, 2});
    run_step(model, first, world.rank());
    text += "|" + text_of(model.gradient(1));  // 1.5 and 0.5
    accumulate({0, 1, 2});                     // in here
    text += "|" + order_of_buckets();
    accumulate({0, 1, 2});
    run_step(model, {2, 1, 0}, world.rank());
    text += "|" + text_of(model.gradient(1));
    run_step(model, {2, 1, 0}, 4);
    return text + "|" + order_of_buckets() + "|" + text_of(model.gradient(0));
  });
  EXPECT_THAT(results, Each(" scale head.bias body.weight|2 2 2| body.weight scale head.bias|3.5 3.5 3.5"
                            "| body.weight scale head.bias|4 4 4 4 4 4"));
}

// A rank that gives up in the middle of a step, but lives on, must not leave the others waiting for the rest of it.
TEST(DistributedDataParallel, DestroyedInMidStepItFailsTheOthersAtOnce) {
  const struct {
    const char* what;
    DistributedDataParallelOptions options;
    std::vector<std::size_t> used;  // before it is destroyed
    bool by_exception;
  } cases[] = {
      {"a bucket is launched", one_bucket_each(), {2}, false},
      {"no bucket is full", {}, {1}, false},
      {"nothing is ready", {}, {}, false},
      {"an exception cancels the step first", one_bucket_each(), {2}, true},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const ddp::testing::Shared<std::atomic<bool>> other_failed;
    const auto results = results_of_ranks(2, [&](ProcessGroup world) {
      Model values;
      const std::string message = message_of<ddp::Error>([&] {
        std::optional<DistributedDataParallel> model(std::in_place, world, values.parameters(), c.options);
        if (world.rank() == 1) return run_step(*model, {2, 1, 0}, 1);
        auto step = model->begin_step();
        for (const std::size_t parameter : c.used) step.ready(parameter);
        if (!c.by_exception) model.reset();
        throw ddp::Error("rank 0 has enough");
      });
      if (world.rank() == 1) *other_failed = true;
      ddp::testing::wait_until([&] { return other_failed->load(); });
      return message;
    });
    EXPECT_EQ(results[0], "rank 0 has enough");
    const auto aborted = HasSubstr("aborted the group");
    if (c.by_exception) {
      EXPECT_THAT(results[1], testing::AnyOf(aborted, HasSubstr("rank 0 cancelled the step")));
    } else {
      EXPECT_THAT(results[1], aborted);
    }
  }
}

// The models were agreed on, so the other rank is in the broadcasts that this one can't begin.
TEST(DistributedDataParallel, ABroadcastThatCanNotBeginFailsTheOthersAtOnce) {
  const ddp::testing::Shared<std::atomic<bool>> other_failed;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) {
    Model values;
    std::optional<ddp::testing::NoThreads> no_threads;
    if (world.rank() == 0) no_threads.emplace();
    const std::string message =
        message_of<ddp::Error>([&] { DistributedDataParallel model(world, values.parameters()); });
    if (world.rank() == 1) *other_failed = true;
    ddp::testing::wait_until([&] { return other_failed->load(); });
    return message;
  });
  EXPECT_THAT(results[0], HasSubstr("no thread for the collectives"));
  EXPECT_THAT(results[1], HasSubstr("aborted the group"));
}

// Both ranks copy a large gradient that they do not use, and rank 1 has no address space for the copy.
TEST(DistributedDataParallel, ARankWithoutMemoryForAStepFailsTheOthersAtOnce) {
  if (ddp::test::kIsSanitized) GTEST_SKIP() << "a sanitizer has its own use of address space";
  const ddp::testing::Shared<std::atomic<bool>> other_failed;
  const auto results = results_of_ranks(2, [&](ProcessGroup world) {
    std::vector<float> large(16u << 20), small(1);
    DistributedDataParallelOptions options;
    options.unused = ddp::Unused::keep;
    options.zero_gradients = false;
    DistributedDataParallel model(world, {{"large", {16 << 20}, large}, {"small", {1}, small}}, options);
    rlimit old{};
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &old), 0);
    if (world.rank() == 1) {
      std::ifstream statm("/proc/self/statm");
      rlim_t pages = 0;
      statm >> pages;
      const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (32u << 20), old.rlim_max};
      EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    }
    const std::string message = message_of<std::exception>([&] {
      auto step = model.begin_step();
      step.ready(1);
      step.finish();
    });
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &old), 0);
    if (world.rank() == 0) *other_failed = true;
    ddp::testing::wait_until([&] { return other_failed->load(); });
    return message;
  });
  EXPECT_THAT(results[0], HasSubstr("aborted the group"));
  EXPECT_THAT(results[1], HasSubstr("bad_alloc"));
}

TEST(DistributedDataParallel, AModelThatWasMovedFromSaysSo) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    DistributedDataParallel model(world, values.parameters());
    DistributedDataParallel other = std::move(model);
    const DistributedDataParallel copy = other;
    std::string text =
        message_of<InvalidArgument>([&] { static_cast<void>(model.begin_step()); }) + "\n";  // NOLINT: moved from
    text += message_of<InvalidArgument>([&] { (void)model.gradient(0); }) + "\n";            // NOLINT
    text += message_of<InvalidArgument>([&] { (void)model.parameter_count(); }) + "\n";      // NOLINT
    text += message_of<InvalidArgument>([&] { (void)model.bucket_count(); }) + "\n";         // NOLINT
    run_step(other, {0, 1, 2}, 2);
    return text + text_of(copy.gradient(1));
  });
  const std::string empty = "this DistributedDataParallel is empty: it was moved from\n[^\n]*\n";
  EXPECT_THAT(results[0], testing::MatchesRegex(empty + empty + empty + empty + "2 2 2"));
}

TEST(DistributedDataParallel, AStepWhoseModelIsGoneSaysSo) {
  const auto results = results_of_ranks(1, [](ProcessGroup world) {
    Model values;
    std::optional<DistributedDataParallel> model(std::in_place, world, values.parameters());
    auto step = model->begin_step();
    model.reset();
    return message_of<InvalidArgument>([&] { step.ready(0); }) + message_of<InvalidArgument>([&] { step.finish(); });
  });
  EXPECT_THAT(results, Each(testing::MatchesRegex("the model of this Step is gone, [^\n]*\ntry:.*"
                                                  "the model of this Step is gone, [^\n]*\ntry:.*")));
}

TEST(DistributedDataParallel, AForkedChildLetsGoOfAModelInMidStep) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    Model values;
    std::optional<DistributedDataParallel> model(std::in_place, world, values.parameters(), one_bucket_each());
    auto step = model->begin_step();
    add(model->gradient(2), 1);
    step.ready(2);
    const pid_t child = ::fork();
    if (child == 0) {
      model.reset();
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    for (const std::size_t parameter : {1, 0}) step.ready(parameter);
    step.finish();  // the parent's step is as it was
    return std::to_string(status) + "|" + text_of(model->gradient(2));
  });
  EXPECT_THAT(results, Each("0|1 1"));
}

}  // namespace
