// Divides a model's gradients into buckets, each of which is all-reduced as one.
//
// Rules, the same on every rank because they use nothing but the arguments:
//   1. Parameters are taken in reverse order, which is about the order in which backward makes gradients ready.
//   2. Every data type has its own list of buckets. A parameter joins the open bucket of its type; it is never split.
//   3. A bucket closes as soon as its gradients take up its cap or more (padding is not counted), so it may exceed the
//      cap by most of one parameter. The first bucket of a type has `first_bytes` as its cap, those after it `bytes`.
//   4. Buckets are numbered in the order in which their last parameter was taken: the order of their completion.
//   5. Inside a bucket each gradient starts on a multiple of 64 bytes. One element more, of the bucket's type, follows
//      the last gradient: the flag that a rank raises where it leaves a parameter unused.
//
// Pure; any thread.
#pragma once

#include <cstddef>
#include <vector>

#include "ddp/memory.hpp"

namespace ddp::gradient_engine {

constexpr std::size_t kGradientAlignmentBytes = 64;  // a cache line, and the widest vector load

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
  std::size_t count = 0;                // elements in all: gradients, padding, flag

  std::size_t flag() const { return count - 1; }  // index of the flag element
  std::size_t bytes() const { return count * size_of(type); }
};

// Where the gradient of one parameter lies.
struct Slot {
  std::size_t bucket = 0;
  std::size_t offset_bytes = 0;
};

struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<Slot> slots;  // by parameter
};

BucketPlan plan_buckets(const std::vector<GradientSize>& gradients, BucketCaps caps);

}  // namespace ddp::gradient_engine
