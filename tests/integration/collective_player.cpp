#include "tests/integration/collective_player.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

namespace ddp::testing {

namespace {

std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t word = (a + 1) * 0x9e3779b97f4a7c15u + b;
  word ^= word >> 29;
  word *= 0xbf58476d1ce4e5b9u;
  return word ^ word >> 32;
}

// What element i of a rank's input is: sums depend on their order, those of integers overflow, here and there one is
// NaN or a zero of either sign. (Not with a product: what 0 times infinity gives has a sign of its own.)
template <class T>
T value(const Step& step, int rank, std::size_t i) {
  const std::uint64_t word = mixed(step.salt + (static_cast<std::uint64_t>(rank) << 50), i);
  if constexpr (kIsBoolean<T>) {
    return {static_cast<std::uint8_t>(word & 1)};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(word);
  } else {
    const auto odd = static_cast<unsigned>(word & 1023);
    if (odd == 7) return narrowed<T>(std::numeric_limits<Wide<T>>::quiet_NaN());
    if (odd < 4 && step.op != ReduceOp::product) return narrowed<T>(odd % 2 == 0 ? Wide<T>{0} : -Wide<T>{0});
    const double middle = kLargeValue<T>;
    return narrowed<T>(static_cast<Wide<T>>((static_cast<double>(word >> 11) / 4.5e15 - 1) * middle));
  }
}

template <class T>
T reduced(const Step& step, const RanksByHost& by_host, std::size_t i) {
  const auto over_all = [&](const auto& value_of) {
    Wide<T> of_all{};
    std::size_t size = 0;
    for (std::size_t host = 0; host < by_host.size(); ++host) {
      Wide<T> of_host{};
      for (std::size_t r = 0; r < by_host[host].size(); ++r, ++size) {
        const int rank = by_host[host][r];
        const Wide<T> one = widened(given<T>(step.op, rank, value_of(rank)));
        of_host = r == 0 ? one : combined(step.op, of_host, one);
      }
      of_all = host == 0 ? of_host : combined(step.op, of_all, of_host);
    }
    return narrowed<T>(divided(step.op, of_all, size));
  };
  T result = over_all([&](int rank) { return value<T>(step, rank, i); });
  for (int again = 1; again < step.times; ++again) {
    const T before = result;
    result = over_all([&](int) { return before; });
  }
  return result;
}

// What element i of a rank's output has to become.
template <class T>
T wanted(const Step& step, const RanksByHost& by_host, int rank, int size, std::size_t i) {
  const auto own = static_cast<std::size_t>(rank) * step.count;
  switch (step.call) {
    case Call::all_reduce:
    case Call::reduce: return reduced<T>(step, by_host, i);
    case Call::reduce_scatter: return reduced<T>(step, by_host, own + i);
    case Call::broadcast: return value<T>(step, step.root, i);
    case Call::all_gather:
    case Call::gather: return value<T>(step, static_cast<int>(i / step.count), i % step.count);
    case Call::scatter: return value<T>(step, step.root, own + i);
    case Call::all_to_all: return value<T>(step, static_cast<int>(i / step.count), own + i % step.count);
    case Call::reduce_scatter_v: return reduced<T>(step, by_host, begin_in_input(step, rank, rank, size) + i);
    case Call::all_gather_v:
    case Call::all_to_all_v: {
      int giver = 0;
      while (begin_in_output(step, giver + 1, rank, size) <= i) ++giver;
      const std::size_t at = i - begin_in_output(step, giver, rank, size);
      return value<T>(step, giver, begin_in_input(step, giver, rank, size) + at);
    }
    case Call::exchange: return value<T>(step, (rank + size - step.root) % size, i);
    case Call::barrier: break;
  }
  return T{};
}

template <class Do>
void with_type(DataType type, const Do& run) {
  switch (type) {
    case DataType::float32: return run(float{});
    case DataType::float64: return run(double{});
    case DataType::int64: return run(std::int64_t{});
    case DataType::float16: return run(tensor::Float16{});
    case DataType::bfloat16: return run(tensor::Bfloat16{});
    case DataType::int32: return run(std::int32_t{});
    case DataType::uint8: return run(std::uint8_t{});
    case DataType::int8: return run(std::int8_t{});
    case DataType::boolean: return run(Boolean{});
    case DataType::float8_e4m3fn: return run(Float8E4m3fn{});
    case DataType::float8_e5m2: return run(Float8E5m2{});
  }
}

bool is_same_everywhere(Call call) {
  return call == Call::all_reduce || call == Call::broadcast || call == Call::all_gather || call == Call::all_gather_v;
}

std::uint64_t checksum_of(std::uint64_t sum, const std::byte* bytes, std::size_t count) {
  for (; count >= 8; bytes += 8, count -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, 8);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 31;
  }
  for (; count > 0; ++bytes, --count) sum = mixed(sum, static_cast<std::uint64_t>(*bytes));
  return sum;
}

}  // namespace

