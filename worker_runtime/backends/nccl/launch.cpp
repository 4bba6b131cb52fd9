#include "worker_runtime/backends/nccl/launch.hpp"

#include <cstddef>

#include "worker_runtime/backends/nccl/cuda.hpp"
#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::nccl_backend {

namespace {

using abi::Result;
using process_group::Collective;
using process_group::CollectiveKind;

bool is_error(Result result) { return result != Result::success && result != Result::in_progress; }

// One collective of several sends and receives.
class Launcher {
 public:
  Launcher(const NcclLibrary& nccl, const Collective& collective, const LaunchPlace& place, abi::Comm comm)
      : nccl_(nccl), collective_(collective), place_(place), comm_(comm), type_(nccl_type(collective)) {}

  Result run();

 private:
  Result run_with(abi::RedOp op);
  Result run_premultiplied();
  const void* input() const { return collective_.input.data; }
  void* output() const { return collective_.output.data; }
  std::size_t count() const { return collective_.input.count; }

  static std::size_t part_bytes(const ConstMemoryRange& part, std::size_t count, int index) {
    return static_cast<std::size_t>(index) * count * size_of(part.type);
  }
  const std::byte* input_part(int index, std::size_t part_count) const {
    return static_cast<const std::byte*>(input()) + part_bytes(collective_.input, part_count, index);
  }
  std::byte* output_part(int index, std::size_t part_count) const {
    return static_cast<std::byte*>(output()) + part_bytes(collective_.output, part_count, index);
  }

  Result send(const void* data, std::size_t count, int peer) {
    return nccl_->send(data, count, type_, peer, comm_, place_.stream);
  }
  Result receive(void* data, std::size_t count, int peer) {
    return nccl_->recv(data, count, type_, peer, comm_, place_.stream);
  }
  Result copy_own(void* to, const void* from, std::size_t count) const;
  Result gather();
  Result scatter();
  Result all_to_all();
  Result all_gather_v();
  Result reduce_scatter_v(abi::RedOp op);
  Result all_to_all_v();

  const NcclLibrary& nccl_;
  const Collective& collective_;
  const LaunchPlace& place_;
  abi::Comm comm_;
  abi::DataType type_;
};

// A rank sends itself nothing: a copy in the stream is all it takes.
Result Launcher::copy_own(void* to, const void* from, std::size_t count) const {
  if (to == from || count == 0) return Result::success;
  check(cudaMemcpyAsync(to, from, count * size_of(collective_.input.type), cudaMemcpyDeviceToDevice, place_.stream),
        "copying a rank's own part");
  return Result::success;
}

Result Launcher::gather() {
  if (nccl_->gather != nullptr) {
    return nccl_->gather(input(), output(), count(), type_, collective_.root, comm_, place_.stream);
  }
  if (place_.rank != collective_.root) return send(input(), count(), collective_.root);
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer == place_.rank) continue;
    if (const Result result = receive(output_part(peer, count()), count(), peer); is_error(result)) return result;
  }
  return copy_own(output_part(place_.rank, count()), input(), count());
}

Result Launcher::scatter() {
  const std::size_t part = collective_.output.count;
  if (nccl_->scatter != nullptr) {
    return nccl_->scatter(input(), output(), part, type_, collective_.root, comm_, place_.stream);
  }
  if (place_.rank != collective_.root) return receive(output(), part, collective_.root);
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer == place_.rank) continue;
    if (const Result result = send(input_part(peer, part), part, peer); is_error(result)) return result;
  }
  return copy_own(output(), input_part(place_.rank, part), part);
}

Result Launcher::all_to_all() {
  const std::size_t part = count() / static_cast<std::size_t>(place_.size);
  if (nccl_->all_to_all != nullptr) return nccl_->all_to_all(input(), output(), part, type_, comm_, place_.stream);
  for (int peer = 0; peer < place_.size; ++peer) {
    if (peer == place_.rank) continue;
    if (const Result result = send(input_part(peer, part), part, peer); is_error(result)) return result;
    if (const Result result = receive(output_part(peer, part), part, peer); is_error(result)) return result;
  }
  return copy_own(output_part(place_.rank, part), input_part(place_.rank, part), part);
}

