#include "worker_runtime/checkpoint/checkpoint_writer.hpp"

#include "ddp/error.hpp"
#include "worker_runtime/agent_link/progress.hpp"
#include "worker_runtime/checkpoint/atomic_file.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/core/bootstrap/host_layout.hpp"
#include "worker_runtime/checkpoint/problem.hpp"
#include "worker_runtime/files/process_log.hpp"
#include "worker_runtime/process_group/deadline_after.hpp"
#include "worker_runtime/process_group/host_bytes.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ddp::checkpoint {
namespace {

using process_group::Within;

constexpr char kProblem = '!';  // begins a text that is no manifest
// Collectives of a group that is aborted end within milliseconds; a disk may take longer.
constexpr std::chrono::milliseconds kGiveUpWait{200};

void write_file(const std::filesystem::path& path, std::span<const std::byte> bytes, AtomicFile::Existing existing) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit(existing);
}

}  // namespace

// What the thread works with; it keeps this alive, also if its caller has given up.
class CheckpointWriter::Task {
 public:
  Task(ProcessGroup group, Where where, std::chrono::milliseconds timeout)
      : group_(std::move(group)),
        where_(std::move(where)),
        options_{.timeout = timeout},
        device_(group_.impl()->backend().device_memory()) {
    layout_ = core::HostLayout::from_identities(gather(core::host_identity()));
    std::vector<int> host_of;
    for (int rank = 0; rank < group_.size(); ++rank) host_of.push_back(layout_.host_of(rank));
    holders_ = copy_holders(host_of);
    agent_link::tell_checkpoint_directory();
  }

  Image take_image(std::size_t bytes) {
    if (where_.memory) where_.memory->make_room();
    return pool().take(bytes, [this](std::size_t size) { return device_->allocate_on_host(size); });
  }

  void run(const PartLayout& layout, const Image& image, Extent extent) {
    const Part part = layout.seal(image.data.get());
    const Manifest manifest = agree_on(encode(layout.manifest(part)), "");
    const bool writes_files = extent == Extent::everywhere && !where_.directory.empty();
    const std::string text = writes_files ? encode(manifest) : "";
    if (writes_files) together(manifest, [&] { check_place(manifest, text.size()); });
    if (where_.memory) copy_to_memory(manifest, image);
    if (extent == Extent::memory_only) return;
    if (writes_files) {
      if (where_.form == CheckpointForm::parts) {
        write_parts(manifest, text, image);
      } else {
        write_single(manifest, image);
      }
    }
    process_log::log({"checkpoint_saved",
                      base::LogFields().add("step", manifest.id.step).add("own_bytes", image.span().size()),
                      base::LogLevel::info});
    agent_link::tell_checkpoint_saved(manifest.id.step);
  }

  void run_failed(const std::string& problem) { static_cast<void>(agree_on("", problem)); }

  // From any thread.
  void abort(const std::string& reason) { group_.abort(reason); }

 private:
  int rank() const { return group_.rank(); }
  bool is_host_leader() const { return layout_.leader_of(layout_.host_of(rank())) == rank(); }
  ImagePool& pool() { return where_.memory ? where_.memory->pool() : pool_; }

  // Of plain memory, which is not for copies to and from a GPU.
  Image take_plain_image(std::uint64_t bytes) {
    ImagePool& pool = where_.memory ? where_.memory->plain_pool() : plain_pool_;
    return pool.take(static_cast<std::size_t>(bytes),
                     [](std::size_t size) { return process_group::host_memory()->allocate_on_host(size); });
  }

  std::vector<std::string> gather(const std::string& text) {
    return process_group::all_gather_texts(group_, text, Within::checkpoint, options_);
  }