Player::Player(ProcessGroup& group, std::size_t bytes, RanksByHost ranks)
    : group_(group),
      rank_(group.rank()),
      size_(group.size()),
      bytes_(std::max<std::size_t>(bytes, 1)),
      ranks_(std::move(ranks)),
      plain_(bytes_),
      expected_(kMemories, std::vector<std::byte>(bytes_)) {
  allocate();
}

void Player::allocate() {
  registered_.clear();
  memories_ = {plain_.data()};
  while (memories_.size() < kMemories) {
    registered_.push_back(group_.allocate(bytes_, options_));
    memories_.push_back(static_cast<std::byte*>(registered_.back().data()));
  }
}

bool Player::play(const Batch& batch) {
  if (batch.has_new_memory) allocate();
  for (int memory = 0; memory < kMemories; ++memory) {
    std::byte* const bytes = at({memory, 0});
    std::memset(bytes, 0xa0 + rank_, batch.bytes);
  }
  for (const Step& step : batch.steps) write_inputs(step);
  for (int memory = 0; memory < kMemories; ++memory) {
    std::memcpy(expected_[static_cast<std::size_t>(memory)].data(), at({memory, 0}), batch.bytes);
  }
  for (const Step& step : batch.steps) expect_outputs(step);

  make_calls(batch);
  add_to_checksums(batch);
  return is_as_expected(batch);
}

// What comes out is what the first of the calls that failed threw: those behind it throw that the group is of no use.
void Player::make_calls(const Batch& batch) {
  std::vector<Work> works;
  try {
    if (batch.is_coalesced) {
      const auto begin_all = [&] {
        for (const Step& step : batch.steps) static_cast<void>(begin(step));
      };
      works.push_back(group_.coalesce(begin_all, options_));
    } else {
      for (const Step& step : batch.steps) make_calls(step, works);
    }
    // Ranks need not wait alike.
    const auto in_order = [&](std::size_t i) { return rank_ % 2 == 0 ? i : works.size() - 1 - i; };
    for (std::size_t i = 0; i < works.size(); ++i) works[in_order(i)].wait();
  } catch (const Error&) {
    for (Work& work : works) work.wait();
    throw;
  }
}

void Player::make_calls(const Step& step, std::vector<Work>& works) {
  for (int i = 0; i < step.times; ++i) {
    if (step.is_async[static_cast<std::size_t>(rank_)]) {
      works.push_back(start(step));
    } else {
      call(step);
    }
  }
}

ConstMemoryRange Player::input_of(const Step& step) {
  const std::size_t count = input_count(step, rank_, size_);
  if (step.call == Call::scatter && rank_ != step.root) return {};
  std::byte* data = at(step.inputs[static_cast<std::size_t>(rank_)]);
  const bool is_own_part = step.call == Call::all_gather || (step.call == Call::gather && rank_ == step.root);
  if (step.is_in_place && is_own_part) data += static_cast<std::size_t>(rank_) * step.count * size_of(step.type);
  if (step.is_in_place && step.call == Call::all_gather_v) {
    data += begin_in_output(step, rank_, rank_, size_) * size_of(step.type);
  }
  return {data, count, step.type};
}

MemoryRange Player::output_of(const Step& step) {
  const std::size_t count = output_count(step, rank_, size_);
  const bool is_for_root = step.call == Call::reduce || step.call == Call::gather;
  if (is_for_root && rank_ != step.root) return {};
  std::byte* data = at(step.outputs[static_cast<std::size_t>(rank_)]);
  const bool is_own_part = step.call == Call::reduce_scatter || (step.call == Call::scatter && rank_ == step.root);
  if (step.is_in_place && is_own_part) data += static_cast<std::size_t>(rank_) * step.count * size_of(step.type);
  return {data, count, step.type};
}

void Player::write_inputs(const Step& step) {
  const std::size_t count = input_count(step, rank_, size_);
  if (count == 0) return;
  with_type(step.type, [&](auto type) {
    using T = decltype(type);
    T* const to = const_cast<T*>(static_cast<const T*>(input_of(step).data));
    for (std::size_t i = 0; i < count; ++i) to[i] = value<T>(step, rank_, i);
  });
}

void Player::expect_outputs(const Step& step) {
  const std::size_t count = output_count(step, rank_, size_);
  if (count == 0) return;
  const auto memory = static_cast<std::size_t>(step.outputs[static_cast<std::size_t>(rank_)].memory);
  const auto offset = static_cast<std::byte*>(output_of(step).data) - memories_[memory];
  with_type(step.type, [&](auto type) {
    using T = decltype(type);
    T* const to = reinterpret_cast<T*>(expected_[memory].data() + offset);
    for (std::size_t i = 0; i < count; ++i) to[i] = wanted<T>(step, ranks_, rank_, size_, i);
  });
}

