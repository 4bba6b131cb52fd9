#include "tests/fake_gpu/nccl_operation.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/fake_gpu/memory_table.hpp"
#include "worker_runtime/backends/cpu/reduce/reduce.hpp"

namespace ddp::fake_gpu {

std::size_t element_bytes(abi::DataType type) {
  switch (type) {
    case abi::DataType::int8:
    case abi::DataType::uint8:
    case abi::DataType::float8_e4m3:
    case abi::DataType::float8_e5m2: return 1;
    case abi::DataType::float16:
    case abi::DataType::bfloat16: return 2;
    case abi::DataType::int32:
    case abi::DataType::uint32:
    case abi::DataType::float32: return 4;
    case abi::DataType::int64:
    case abi::DataType::uint64:
    case abi::DataType::float64: return 8;
  }
  return 0;
}

namespace {

using Kind = Request::Kind;

// Nothing for those that libddp never sums.
std::optional<DataType> summed_type(abi::DataType type) {
  switch (type) {
    case abi::DataType::float32: return DataType::float32;
    case abi::DataType::float64: return DataType::float64;
    case abi::DataType::int64: return DataType::int64;
    case abi::DataType::float16: return DataType::float16;
    case abi::DataType::bfloat16: return DataType::bfloat16;
    case abi::DataType::int32: return DataType::int32;
    case abi::DataType::uint8: return DataType::uint8;
    case abi::DataType::int8: return DataType::int8;
    case abi::DataType::float8_e4m3: return DataType::float8_e4m3fn;
    case abi::DataType::float8_e5m2: return DataType::float8_e5m2;
    default: return std::nullopt;
  }
}

std::optional<ReduceOp> operator_of(abi::RedOp op) {
  switch (op) {
    case abi::RedOp::sum: return ReduceOp::sum;
    case abi::RedOp::product: return ReduceOp::product;
    case abi::RedOp::max: return ReduceOp::max;
    case abi::RedOp::min: return ReduceOp::min;
    case abi::RedOp::average: return ReduceOp::average;
  }
  return std::nullopt;
}

bool sums(Kind kind) { return kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter; }

bool is_between_two(Kind kind) { return kind == Kind::send || kind == Kind::receive; }

bool has_peer(Kind kind) {
  return is_between_two(kind) || kind == Kind::broadcast || kind == Kind::reduce || kind == Kind::gather ||
         kind == Kind::scatter;
}

std::size_t part_bytes(const Request& request) { return request.count * element_bytes(request.type); }

// How many parts this rank reads and writes; 0 where it takes no memory from the call.
std::size_t input_parts(const Request& request, const Place& place) {
  const bool is_root = request.peer == place.rank;
  switch (request.kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all: return static_cast<std::size_t>(place.size);
    case Kind::scatter: return is_root ? static_cast<std::size_t>(place.size) : 0;
    case Kind::broadcast: return is_root ? 1 : 0;
    case Kind::receive: return 0;
    default: return 1;
  }
}

std::size_t output_parts(const Request& request, const Place& place) {
  const bool is_root = request.peer == place.rank;
  switch (request.kind) {
    case Kind::all_gather:
    case Kind::all_to_all: return static_cast<std::size_t>(place.size);
    case Kind::gather: return is_root ? static_cast<std::size_t>(place.size) : 0;
    case Kind::reduce: return is_root ? 1 : 0;
    case Kind::send: return 0;
    default: return 1;
  }
}

bool is_usable(const void* memory, std::size_t bytes, int device) {
  if (bytes == 0) return true;
  const auto block = block_of(memory, bytes);
  return block && (!block->on_device() || block->device == device);
}

// What both sides of a message must agree on.
std::uint64_t tag_of(const Request& request) {
  const Kind kind = request.kind == Kind::receive ? Kind::send : request.kind;
  const auto field = [](auto value, int shift) { return static_cast<std::uint64_t>(value) << shift; };
  std::uint64_t tag = field(kind, 0) | field(request.type, 8);
  if (sums(kind)) tag |= field(request.op, 16) | field(request.factor ? 1 : 0, 24);
  if (!is_between_two(kind) && has_peer(kind)) tag |= field(request.peer, 32);
  return tag;
}

std::span<const std::byte> input_part(const Request& request, int index) {
  const std::size_t bytes = part_bytes(request);
  return {static_cast<const std::byte*>(request.input) + static_cast<std::size_t>(index) * bytes, bytes};
}

std::span<std::byte> output_part(const Request& request, int index) {
  const std::size_t bytes = part_bytes(request);
  return {static_cast<std::byte*>(request.output) + static_cast<std::size_t>(index) * bytes, bytes};
}

}  // namespace

std::string mistake_in(const Request& request, const Place& place) {
  if (element_bytes(request.type) == 0) return "there is no such data type";
  if (sums(request.kind) && !operator_of(request.op)) return "there is no such operator";
  if (sums(request.kind) && !summed_type(request.type)) return "the fake sums no such type";
  if (has_peer(request.kind) && (request.peer < 0 || request.peer >= place.size)) return "there is no such rank";
  const std::size_t bytes = part_bytes(request);
  if (!is_usable(request.input, input_parts(request, place) * bytes, place.device))
    return "the input is not memory of this device";
  if (!is_usable(request.output, output_parts(request, place) * bytes, place.device))
    return "the output is not memory of this device";
  return {};
}

// Sends and receives come behind the collectives, so that ranks that mix them differently agree on the order of
// messages.
Operation::Operation(std::vector<Request> requests, const Place& place) : place_(place), messages_(place.size) {
  std::stable_partition(requests.begin(), requests.end(),
                        [](const Request& each) { return !is_between_two(each.kind); });
  for (const Request& request : requests) plan(request);
}

void Operation::plan(Request request) {
  const bool is_root = request.peer == place_.rank;
  if (request.factor) {
    std::vector<std::byte>& into = scratch_.emplace_back(input_parts(request, place_) * part_bytes(request));
    products_.push_back({request, into});
    request.input = into.data();
  }
  switch (request.kind) {
    case Kind::all_reduce:
      send_to_others(request, input_part(request, 0));
      return sum_from_all(request, input_part(request, 0));
    case Kind::reduce:
      if (is_root) return sum_from_all(request, input_part(request, 0));
      return send(request, request.peer, input_part(request, 0));
    case Kind::reduce_scatter:
      for (int rank = 0; rank < place_.size; ++rank) {
        if (rank != place_.rank) send(request, rank, input_part(request, rank));
      }
      return sum_from_all(request, input_part(request, place_.rank));
    case Kind::broadcast:
      if (!is_root) return receive(request, request.peer, output_part(request, 0));
      send_to_others(request, input_part(request, 0));
      send(request, place_.rank, input_part(request, 0));
      return receive(request, place_.rank, output_part(request, 0));
    case Kind::all_gather:
      for (int rank = 0; rank < place_.size; ++rank) {
        send(request, rank, input_part(request, 0));
        receive(request, rank, output_part(request, rank));
      }
      return;
    case Kind::all_to_all:
      for (int rank = 0; rank < place_.size; ++rank) {
        send(request, rank, input_part(request, rank));
        receive(request, rank, output_part(request, rank));
      }
      return;
    case Kind::gather:
      send(request, request.peer, input_part(request, 0));
      for (int rank = 0; is_root && rank < place_.size; ++rank) receive(request, rank, output_part(request, rank));
      return;
    case Kind::scatter:
      for (int rank = 0; is_root && rank < place_.size; ++rank) send(request, rank, input_part(request, rank));
      return receive(request, request.peer, output_part(request, 0));
    case Kind::send: return send(request, request.peer, input_part(request, 0));
    case Kind::receive: return receive(request, request.peer, output_part(request, 0));
  }
}

void Operation::send(const Request& request, int rank, std::span<const std::byte> bytes) {
  if (rank == place_.rank) return to_itself_.push_back(bytes);
  messages_.to[static_cast<std::size_t>(rank)].push_back({tag_of(request), bytes});
}

void Operation::receive(const Request& request, int rank, std::span<std::byte> bytes) {
  if (rank == place_.rank) return from_itself_.push_back(bytes);
  messages_.from[static_cast<std::size_t>(rank)].push_back({tag_of(request), bytes});
}

void Operation::send_to_others(const Request& request, std::span<const std::byte> bytes) {
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank != place_.rank) send(request, rank, bytes);
  }
}

