#include "worker_runtime/checkpoint/checkpoint_writer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/unit/worker_runtime/stand_in_backend.hpp"

namespace ddp::checkpoint {
namespace {

using std::chrono::seconds;

TEST(CheckpointWriter, RanksWaitForEachOtherAsLongAsForADisk) {
  const auto calls = std::make_shared<test::Calls>();
  calls->work = [](const process_group::Collective& of_one_rank) {
    if (of_one_rank.input.count > 0) {
      std::memcpy(of_one_rank.output.data, of_one_rank.input.data, of_one_rank.input.bytes());
    }
  };
  CheckpointWriter::Where in_memory;
  in_memory.memory = std::make_shared<CheckpointMemory::Impl>();
  CheckpointWriter writer(test::group_over(std::make_unique<test::StandInBackend>(calls, Device{}), 0, 1), in_memory,
                          seconds(7));
  PartLayout layout(std::vector<Entry>{}, {{1'700'000'000, 7, 3}, 42}, 0, 1);
  const Image image = writer.take_image(static_cast<std::size_t>(layout.bytes()));
  writer.begin(std::move(layout), image, CheckpointWriter::Extent::everywhere);
  writer.wait();
  EXPECT_FALSE(calls->run.empty());
  for (const process_group::Collective& each : calls->run) {
    EXPECT_EQ(each.timeout, seconds(7)) << process_group::name_of(each.kind);
  }
}

}  // namespace
}  // namespace ddp::checkpoint