Work Player::begin(const Step& step) {
  const ConstMemoryRange input = input_of(step);
  const MemoryRange output = output_of(step);
  const CollectiveOptions options = options_for(step.op, rank_, options_);
  switch (step.call) {
    case Call::barrier: return group_.barrier_async(options_);
    case Call::all_reduce: return group_.all_reduce_async(output, step.op, options);
    case Call::broadcast: return group_.broadcast_async(output, step.root, options_);
    case Call::all_gather: return group_.all_gather_async(input, output, options_);
    case Call::reduce_scatter: return group_.reduce_scatter_async(input, output, step.op, options);
    case Call::reduce: return group_.reduce_async(input, output, step.root, step.op, options);
    case Call::gather: return group_.gather_async(input, output, step.root, options_);
    case Call::scatter: return group_.scatter_async(input, output, step.root, options_);
    case Call::all_to_all: return group_.all_to_all_async(input, output, options_);
    case Call::all_gather_v:
      return group_.all_gather_v_async(input, output, output_counts(step, rank_, size_), options_);
    case Call::reduce_scatter_v:
      return group_.reduce_scatter_v_async(input, output, input_counts(step, rank_, size_), step.op, options);
    case Call::all_to_all_v:
      return group_.all_to_all_v_async(input, input_counts(step, rank_, size_), output,
                                       output_counts(step, rank_, size_), options_);
    case Call::exchange: break;
  }
  static_cast<void>(group_.receive_async(output, (rank_ + size_ - step.root) % size_, options_));
  return group_.send_async(input, (rank_ + step.root) % size_, options_);
}

Work Player::start(const Step& step) {
  if (step.call != Call::exchange) return begin(step);
  return group_.coalesce([&] { static_cast<void>(begin(step)); }, options_);
}

void Player::call(const Step& step) {
  const ConstMemoryRange input = input_of(step);
  const MemoryRange output = output_of(step);
  const CollectiveOptions options = options_for(step.op, rank_, options_);
  switch (step.call) {
    case Call::barrier: return group_.barrier(options_);
    case Call::all_reduce: return group_.all_reduce(output, step.op, options);
    case Call::broadcast: return group_.broadcast(output, step.root, options_);
    case Call::all_gather: return group_.all_gather(input, output, options_);
    case Call::reduce_scatter: return group_.reduce_scatter(input, output, step.op, options);
    case Call::reduce: return group_.reduce(input, output, step.root, step.op, options);
    case Call::gather: return group_.gather(input, output, step.root, options_);
    case Call::scatter: return group_.scatter(input, output, step.root, options_);
    case Call::all_to_all: return group_.all_to_all(input, output, options_);
    case Call::all_gather_v: return group_.all_gather_v(input, output, output_counts(step, rank_, size_), options_);
    case Call::reduce_scatter_v:
      return group_.reduce_scatter_v(input, output, input_counts(step, rank_, size_), step.op, options);
    case Call::all_to_all_v:
      return group_.all_to_all_v(input, input_counts(step, rank_, size_), output, output_counts(step, rank_, size_),
                                 options_);
    case Call::exchange: return start(step).wait();
  }
}

bool Player::is_as_expected(const Batch& batch) {
  for (int memory = 0; memory < kMemories; ++memory) {
    const std::byte* const have = at({memory, 0});
    const std::byte* const want = expected_[static_cast<std::size_t>(memory)].data();
    if (std::memcmp(have, want, batch.bytes) == 0) continue;
    const auto byte = static_cast<std::size_t>(std::mismatch(have, have + batch.bytes, want).first - have);
    ADD_FAILURE() << "rank " << rank_ << " of " << size_ << ": " << what_lies_at({memory, byte}, batch);
    return false;
  }
  return true;
}

std::string Player::what_lies_at(const Place& place, const Batch& batch) {
  for (const Step& step : batch.steps) {
    const MemoryRange output = output_of(step);
    const auto* const begin = static_cast<const std::byte*>(output.data);
    const std::byte* const byte = at(place);
    if (output.count == 0 || byte < begin || byte >= begin + output.bytes()) continue;
    const std::size_t element = static_cast<std::size_t>(byte - begin) / size_of(step.type);
    return "element " + std::to_string(element) + " of the output is wrong: " + described(step);
  }
  std::string text = "byte " + std::to_string(place.offset) + " of memory " + std::to_string(place.memory) +
                     " has changed, which is in no output of these calls:";
  for (const Step& step : batch.steps) text += "\n  " + described(step);
  return text;
}

void Player::add_to_checksums(const Batch& batch) {
  for (const Step& step : batch.steps) {
    const MemoryRange output = output_of(step);
    const auto* const bytes = static_cast<const std::byte*>(output.data);
    checksum_ = checksum_of(checksum_, bytes, output.bytes());
    if (is_same_everywhere(step.call)) common_checksum_ = checksum_of(common_checksum_, bytes, output.bytes());
  }
}

}  // namespace ddp::testing
