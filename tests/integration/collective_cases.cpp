#include "tests/integration/collective_cases.hpp"

#include <algorithm>
#include <sstream>

#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::testing {

namespace {

using simulation::Dice;

const std::vector<DataType> kTypes{DataType::float32,  DataType::float64,       DataType::int64,      DataType::float16,
                                   DataType::bfloat16, DataType::int32,         DataType::uint8,      DataType::int8,
                                   DataType::boolean,  DataType::float8_e4m3fn, DataType::float8_e5m2};
const std::vector<ReduceOp> kOps{ReduceOp::sum, ReduceOp::average, ReduceOp::product,
                                 ReduceOp::min, ReduceOp::max,     ReduceOp::premul_sum};

constexpr std::size_t kLine = 64;
constexpr std::size_t kSlack = 4 * kLine;  // how far apart ranks may have the same thing

enum class Where { plain, registered_alike, registered_apart, any };

const char* name_of(Call call) {
  switch (call) {
    case Call::barrier: return "barrier";
    case Call::all_reduce: return "all_reduce";
    case Call::broadcast: return "broadcast";
    case Call::all_gather: return "all_gather";
    case Call::reduce_scatter: return "reduce_scatter";
    case Call::reduce: return "reduce";
    case Call::gather: return "gather";
    case Call::scatter: return "scatter";
    case Call::all_to_all: return "all_to_all";
    case Call::all_gather_v: return "all_gather_v";
    case Call::reduce_scatter_v: return "reduce_scatter_v";
    case Call::all_to_all_v: return "all_to_all_v";
    case Call::exchange: return "send and receive";
  }
  return "";
}

const char* name_of(ReduceOp op) {
  const char* const names[] = {"sum", "average", "product", "min", "max", "premul_sum"};
  return names[static_cast<std::size_t>(op)];
}

bool reduces(Call call) {
  return call == Call::all_reduce || call == Call::reduce_scatter || call == Call::reduce ||
         call == Call::reduce_scatter_v;
}

bool is_uneven(Call call) {
  return call == Call::all_gather_v || call == Call::reduce_scatter_v || call == Call::all_to_all_v;
}

// Whether a rank hands in, or gets back, elements for all of them.
bool is_for_all(Call call) {
  return call == Call::all_gather || call == Call::reduce_scatter || call == Call::gather || call == Call::scatter ||
         call == Call::all_to_all || is_uneven(call);
}

// Near what implementations cut work by: cache lines, pages, blocks, and shares of them.
std::size_t draw_count(Dice& dice, std::size_t element_bytes, int size) {
  switch (dice.below(10)) {
    case 0: return 0;
    case 1: return 1 + dice.below(3);
    case 2:
    case 3: return dice.below(70);
    case 4:
    case 5: return dice.below(5000);
    case 6:
    case 7:
    case 8: {
      std::size_t border = (std::size_t{1} << dice.between(3, 20)) / element_bytes * dice.below(4);
      if (dice.chance(30)) border = border / static_cast<std::size_t>(size);
      return std::max<std::size_t>(border + dice.below(5), 2) - 2;
    }
    default: return dice.below((std::size_t{4} << 20) / element_bytes);
  }
}

std::size_t limited(std::size_t count, Call call, std::size_t element_bytes, int ranks, const Limits& limits) {
  const auto size = static_cast<std::size_t>(ranks);
  const std::size_t share = is_for_all(call) ? size : 1;
  count =
      std::min({count, limits.bytes_max / element_bytes / share, limits.all_bytes_max / element_bytes / share / size});
  if (reduces(call)) count = std::min<std::size_t>(count, limits.work_max / size / size);
  return count;
}

std::vector<Place> draw_places(Dice& dice, Where where, std::size_t base, std::size_t element_bytes, int size) {
  const auto draw_offset = [&] { return base + dice.below(kSlack / element_bytes) * element_bytes; };
  const auto draw_registered = [&] { return 1 + static_cast<int>(dice.below(kMemories - 1)); };
  const Place of_all{draw_registered(), draw_offset()};
  std::vector<Place> places;
  for (int rank = 0; rank < size; ++rank) {
    switch (where) {
      case Where::plain: places.push_back({0, draw_offset()}); break;
      case Where::registered_alike: places.push_back(of_all); break;
      case Where::registered_apart: places.push_back({draw_registered(), draw_offset()}); break;
      case Where::any: places.push_back({static_cast<int>(dice.below(kMemories)), draw_offset()}); break;
    }
  }
  return places;
}

Where draw_where(Dice& dice) { return static_cast<Where>(dice.below(4)); }

bool draw_in_place(Dice& dice, Call call) {
  switch (call) {
    case Call::all_reduce:
    case Call::broadcast: return true;
    case Call::all_gather:
    case Call::all_gather_v:
    case Call::reduce_scatter:
    case Call::reduce:
    case Call::gather:
    case Call::scatter: return dice.chance(40);
    default: return false;
  }
}

// Of every kind what the library has to tell apart: an all_gather_v gives all the same part, a reduce_scatter_v takes
// the same part of all.
std::vector<std::size_t> draw_parts(Dice& dice, const Step& step, int ranks) {
  const auto size = static_cast<std::size_t>(ranks);
  const auto draw = [&] { return dice.chance(20) ? 0 : dice.below(step.count + 1); };
  std::vector<std::size_t> parts(size * size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t one = draw();
    for (std::size_t j = 0; j < size; ++j) {
      const bool is_by_taker = step.call == Call::reduce_scatter_v;
      parts[is_by_taker ? j * size + i : i * size + j] = step.call == Call::all_to_all_v ? draw() : one;
    }
  }
  return parts;
}

// Takes what the step needs from `end` on, of each memory.
Step draw_step(Dice& dice, int size, const Limits& limits, std::size_t& end) {
  Step step;
  step.call = dice.one_of(calls_of_cpu());
  if (step.call == Call::exchange && size == 1) step.call = Call::barrier;
  step.type = dice.one_of(kTypes);
  step.op = dice.one_of(kOps);
  if (step.type == DataType::boolean && step.op == ReduceOp::average) step.op = ReduceOp::sum;
  if (step.op == ReduceOp::premul_sum && !tensor::is_floating(step.type)) step.op = ReduceOp::sum;
  step.root = static_cast<int>(dice.below(static_cast<std::uint64_t>(size)));
  if (step.call == Call::exchange) step.root = dice.between(1, size - 1);
  const std::size_t element_bytes = size_of(step.type);
  step.count = limited(draw_count(dice, element_bytes, size), step.call, element_bytes, size, limits);
  if (is_uneven(step.call)) step.parts = draw_parts(dice, step, size);
  if (step.call == Call::all_reduce && dice.chance(25)) step.times = 2;
  step.is_in_place = draw_in_place(dice, step.call);
  step.salt = dice.below(std::uint64_t{1} << 40);

  const std::size_t share = is_for_all(step.call) ? static_cast<std::size_t>(size) : 1;
  const std::size_t bytes = (step.count * share * element_bytes + kSlack + kLine - 1) / kLine * kLine;
  step.outputs = draw_places(dice, draw_where(dice), end, element_bytes, size);
  end += bytes;
  if (step.is_in_place) {
    step.inputs = step.outputs;
  } else {
    step.inputs = draw_places(dice, draw_where(dice), end, element_bytes, size);
    end += bytes;
  }
  for (int rank = 0; rank < size; ++rank) step.is_async.push_back(dice.chance(50));
  return step;
}

}  // namespace