// A part that is empty on one side is so on the other.
Result Launcher::all_gather_v() {
  const std::vector<std::size_t>& counts = collective_.counts->of_output;
  std::byte* to = static_cast<std::byte*>(output());
  std::byte* own = nullptr;
  for (int peer = 0; peer < place_.size; ++peer) {
    const std::size_t part = counts[static_cast<std::size_t>(peer)];
    if (peer == place_.rank) own = to;
    const bool is_other = peer != place_.rank;
    if (const Result result = is_other && count() > 0 ? send(input(), count(), peer) : Result::success;
        is_error(result)) {
      return result;
    }
    if (const Result result = is_other && part > 0 ? receive(to, part, peer) : Result::success; is_error(result)) {
      return result;
    }
    to += part_bytes(collective_.output, part, 1);
  }
  return copy_own(own, input(), count());
}

Result Launcher::all_to_all_v() {
  const process_group::PartCounts& counts = *collective_.counts;
  const std::byte* from = static_cast<const std::byte*>(input());
  std::byte* to = static_cast<std::byte*>(output());
  Result own = Result::success;
  for (int peer = 0; peer < place_.size; ++peer) {
    const std::size_t given = counts.of_input[static_cast<std::size_t>(peer)];
    const std::size_t taken = counts.of_output[static_cast<std::size_t>(peer)];
    if (peer == place_.rank) {
      own = copy_own(to, from, given);
    } else {
      if (const Result result = given > 0 ? send(from, given, peer) : Result::success; is_error(result)) return result;
      if (const Result result = taken > 0 ? receive(to, taken, peer) : Result::success; is_error(result)) return result;
    }
    from += part_bytes(collective_.input, given, 1);
    to += part_bytes(collective_.output, taken, 1);
  }
  return own;
}

// A reduce to each rank.
Result Launcher::reduce_scatter_v(abi::RedOp op) {
  const std::byte* from = static_cast<const std::byte*>(input());
  Result last = Result::success;
  for (int root = 0; root < place_.size; ++root) {
    const std::size_t part = collective_.counts->of_input[static_cast<std::size_t>(root)];
    if (part > 0) last = nccl_->reduce(from, output(), part, type_, op, root, comm_, place_.stream);
    if (is_error(last)) return last;
    from += part_bytes(collective_.input, part, 1);
  }
  return last;
}

// NCCL looks at the operator in the calls themselves, not where their group ends.
Result Launcher::run_premultiplied() {
  tensor::Scalar factor = tensor::scalar_of(collective_.factor, collective_.input.type).value();
  abi::RedOp op{};
  const Result made =
      nccl_->red_op_create_pre_mul_sum(&op, factor.data(), type_, abi::ScalarResidence::host_immediate, comm_);
  if (made != Result::success) return made;
  const Result result = run_with(op);
  const Result destroyed = nccl_->red_op_destroy(op, comm_);
  return is_error(result) ? result : destroyed;
}

Result Launcher::run() {
  if (collective_.op == ReduceOp::premul_sum) return run_premultiplied();
  // The average of one rank is its own values, but NCCL reads and writes them all for it; for a sum it does nothing.
  const bool is_own_average = place_.size == 1 && collective_.op == ReduceOp::average;
  return run_with(is_own_average ? abi::RedOp::sum : nccl_op(collective_));
}

