// Lays a model's gradients out in memory: one piece for the whole model, divided into buckets.
//
// Rules, the same on every rank because they use nothing but the arguments:
//   1. Parameters are taken in the order given: about the order in which backward makes gradients ready.
//   2. Every data type has its own list of buckets. A parameter joins the open bucket of its type; it is never split.
//   3. A bucket closes as soon as its gradients take up its cap or more (padding is not counted), so it may exceed the
//      cap by most of one parameter. The first bucket of a type has `first_bytes` as its cap, those after it `bytes`.
//   4. Buckets are numbered in the order in which their last parameter was taken: the order of their completion.
//   5. Inside a bucket each gradient starts on a multiple of 64 bytes.
//   6. A bucket's place is padded to a multiple of 64 bytes for each rank. So it divides into one shard for each rank
//      (shard_of), and every bucket and every shard starts on a multiple of 64 bytes. An all-reduce leaves the padding
//      at the end out.
//   7. The flags of the plan follow the last bucket, in a bucket of their own.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

constexpr std::size_t kGradientAlignmentBytes = 64;  // a cache line, and the widest vector load; NCCL's is 16

struct GradientSize {
  DataType type = DataType::float32;
  std::size_t count = 0;
};

struct BucketCaps {
  std::size_t first_bytes = 0;
  std::size_t bytes = 0;
};

struct Bucket {
  DataType type = DataType::float32;
  std::vector<std::size_t> parameters;  // indices, in the order in which they were taken
  std::size_t count = 0;                // elements up to the end of the last gradient
  std::size_t padded_count = 0;         // a multiple of the number of ranks
  std::size_t offset_bytes = 0;         // from the start of the memory
};

// Where the gradient of one parameter lies.
struct Slot {
  std::size_t bucket = 0;
  std::size_t offset_bytes = 0;  // from the start of the bucket
};

struct Layout {
  std::vector<Bucket> buckets;
  std::vector<Slot> slots;       // by parameter
  std::size_t flags_offset = 0;  // bytes from the start of the memory: where the gradients, with all padding, end
  std::size_t bytes = 0;         // of all, flags included
};

// order:       each index into `gradients` once
// flags_bytes: what the flags take
// rank_count:  > 0
Layout lay_out(const std::vector<GradientSize>& gradients, const std::vector<std::size_t>& order, BucketCaps caps,
               std::size_t flags_bytes, std::size_t rank_count);

// A line for each bucket: "bucket 0: float32, 4096 bytes: head.weight, head.bias". The bytes are those of the gradients
// and of the padding between them. names: by parameter.
std::string describe(const Layout& layout, const std::vector<std::string>& names);

// The order before any step has shown a better one: the last parameter first.
std::vector<std::size_t> reverse_order(std::size_t parameter_count);

// The elements [first, first + count) of a bucket, padding included, that one rank owns.
struct Shard {
  std::size_t first = 0;
  std::size_t count = 0;
};

// Shards are of one size; rank r owns the r-th. Requires rank < rank_count, and the rank_count of lay_out().
Shard shard_of(const Bucket& bucket, std::size_t rank, std::size_t rank_count);

}  // namespace ddp::gradient_engine
