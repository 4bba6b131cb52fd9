// Collective calls drawn from a seed: the same on all ranks, which tell each other nothing. collective_player.hpp makes
// them and checks what comes out.
#pragma once

#include <ddp/ddp.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/dice.hpp"

namespace ddp::testing {

enum class Call : std::uint8_t {
  barrier,
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  reduce,
  gather,
  scatter,
  all_to_all,
  all_gather_v,
  reduce_scatter_v,
  all_to_all_v,
  exchange,  // every rank sends to the one `root` places after it, and receives from the one as far before it
};

// What the backend has: the rest are drawn once they are named here.
const std::vector<Call>& calls_of_cpu();
constexpr bool kCoalesces = true;  // whether several calls may be begun as one

constexpr int kMemories = 3;  // of a rank: the first is plain, the others are registered

struct Place {
  int memory = 0;
  std::size_t offset = 0;  // bytes
};

struct Step {
  Call call = Call::barrier;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::size_t count = 0;  // elements of one rank; where ranks have different counts, the most that a part has
  std::vector<std::size_t> parts{};  // of these: what each rank gives each, by giver, then by taker
  int times = 1;                     // how often it is called, one after the other on the same memory
  bool is_in_place = false;
  std::uint64_t salt = 0;              // of the values
  std::vector<Place> inputs, outputs;  // by rank; the same where it is in place
  std::vector<bool> is_async;          // by rank
};

// Calls on memory of their own each, so that several may be under way.
struct Batch {
  std::vector<Step> steps;
  bool is_coalesced = false;
  bool has_new_memory = false;  // all ranks free what they have registered before it, and register anew
  std::size_t bytes = 0;        // of each memory that it needs
};

struct Limits {
  std::size_t bytes_max = 4u << 20;       // of a rank's input or output in one call
  std::size_t all_bytes_max = 32u << 20;  // of those of all ranks together
  std::uint64_t work_max = 64'000'000;    // elements that all ranks together compute plainly for one call
};

Batch draw_batch(simulation::Dice& dice, int size, const Limits& limits);

// Where ranks have different counts: what one gives another, and where that begins in the input of the one and in the
// output of the other.
std::size_t part_count(const Step& step, int giver, int taker, int size);
std::size_t begin_in_input(const Step& step, int giver, int taker, int size);
std::size_t begin_in_output(const Step& step, int giver, int taker, int size);

// The counts of a rank's call.
std::vector<std::size_t> input_counts(const Step& step, int rank, int size);
std::vector<std::size_t> output_counts(const Step& step, int rank, int size);

// How many elements a rank hands in and gets back.
std::size_t input_count(const Step& step, int rank, int size);
std::size_t output_count(const Step& step, int rank, int size);

std::string described(const Step& step);

}  // namespace ddp::testing
