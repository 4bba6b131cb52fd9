// Makes drawn calls on a group, as one of its ranks, and checks all memory that they were given, bit by bit: outputs
// against a slow plain computation, and that nothing else has changed, inputs and what lies around them included.
//
// Threads: one.
#pragma once

#include <ddp/ddp.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/integration/collective_cases.hpp"
#include "tests/integration/collective_values.hpp"

namespace ddp::testing {

class Player {
 public:
  // Collective: registers what batches of up to `bytes` need.
  Player(ProcessGroup& group, std::size_t bytes, RanksByHost ranks);

  void set_options(const CollectiveOptions& options) { options_ = options; }  // of the calls from here on

  // Makes the calls and waits for them; what they throw comes out. Whether all memory is right: if not, the test has
  // failed and says where.
  bool play(const Batch& batch);

  // Of all bits that came out so far; and of those among them that are to be the same on all ranks.
  std::uint64_t checksum() const { return checksum_; }
  std::uint64_t common_checksum() const { return common_checksum_; }

 private:
  void allocate();
  void make_calls(const Batch& batch);
  void make_calls(const Step& step, std::vector<Work>& works);
  std::byte* at(const Place& place) { return memories_[static_cast<std::size_t>(place.memory)] + place.offset; }
  ConstMemoryRange input_of(const Step& step);
  MemoryRange output_of(const Step& step);
  void write_inputs(const Step& step);
  void expect_outputs(const Step& step);
  Work begin(const Step& step);
  Work start(const Step& step);
  void call(const Step& step);
  bool is_as_expected(const Batch& batch);
  std::string what_lies_at(const Place& place, const Batch& batch);
  void add_to_checksums(const Batch& batch);

  ProcessGroup& group_;
  int rank_, size_;
  std::size_t bytes_;
  RanksByHost ranks_;
  CollectiveOptions options_;
  std::vector<std::byte> plain_;
  std::vector<RegisteredMemory> registered_;
  std::vector<std::byte*> memories_;
  std::vector<std::vector<std::byte>> expected_;  // by memory
  std::uint64_t checksum_ = 0;
  std::uint64_t common_checksum_ = 0;
};

}  // namespace ddp::testing
