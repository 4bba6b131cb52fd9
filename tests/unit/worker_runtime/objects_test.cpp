#include <ddp/objects.hpp>

#include <ddp/collectives.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/worker_runtime/rank_results.hpp"

namespace {

struct Config {
  std::string name;
  int layers = 0;
};

}  // namespace

template <>
struct ddp::Serializer<Config> {
  static std::string to_bytes(const Config& config) {
    if (config.layers < 0) throw std::runtime_error("no layers");
    return std::to_string(config.layers) + ":" + config.name;
  }
  static Config from_bytes(const std::string& bytes) {
    const std::size_t colon = bytes.find(':');
    if (colon == std::string::npos) throw std::runtime_error("no colon");
    return {bytes.substr(colon + 1), std::stoi(bytes)};
  }
};

namespace {

using ddp::ObjectOptions;
using ddp::ProcessGroup;
using ddp::test::results_of_ranks;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// What a call throws as its text, and whether the group still works afterwards on all ranks.
template <class Error, class Call>
std::string error_and_use_after(ProcessGroup& world, Call call) {
  std::string text = "not thrown";
  try {
    call();
  } catch (const Error& error) {
    text = error.what();
  }
  return std::to_string(ddp::all_reduce(world, 1)) + " " + text;
}

TEST(Objects, AreBroadcast) {
  for (int size = 1; size <= 4; ++size) {
    for (int root = 0; root < size; ++root) {
      const auto results = results_of_ranks(size, [root](ProcessGroup world) {
        const std::string own(static_cast<std::size_t>(1000 * world.rank()), static_cast<char>('a' + world.rank()));
        const std::string text = ddp::broadcast_object(world, own, root);
        const Config config = ddp::broadcast_object(world, Config{"net", world.rank()}, root);
        return text + "|" + config.name + std::to_string(config.layers);
      });
      EXPECT_THAT(results, Each(std::string(static_cast<std::size_t>(1000 * root), static_cast<char>('a' + root)) +
                                "|net" + std::to_string(root)));
    }
  }
}

TEST(Objects, AreGathered) {
  for (int size = 1; size <= 4; ++size) {
    const auto results = results_of_ranks(size, [](ProcessGroup world) {
      std::string text;
      // Rank 1's is empty; zeros are bytes as others.
      const std::string own(static_cast<std::size_t>(world.rank() == 1 ? 0 : 3 + world.rank()), '\0');
      for (const std::string& of_rank : ddp::all_gather_object(world, own))
        text += std::to_string(of_rank.size()) + " ";
      for (const Config& config : ddp::all_gather_object(world, Config{"net", world.rank()})) {
        text += config.name + std::to_string(config.layers) + " ";
      }
      return text;
    });
    std::string want;
    for (int rank = 0; rank < size; ++rank) want += std::to_string(rank == 1 ? 0 : 3 + rank) + " ";
    for (int rank = 0; rank < size; ++rank) want += "net" + std::to_string(rank) + " ";
    EXPECT_THAT(results, Each(want));
  }
}

TEST(Objects, MayAllBeEmpty) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    return std::to_string(ddp::all_gather_object(world, std::string()).size()) +
           std::to_string(ddp::broadcast_object(world, std::string(), 1).size());
  });
  EXPECT_THAT(results, Each("20"));
}

TEST(Objects, OverTheLimitOnOneRankAreRefusedOnAll) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    ObjectOptions options;
    options.bytes_max = 100;
    const std::string own(world.rank() == 1 ? 101U : 100U, 'x');
    std::string text = error_and_use_after<ddp::InvalidArgument>(
        world, [&] { static_cast<void>(ddp::all_gather_object(world, own, options)); });
    text += "|" + error_and_use_after<ddp::InvalidArgument>(
                      world, [&] { static_cast<void>(ddp::broadcast_object(world, own, 1, options)); });
    text += "|" + std::to_string(ddp::broadcast_object(world, own, 2, options).size());
    return text;
  });
  const std::string error = "3 the object of rank 1 has 101 bytes, more than 100\nwhere: ";
  const std::string advice = "\ntry:   a larger ObjectOptions::bytes_max on all ranks, or a smaller object";
  EXPECT_THAT(results, Each(error + "all_gather_object" + advice + "|" + error + "broadcast_object" + advice + "|100"));
}

TEST(Objects, AreBoundedByTheSmallestLimitOfAnyRank) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    ObjectOptions options;
    options.bytes_max = world.rank() == 2 ? 4 : static_cast<std::size_t>(-1);
    return error_and_use_after<ddp::InvalidArgument>(
        world, [&] { static_cast<void>(ddp::broadcast_object(world, std::string(5, 'x'), 0, options)); });
  });
  EXPECT_THAT(results, Each(StartsWith("3 the object of rank 0 has 5 bytes, more than 4\n")));
}

TEST(Objects, ThatOneRankCannotSerializeEndTheCallOnAll) {
  const auto results = results_of_ranks(3, [](ProcessGroup world) {
    const Config own{"net", world.rank() == 1 ? -1 : 5};
    std::string text =
        error_and_use_after<std::exception>(world, [&] { static_cast<void>(ddp::all_gather_object(world, own)); });
    text += "|" + error_and_use_after<std::exception>(world,
                                                      [&] { static_cast<void>(ddp::broadcast_object(world, own, 1)); });
    return text + "|" + ddp::broadcast_object(world, own, 0).name;  // only root's is looked at
  });
  const auto of_others = [](const char* call) {
    return "3 the object of rank 1 could not be turned into bytes\nwhere: " + std::string(call) +
           "\ntry:   see the error of that rank";
  };
  const std::string others = of_others("all_gather_object") + "|" + of_others("broadcast_object") + "|net";
  EXPECT_THAT(results, ElementsAre(others, "3 no layers|3 no layers|net", others));
}

TEST(Objects, ThatOneRankCannotReadLeaveTheGroupUsable) {
  // Rank 0 sends a text, which the others take for a Config.
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    return error_and_use_after<std::exception>(world, [&] {
      if (world.rank() == 0) static_cast<void>(ddp::broadcast_object(world, std::string("text"), 0));
      if (world.rank() == 1) static_cast<void>(ddp::broadcast_object(world, Config{}, 0));
    });
  });
  EXPECT_THAT(results, ElementsAre("2 not thrown", "2 no colon"));
}

TEST(Objects, NeedTheSameRootOnAllRanks) {
  const auto results = results_of_ranks(2, [](ProcessGroup world) {
    EXPECT_THROW(ddp::broadcast_object(world, std::string("x"), 2), ddp::InvalidArgument);
    EXPECT_THROW(ddp::broadcast_object(world, std::string("x"), -1), ddp::InvalidArgument);
    return error_and_use_after<ddp::MismatchError>(
        world, [&] { static_cast<void>(ddp::broadcast_object(world, std::string("x"), world.rank())); });
  });
  EXPECT_THAT(results, Each(StartsWith("2 root is 0 on rank 0 and 1 on rank 1\nwhere: broadcast_object\n")));
}

}  // namespace