const std::vector<Call>& calls_of_cpu() {
  static const std::vector<Call> calls{
      Call::barrier,          Call::all_reduce,   Call::broadcast, Call::all_gather, Call::reduce_scatter,
      Call::reduce,           Call::gather,       Call::scatter,   Call::all_to_all, Call::all_gather_v,
      Call::reduce_scatter_v, Call::all_to_all_v, Call::exchange};
  return calls;
}

Batch draw_batch(Dice& dice, int size, const Limits& limits) {
  Batch batch;
  batch.has_new_memory = dice.chance(20);
  batch.is_coalesced = kCoalesces && dice.chance(30);
  const int steps = dice.chance(30) ? 1 : dice.between(2, 8);
  Limits share = limits;  // a batch of several is no more work than one call may be
  share.bytes_max /= static_cast<std::size_t>(steps);
  share.all_bytes_max /= static_cast<std::size_t>(steps);
  share.work_max /= static_cast<std::uint64_t>(steps);
  for (int i = 0; i < steps; ++i) {
    batch.steps.push_back(draw_step(dice, size, share, batch.bytes));
    if (batch.is_coalesced) batch.steps.back().times = 1;
  }
  return batch;
}

std::size_t part_count(const Step& step, int giver, int taker, int size) {
  return step.parts[static_cast<std::size_t>(giver * size + taker)];
}

