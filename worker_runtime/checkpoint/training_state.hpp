// What a Checkpointer saves and loads, as its user has added it.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "ddp/checkpointer.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"
#include "worker_runtime/checkpoint/part_image.hpp"

namespace ddp::checkpoint {

struct NamedText {
  std::string name;
  Checkpointer::Text text;
  bool may_be_missing = false;
  std::function<void()> when_all_have_taken{};  // in load(), on all ranks or on none; may be empty; throws nothing
};

// Where wanted[i] of the manifest goes.
struct LoadTargets {
  std::vector<WantedPiece> wanted;
  std::vector<MemoryRange> memory;  // of each wanted piece
  // Called when all memory is filled. The texts are the memory of some wanted pieces.
  struct FilledText {
    const NamedText* of = nullptr;
    std::string text;
  };
  std::list<FilledText> texts;  // a list, because their addresses are in `memory`
};

// Throws InvalidArgument for the memory of a device that the group does not have.
void require_reachable(const Device& device, const Device& of_group);

class TrainingState {
 public:
  void add(Parameter tensor);
  void add_text(std::string name, Checkpointer::Text text) { texts_.push_back({std::move(name), std::move(text)}); }
  // The same for a text that older checkpoints lack: it is not taken then. `take` of a text may have been called on
  // some ranks only, if load() fails; when_all_have_taken is called on all ranks or on none, and throws nothing.
  void add_text_if_saved(std::string name, Checkpointer::Text text, std::function<void()> when_all_have_taken) {
    texts_.push_back({std::move(name), std::move(text), true, std::move(when_all_have_taken)});
  }
  void add(std::string name, ShardedOptimizer optimizer) {
    optimizers_.emplace_back(std::move(name), std::move(optimizer));
  }
  void add_own(std::function<std::vector<Parameter>()> tensors) { own_.push_back(std::move(tensors)); }
  void add_own_text(std::string name, Checkpointer::Text text) {
    own_texts_.push_back({std::move(name), std::move(text)});
  }

  // What this rank saves. The texts are put into `texts`, which has to outlive the entries.
  std::vector<Entry> to_save(int rank, int rank_count, std::list<std::string>& texts);

  // Throws CheckpointError if the manifest lacks a text. has_own: whether each rank finds its own state there.
  LoadTargets to_load(const Manifest& manifest, int rank, bool has_own);

 private:
  std::vector<Entry> shared_tensors();
  std::vector<Entry> shards();

  std::vector<Parameter> tensors_;
  std::vector<NamedText> texts_;
  std::vector<std::pair<std::string, ShardedOptimizer>> optimizers_;
  std::vector<std::function<std::vector<Parameter>()>> own_;
  std::vector<NamedText> own_texts_;
};

}  // namespace ddp::checkpoint
