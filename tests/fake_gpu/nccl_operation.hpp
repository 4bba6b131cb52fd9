// What the calls of one group come to on one communicator: messages that all go at once, and then what is summed and
// copied on this rank. Sums are the cpu backend's, over the ranks in order, so all ranks get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_gpu/nccl_exchange.hpp"
#include "worker_runtime/backends/nccl/nccl_abi.hpp"
#include "worker_runtime/tensor/scalar.hpp"

namespace ddp::fake_gpu {

namespace abi = nccl_backend::abi;

// As NCCL's calls take them: `count` is that of one rank's part.
struct Request {
  enum class Kind : std::uint8_t {
    all_reduce,
    broadcast,
    reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather,
    scatter,
    send,
    receive
  };
  Kind kind = Kind::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  abi::DataType type = abi::DataType::float32;
  abi::RedOp op = abi::RedOp::sum;
  int peer = 0;  // or root

  // Of a sum whose input is multiplied first: by an element of `type`.
  std::optional<tensor::Scalar> factor{};
};

std::size_t element_bytes(abi::DataType type);  // 0 for a type that does not exist

struct Place {
  int rank = 0;
  int size = 1;
  int device = 0;  // as the process counts them
};

// What is wrong with it, such as memory that no device has; empty where nothing is.
std::string mistake_in(const Request& request, const Place& place);

class Operation {
 public:
  Operation(std::vector<Request> requests, const Place& place);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Before the messages go, when the input is there.
  void multiply() const;

  // Valid while this lives; once.
  Messages take_messages() { return std::move(messages_); }
  bool sends_nothing() const;

  // Once all messages have arrived.
  void finish();

 private:
  struct Sum {
    Request request;
    std::vector<const std::byte*> sources;  // by rank
  };

  struct Product {
    Request request;
    std::vector<std::byte>& into;
  };

  void plan(Request request);
  void send(const Request& request, int rank, std::span<const std::byte> bytes);
  void receive(const Request& request, int rank, std::span<std::byte> bytes);
  void send_to_others(const Request& request, std::span<const std::byte> bytes);
  void sum_from_all(const Request& request, std::span<const std::byte> own);

  Place place_;
  Messages messages_;
  std::deque<std::vector<std::byte>> scratch_;
  std::vector<Product> products_;
  std::vector<Sum> sums_;
  std::deque<std::span<const std::byte>> to_itself_;  // as the next: copied in order
  std::deque<std::span<std::byte>> from_itself_;
};

}  // namespace ddp::fake_gpu
