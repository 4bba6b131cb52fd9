// Parts of the newest checkpoints in the memory of this process, and buffers for them.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "ddp/checkpointer.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

namespace ddp::checkpoint {

struct Image {
  std::shared_ptr<std::byte[]> data;
  std::size_t bytes = 0;

  std::span<const std::byte> span() const { return {data.get(), bytes}; }
};

// Buffers that are used again once nobody else holds them, because making one anew costs a page fault for each page.
class ImagePool {
 public:
  using Allocate = std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)>;

  Image take(std::size_t bytes, const Allocate& allocate);

 private:
  struct Buffer {
    std::shared_ptr<std::byte[]> data;
    std::size_t capacity = 0;
  };
  std::mutex mutex_;
  std::vector<Buffer> buffers_;
};

struct HeldPart {
  std::size_t part = 0;
  Image image;
};

struct HeldCheckpoint {
  Manifest manifest;
  std::vector<HeldPart> parts;  // this rank's own, and the copy of another's
};

// Which rank keeps the copy of each rank's part: a permutation. It is a rank of another host, unless one host has more
// than half of all ranks. host_of[r] is a number of rank r's host.
std::vector<int> copy_holders(const std::vector<int>& host_of);

}  // namespace ddp::checkpoint

namespace ddp {

class CheckpointMemory::Impl {
 public:
  checkpoint::ImagePool& pool() { return pool_; }
  checkpoint::ImagePool& plain_pool() { return plain_pool_; }  // of the copies of other ranks' parts

  // Before a part is made: of two checkpoints the older one goes, and its buffers are free.
  void make_room();

  // Replaces one of the same id.
  void keep(checkpoint::HeldCheckpoint held);

  // When all ranks have agreed on the newest checkpoint that is whole: the others go. Newer ones lack parts, and one of
  // these would take the place of the whole one in make_room(). Empty: all go.
  void keep_only(const std::optional<checkpoint::CheckpointId>& id);
  std::vector<checkpoint::HeldCheckpoint> held() const;

 private:
  static constexpr std::size_t kHeldMax = 2;

  checkpoint::ImagePool pool_, plain_pool_;
  mutable std::mutex mutex_;
  std::vector<checkpoint::HeldCheckpoint> held_;  // by id: a thread of an earlier round may come late
};

}  // namespace ddp