void Operation::sum_from_all(const Request& request, std::span<const std::byte> own) {
  Sum sum{.request = request, .sources = {}};
  for (int rank = 0; rank < place_.size; ++rank) {
    if (rank == place_.rank) {
      sum.sources.push_back(own.data());
      continue;
    }
    std::vector<std::byte>& arrived = scratch_.emplace_back(own.size());
    receive(request, rank, arrived);
    sum.sources.push_back(arrived.data());
  }
  sums_.push_back(std::move(sum));
}

void Operation::multiply() const {
  for (const Product& product : products_) {
    const Request& request = product.request;
    const std::size_t step = element_bytes(request.type);
    for (std::size_t at = 0; at < product.into.size(); at += step) {
      const std::array sources{static_cast<const std::byte*>(request.input) + at, request.factor->data()};
      const std::array output{&product.into[at]};
      cpu_backend::reduce({.type = *summed_type(request.type), .op = ReduceOp::product}, sources, output, {0, 1});
    }
  }
}

bool Operation::sends_nothing() const {
  return std::all_of(messages_.to.begin(), messages_.to.end(), [](const auto& queue) { return queue.empty(); });
}

void Operation::finish() {
  for (const Sum& sum : sums_) {
    const cpu_backend::Reduction reduction{
        .type = *summed_type(sum.request.type), .op = *operator_of(sum.request.op), .ranks = sum.sources.size()};
    const std::array output{static_cast<std::byte*>(sum.request.output)};
    if (sum.request.count > 0) cpu_backend::reduce(reduction, sum.sources, output, {0, sum.request.count});
  }
  for (std::size_t i = 0; i < std::min(to_itself_.size(), from_itself_.size()); ++i) {
    if (!to_itself_[i].empty()) std::memmove(from_itself_[i].data(), to_itself_[i].data(), to_itself_[i].size());
  }
}

}  // namespace ddp::fake_gpu