  // own: the manifest of this rank's part; empty if there is a problem
  Manifest agree_on(const std::string& own, const std::string& problem) {
    const auto texts = gather(problem.empty() ? own : kProblem + problem);
    std::vector<Manifest> manifests;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      if (texts[r].front() == kProblem) {
        throw CheckpointError("no checkpoint was saved: rank " + std::to_string(r) + ": " + texts[r].substr(1));
      }
      manifests.push_back(parse_manifest(texts[r]));
    }
    return merge(manifests);
  }

  // A rank's own part stays where it is. All ranks have both parts before any of them makes room for the next.
  void copy_to_memory(const Manifest& manifest, const Image& image) {
    HeldCheckpoint held{manifest, {{static_cast<std::size_t>(rank()), image}}};
    const int holder = holders_[static_cast<std::size_t>(rank())];
    if (holder != rank()) {
      const auto owner = static_cast<int>(std::find(holders_.begin(), holders_.end(), rank()) - holders_.begin());
      const Part& theirs = manifest.parts[static_cast<std::size_t>(owner)];
      Image copy;
      together(manifest, [&] { copy = take_plain_image(theirs.bytes); });
      process_group::exchange(group_, {holder, image.span()}, {owner, {copy.data.get(), copy.bytes}}, options_);
      held.parts.push_back({static_cast<std::size_t>(owner), copy});
    }
    where_.memory->keep(std::move(held));
    gather("");
  }

  // Every rank does its part; what fails on one fails on all.
  template <class Step>
  void together(const Manifest& manifest, const Step& step) {
    const std::string problem = problem_of_ranks(group_, problem_of(step), options_);
    if (problem.empty()) return;
    throw CheckpointError("the checkpoint of step " + std::to_string(manifest.id.step) +
                          " is not complete: " + problem);
  }

  CheckpointPath place_of(const Manifest& manifest) const {
    return where_.form == CheckpointForm::parts ? folder_of_parts(where_.directory, manifest.id)
                                                : single_file(where_.directory, manifest.id);
  }

  // Before anything is changed.
  void check_place(const Manifest& manifest, std::size_t manifest_bytes) const {
    const CheckpointPath place = place_of(manifest);
    if (std::filesystem::exists(place.has_parts ? manifest_path(place) : place.path)) refuse_existing(place);
    require_not_superseded(where_.directory, place, where_.keep);
    if (manifest_bytes > kManifestBytesMax) {
      throw CheckpointError("its manifest would have " + std::to_string(manifest_bytes) + " bytes, more than " +
                            std::to_string(kManifestBytesMax) + "\ntry:   fewer tensors, or fewer ranks");
    }
  }

  // text: that of the manifest
  void write_parts(const Manifest& manifest, const std::string& text, const Image& image) {
    const CheckpointPath folder = place_of(manifest);
    together(manifest, [&] {
      make_directory(folder.path);
      // Replaces what an earlier save that failed has left.
      write_file(part_path(folder, static_cast<std::size_t>(rank()), manifest.parts.size()), image.span(),
                 AtomicFile::Existing::replace);
    });
    // One rank of each host makes it complete, and any that has a folder of its own. If hosts share the disk, each
    // writes the same.
    bool tidies_up = is_host_leader();
    const auto complete = [&] {
      write_file(manifest_path(folder), std::as_bytes(std::span(text)), AtomicFile::Existing::replace);
    };
    together(manifest, [&] {
      if (is_host_leader()) complete();
    });
    together(manifest, [&] {
      if (std::filesystem::exists(manifest_path(folder))) return;
      tidies_up = true;
      complete();
    });
    // Only now is the new one complete on all hosts, and the old ones are needed no more.
    if (tidies_up) static_cast<void>(problem_of([&] { remove_old(where_.directory, where_.keep); }));
  }

  void write_single(const Manifest& manifest, const Image& image) {
    const CheckpointPath file = place_of(manifest);
    SingleImage whole;
    Image received;  // a part of another rank
    together(manifest, [&] {
      if (rank() != 0) return;
      whole = SingleImage::of(manifest, group_.size());
      whole.image = take_plain_image(whole.layout->bytes());
      std::uint64_t longest = 0;
      for (std::size_t part = 1; part < manifest.parts.size(); ++part) {
        longest = std::max(longest, manifest.parts[part].bytes);
      }
      received = take_plain_image(longest);
    });
    for (int source = 0; source < group_.size(); ++source) {
      const Part& part = manifest.parts[static_cast<std::size_t>(source)];
      if (source == 0) {
        if (rank() == 0) whole.place(0, image.span());
        continue;
      }
      if (rank() == source) process_group::exchange(group_, {0, image.span()}, {}, options_);
      if (rank() != 0) continue;
      const std::span<std::byte> theirs(received.data.get(), static_cast<std::size_t>(part.bytes));
      process_group::exchange(group_, {}, {source, theirs}, options_);
      whole.place(static_cast<std::size_t>(source), theirs);
    }
    together(manifest, [&] {
      if (rank() != 0) return;
      whole.seal();
      make_directory(where_.directory);
      write_file(file.path, whole.image.span(), AtomicFile::Existing::refuse);
    });
    if (rank() == 0) static_cast<void>(problem_of([&] { remove_old(where_.directory, where_.keep); }));
  }

  // The whole of a checkpoint as one safetensors file, which is put together from parts.
  struct SingleImage {
    std::optional<PartLayout> layout;
    std::vector<Read> reads;
    std::vector<std::uint64_t> offsets;  // by wanted tensor
    Image image;

    static SingleImage of(const Manifest& manifest, int rank_count) {
      SingleImage whole;
      std::vector<Entry> entries;
      std::vector<WantedPiece> wanted;
      for (const auto& [key, tensor] : manifest.tensors) {
        const std::vector<std::uint64_t> shape(tensor.shape.begin(), tensor.shape.end());
        const std::uint64_t count = size_of_shape(shape, tensor.type, key.name).count;
        entries.push_back({key, tensor.shape, 0, MemoryRange(nullptr, count, tensor.type)});
        wanted.push_back({key, tensor.type, tensor.shape, 0, count});
      }
      whole.layout.emplace(entries, manifest.id, 0, rank_count);
      whole.reads = plan_reads(manifest, wanted);
      for (std::size_t i = 0; i < entries.size(); ++i) whole.offsets.push_back(whole.layout->offset_of(i));
      return whole;
    }

    void place(std::size_t part, std::span<const std::byte> bytes) {
      for (const Read& read : reads) {
        if (read.part != part) continue;
        std::memcpy(image.data.get() + offsets[read.wanted] + read.to, bytes.data() + read.from,
                    static_cast<std::size_t>(read.bytes));
      }
    }

    void seal() { layout->seal(image.data.get()); }
  };

  [[noreturn]] static void refuse_existing(const CheckpointPath& path) {
    throw CheckpointError(path.path.string() +
                          " is there already\nwhere: saving a checkpoint; nothing was changed\n"
                          "try:   one save() for each step of a round, or another folder for this run");
  }

  ProcessGroup group_;
  Where where_;
  CollectiveOptions options_;
  std::shared_ptr<process_group::DeviceMemory> device_;
  core::HostLayout layout_;
  std::vector<int> holders_;  // of the copy of each rank's part
  ImagePool pool_;            // without memory; as is the next
  ImagePool plain_pool_;
};