std::size_t begin_in_input(const Step& step, int giver, int taker, int size) {
  if (step.call == Call::all_gather_v) return 0;
  std::size_t begin = 0;
  for (int rank = 0; rank < taker; ++rank) begin += part_count(step, giver, rank, size);
  return begin;
}

std::size_t begin_in_output(const Step& step, int giver, int taker, int size) {
  if (step.call == Call::reduce_scatter_v) return 0;
  std::size_t begin = 0;
  for (int rank = 0; rank < giver; ++rank) begin += part_count(step, rank, taker, size);
  return begin;
}

std::vector<std::size_t> input_counts(const Step& step, int rank, int size) {
  std::vector<std::size_t> counts;
  for (int taker = 0; taker < size; ++taker) counts.push_back(part_count(step, rank, taker, size));
  return counts;
}

std::vector<std::size_t> output_counts(const Step& step, int rank, int size) {
  std::vector<std::size_t> counts;
  for (int giver = 0; giver < size; ++giver) counts.push_back(part_count(step, giver, rank, size));
  return counts;
}

std::size_t input_count(const Step& step, int rank, int size) {
  const auto for_all = step.count * static_cast<std::size_t>(size);
  switch (step.call) {
    case Call::barrier: return 0;
    case Call::reduce_scatter:
    case Call::all_to_all: return for_all;
    case Call::scatter: return rank == step.root ? for_all : 0;
    case Call::all_gather_v: return part_count(step, rank, rank, size);
    case Call::reduce_scatter_v:
    case Call::all_to_all_v: return begin_in_input(step, rank, size, size);
    default: return step.count;
  }
}

std::size_t output_count(const Step& step, int rank, int size) {
  const auto for_all = step.count * static_cast<std::size_t>(size);
  switch (step.call) {
    case Call::barrier: return 0;
    case Call::all_gather:
    case Call::all_to_all: return for_all;
    case Call::gather: return rank == step.root ? for_all : 0;
    case Call::reduce: return rank == step.root ? step.count : 0;
    case Call::reduce_scatter_v: return part_count(step, rank, rank, size);
    case Call::all_gather_v:
    case Call::all_to_all_v: return begin_in_output(step, size, rank, size);
    default: return step.count;
  }
}

std::string described(const Step& step) {
  std::ostringstream text;
  text << name_of(step.call) << " of " << step.count << " " << ddp::name_of(step.type);
  if (reduces(step.call)) text << " (" << name_of(step.op) << ")";
  text << ", root " << step.root << (step.is_in_place ? ", in place" : "") << (step.times > 1 ? ", twice" : "");
  const auto list = [&](const char* what, const std::vector<Place>& places) {
    text << "; " << what;
    for (const Place& place : places) text << " " << place.memory << "+" << place.offset;
  };
  if (!step.parts.empty()) text << "; parts";
  for (const std::size_t part : step.parts) text << " " << part;
  list("input", step.inputs);
  if (!step.is_in_place) list("output", step.outputs);
  text << "; async";
  for (const bool is_async : step.is_async) text << (is_async ? " y" : " n");
  return text.str();
}

}  // namespace ddp::testing