Result Launcher::run_with(abi::RedOp op) {
  switch (collective_.kind) {
    case CollectiveKind::barrier:
      return nccl_->all_reduce(place_.words, place_.words, 1, abi::DataType::int64, abi::RedOp::sum, comm_,
                               place_.stream);
    case CollectiveKind::allocate:
      return nccl_->all_gather(place_.words + static_cast<std::size_t>(place_.rank) * kWordsPerRank, place_.words,
                               kWordsPerRank, abi::DataType::int64, comm_, place_.stream);
    case CollectiveKind::all_reduce:
      return nccl_->all_reduce(input(), output(), count(), type_, op, comm_, place_.stream);
    case CollectiveKind::broadcast:
      return nccl_->broadcast(input(), output(), count(), type_, collective_.root, comm_, place_.stream);
    case CollectiveKind::all_gather: return nccl_->all_gather(input(), output(), count(), type_, comm_, place_.stream);
    case CollectiveKind::reduce_scatter:
      return nccl_->reduce_scatter(input(), output(), collective_.output.count, type_, op, comm_, place_.stream);
    case CollectiveKind::reduce:
      return nccl_->reduce(input(), output(), count(), type_, op, collective_.root, comm_, place_.stream);
    case CollectiveKind::gather: return gather();
    case CollectiveKind::scatter: return scatter();
    case CollectiveKind::all_to_all: return all_to_all();
    case CollectiveKind::all_gather_v: return all_gather_v();
    case CollectiveKind::reduce_scatter_v: return reduce_scatter_v(op);
    case CollectiveKind::all_to_all_v: return all_to_all_v();
    case CollectiveKind::send: return send(input(), count(), collective_.root);
    case CollectiveKind::receive: return receive(output(), collective_.output.count, collective_.root);
  }
  return Result::invalid_argument;
}

}  // namespace

abi::DataType nccl_type(const Collective& collective) {
  const bool reduces = process_group::has_op(collective.kind);
  const DataType type = collective.input.type;
  switch (type) {
    case DataType::float32: return abi::DataType::float32;
    case DataType::float64: return abi::DataType::float64;
    case DataType::int64: return abi::DataType::int64;
    case DataType::float16: return abi::DataType::float16;
    case DataType::bfloat16: return abi::DataType::bfloat16;
    case DataType::int32: return abi::DataType::int32;
    case DataType::uint8:
    case DataType::boolean: return abi::DataType::uint8;
    case DataType::int8: return abi::DataType::int8;
    case DataType::float8_e4m3fn: return reduces ? abi::DataType::float8_e4m3 : abi::DataType::uint8;
    case DataType::float8_e5m2: return reduces ? abi::DataType::float8_e5m2 : abi::DataType::uint8;
  }
  throw InvalidArgument("there is no DataType with the number " + std::to_string(static_cast<int>(type)));
}

abi::RedOp nccl_op(const Collective& collective) {
  const ReduceOp op = collective.op;
  if (collective.input.type == DataType::boolean) {
    return op == ReduceOp::sum || op == ReduceOp::max ? abi::RedOp::max : abi::RedOp::min;
  }
  switch (op) {
    case ReduceOp::sum: return abi::RedOp::sum;
    case ReduceOp::average: return abi::RedOp::average;
    case ReduceOp::product: return abi::RedOp::product;
    case ReduceOp::min: return abi::RedOp::min;
    case ReduceOp::max: return abi::RedOp::max;
    case ReduceOp::premul_sum: break;  // made for each call
  }
  throw InvalidArgument("there is no ReduceOp with the number " + std::to_string(static_cast<int>(op)));
}

void require_support(const NcclLibrary& nccl, const Collective& collective) {
  if (collective.tag != 0) {
    throw InvalidArgument(std::string(name_of(collective.kind)) + ": a tag of " + std::to_string(collective.tag) +
                          ", and NCCL has no tags\ntry:   no tag, or host memory and the backend cpu");
  }
  if (collective.source != nullptr) {
    throw InvalidArgument(
        "receive_from_any: NCCL receives from one rank only, which it has to be told\ntry:   receive() from a rank, or "
        "host memory and the backend cpu");
  }
  const DataType type = collective.input.type;
  const bool is_float8 = type == DataType::float8_e4m3fn || type == DataType::float8_e5m2;
  if (is_float8 && process_group::has_op(collective.kind) && nccl.version() < abi::kVersionWithFloat8) {
    throw InvalidArgument(std::string(name_of(collective.kind)) + ": " + nccl.name() + " reduces no " + name_of(type) +
                          ", which NCCL has from 2.24.3 on\ntry:   a later NCCL, or float16");
  }
}

Result launch(const NcclLibrary& nccl, const Collective& collective, const LaunchPlace& place, abi::Comm comm) {
  return Launcher(nccl, collective, place, comm).run();
}

}  // namespace ddp::nccl_backend