CheckpointWriter::CheckpointWriter(ProcessGroup group, Where where, std::chrono::milliseconds timeout)
    : task_(std::make_shared<Task>(std::move(group), std::move(where), timeout)), timeout_(timeout) {}

CheckpointWriter::~CheckpointWriter() {
  try {
    wait();
  } catch (const std::exception& error) {
    const bool is_told = std::uncaught_exceptions() > exceptions_ && !dynamic_cast<const CheckpointError*>(&error);
    if (!is_told) std::fprintf(stderr, "error: %s\n", error.what());
  }
}

void CheckpointWriter::give_up(const std::string& reason) {
  task_->abort(reason);
  try {
    static_cast<void>(thread_.wait_until(std::chrono::steady_clock::now() + kGiveUpWait));
  } catch (const std::exception&) {  // the group's failure, which the caller knows
  }
  thread_.forget();
}

void CheckpointWriter::wait() {
  if (thread_.wait_until(process_group::deadline_after(timeout_).end())) return;
  throw TimeoutError("the checkpoint before is still being written, after " + std::to_string(timeout_.count()) +
                     " ms\nwhere: Checkpointer\ntry:   a faster disk, fewer checkpoints, or a longer write_timeout");
}

Image CheckpointWriter::take_image(std::size_t bytes) { return task_->take_image(bytes); }

void CheckpointWriter::begin(PartLayout layout, Image image, Extent extent) {
  thread_.begin([task = task_, layout = std::move(layout), image = std::move(image), extent] {
    task->run(layout, image, extent);
  });
}

void CheckpointWriter::begin_failed(const std::string& problem) {
  thread_.begin([task = task_, problem] { task->run_failed(problem); });
}

}  // namespace ddp::checkpoint
