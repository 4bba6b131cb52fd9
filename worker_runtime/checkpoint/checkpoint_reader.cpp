#include "worker_runtime/checkpoint/checkpoint_reader.hpp"

#include "base/unique_fd.hpp"
#include "ddp/error.hpp"
#include "worker_runtime/checkpoint/candidates.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/problem.hpp"
#include "worker_runtime/checkpoint/read_at.hpp"
#include "worker_runtime/process_group/host_bytes.hpp"
#include "worker_runtime/process_group/process_group_impl.hpp"
#include "worker_runtime/tensor/checksum.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

namespace ddp::checkpoint {
namespace {

using process_group::Within;

// Of an error's text. What it says to try is for whoever reads that one file.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

constexpr std::size_t kReadBytes = 4u << 20;  // at once, to compute a checksum

// A part that this rank can read: a file, or memory.
class PartReader {
 public:
  explicit PartReader(Image image) : image_(std::move(image)) {}
  explicit PartReader(std::filesystem::path path) : path_(std::move(path)) {
    fd_ = base::UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd_) fail(std::generic_category().message(errno));
  }

  void read(std::uint64_t at, std::span<std::byte> bytes) const {
    if (image_.data) {
      if (at + bytes.size() > image_.bytes) fail("it is shorter");
      std::memcpy(bytes.data(), image_.data.get() + at, bytes.size());
      return;
    }
    try {
      read_at(fd_.get(), bytes, at);
    } catch (const CheckpointError& error) {
      fail(error.what());
    }
  }

  void check(const Part& part) const {
    if (!part.data_checksum) return;
    tensor::Checksum checksum;
    std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, part.bytes)));
    for (std::uint64_t at = part.data_at; at < part.bytes; at += buffer.size()) {
      const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), part.bytes - at));
      read(at, {buffer.data(), count});
      checksum.add({buffer.data(), count});
    }
    if (checksum.value() == *part.data_checksum) return;
    fail("its checksum is " + text_of_checksum(checksum.value()) + " instead of " +
         text_of_checksum(*part.data_checksum));
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw CheckpointError((image_.data ? std::string("a part in memory") : path_.string()) + ": " + reason);
  }

  Image image_;
  std::filesystem::path path_;
  base::UniqueFd fd_;
};

// What this rank has of one checkpoint.
struct Reachable {
  Offer offer;
  std::optional<Manifest> manifest;
  std::map<std::size_t, Image> images;  // by part
  std::map<std::size_t, std::filesystem::path> files;

  PartReader reader_of(std::size_t part) const {
    const auto image = images.find(part);
    return image != images.end() ? PartReader(image->second) : PartReader(files.at(part));
  }
};

Reachable in_memory(const HeldCheckpoint& held) {
  const std::string place = "of step " + std::to_string(held.manifest.id.step) + " in memory";
  Reachable reachable{
      {held.manifest.id, Source::memory, held.manifest.parts.size(), 0, {}, place, "", true}, held.manifest, {}, {}};
  for (const HeldPart& part : held.parts) reachable.images[part.part] = part.image;
  return reachable;
}

void read_parts(const CheckpointPath& path, Reachable& reachable) {
  reachable.manifest = parse_checked_manifest(read_text(manifest_path(path), kManifestBytesMax));
  const Manifest& manifest = *reachable.manifest;
  if (!(manifest.id == path.id)) throw CheckpointError("its manifest is of another checkpoint");
  for (std::size_t part = 0; part < manifest.parts.size(); ++part) {
    const auto file = part_path(path, part, manifest.parts.size());
    std::error_code error;
    const auto bytes = std::filesystem::file_size(file, error);
    if (!error && bytes == manifest.parts[part].bytes) {
      reachable.files[part] = file;
    } else if (reachable.offer.problem.empty()) {
      reachable.offer.problem = file.string() + ": " +
                                (error ? error.message()
                                       : "it has " + std::to_string(bytes) + " bytes instead of " +
                                             std::to_string(manifest.parts[part].bytes));
    }
  }
}

void read_single(const CheckpointPath& path, Reachable& reachable) {
  const SafetensorsFile file = SafetensorsFile::open(path.path);
  std::uint64_t end = 0, data_at = std::filesystem::file_size(path.path);
  for (const auto& [name, tensor] : file.tensors()) {
    data_at = std::min<std::uint64_t>(data_at, tensor.offset);
    end = std::max<std::uint64_t>(end, tensor.offset + tensor.count * size_of(tensor.type));
  }
  if (file.tensors().empty()) end = data_at;
  reachable.manifest = manifest_of(file, data_at, end, path.id);
  reachable.files[0] = path.path;
}

Reachable on_disk(const CheckpointPath& path) {
  Reachable reachable{
      {path.id, path.has_parts ? Source::parts : Source::single, 0, 0, {}, path.path.string(), "", true}, {}, {}, {}};
  try {
    if (!is_complete(path)) {
      reachable.offer.is_complete = false;
      throw CheckpointError("its writer did not come to the end: it has no manifest.json");
    }
    path.has_parts ? read_parts(path, reachable) : read_single(path, reachable);
  } catch (const std::exception& error) {
    reachable.manifest.reset();
    reachable.files.clear();
    reachable.offer.problem = first_line(error.what());
  }
  return reachable;
}

std::vector<Reachable> reachable_from(const LoadFrom& from) {
  std::vector<Reachable> all;
  if (from.memory) {
    for (const HeldCheckpoint& held : from.memory->held()) all.push_back(in_memory(held));
  }
  if (!from.directory.empty()) {
    for (const CheckpointPath& path : list_checkpoints(from.directory)) all.push_back(on_disk(path));
  }
  for (Reachable& each : all) {
    if (each.manifest) {
      each.offer.part_count = each.manifest->parts.size();
      const std::string text = encode(*each.manifest);
      each.offer.manifest_checksum = tensor::checksum_of(std::as_bytes(std::span(text)));
    }
    for (const auto& [part, image] : each.images) each.offer.parts.push_back(part);
    for (const auto& [part, file] : each.files) each.offer.parts.push_back(part);
  }
  return all;
}

// Calls that all ranks make together: an error of one is known to all.
class Loader {
 public:
  Loader(ProcessGroup& group, const LoadFrom& from, TrainingState& state) : group_(group), from_(from), state_(state) {}

  std::optional<LoadedCheckpoint> run() {
    std::string problem = together([&] { reachable_ = reachable_from(from_); });
    if (!problem.empty()) throw CheckpointError(problem);
    std::vector<Offer> own;
    for (const Reachable& each : reachable_) own.push_back(each.offer);
    std::vector<std::vector<Offer>> offers;
    for (const std::string& text : gather(encode(own))) offers.push_back(parse_offers(text));
    bool is_any_broken = false;
    const std::vector<Candidate> candidates = candidates_of(offers);
    for (const Candidate& candidate : candidates) {
      problem = candidate.problem.empty() ? verify(candidate) : candidate.problem;
      if (problem.empty()) return load(candidate);
      is_any_broken = is_any_broken || (candidate.is_complete && candidate.source != Source::memory);
      if (group_.rank() == 0) {
        static_cast<void>(
            problem_of([&] { from_.warn("checkpoint " + candidate.place + " is passed over: " + problem); }));
      }
    }
    if (!is_any_broken) return {};
    if (is_any_new(candidates)) return run();  // another job has removed those, because it has saved newer ones
    throw CheckpointError("no checkpoint in " + from_.directory.string() +
                          " can be loaded, though there are some\nwhere: Checkpointer::load\n"
                          "try:   see the warnings before; remove the broken checkpoints to start afresh");
  }

 private:
  // Empty if no rank had a problem.
  template <class Step>
  std::string together(const Step& step) {
    return problem_of_ranks(group_, first_line(problem_of(step)), from_.options);
  }

  std::vector<std::string> gather(const std::string& text) {
    return process_group::all_gather_texts(group_, text, Within::checkpoint, from_.options);
  }

  // Whether any rank sees a complete checkpoint that is newer than the newest candidate.
  bool is_any_new(const std::vector<Candidate>& candidates) {
    bool is_new = false;
    static_cast<void>(problem_of([&] {
      for (const CheckpointPath& path : list_checkpoints(from_.directory)) {
        is_new = is_new || (candidates.front().id < path.id && is_complete(path));
      }
    }));
    const auto texts = gather(is_new ? "new" : "");
    return std::any_of(texts.begin(), texts.end(), [](const std::string& text) { return !text.empty(); });
  }

  // Null if this rank has nothing of it.
  const Reachable* find(const Candidate& candidate) const {
    for (const Reachable& each : reachable_) {
      const Offer& offer = each.offer;
      if (offer.id == candidate.id && offer.source == candidate.source &&
          offer.manifest_checksum == candidate.manifest_checksum) {
        return &each;
      }
    }
    return nullptr;
  }

  std::string verify(const Candidate& candidate) {
    return together([&] {
      for (std::size_t part = 0; part < candidate.providers.size(); ++part) {
        if (candidate.providers[part] != group_.rank()) continue;
        const Reachable* const own = find(candidate);
        own->reader_of(part).check(own->manifest->parts[part]);
      }
    });
  }

  // All ranks take the manifest of one.
  Manifest share_manifest(const Candidate& candidate) {
    const bool is_source = candidate.manifest_rank == group_.rank();
    std::string text = is_source ? encode(*find(candidate)->manifest) : "";
    const auto texts = gather(std::to_string(text.size()));
    text.resize(std::stoull(texts[static_cast<std::size_t>(candidate.manifest_rank)]));
    process_group::broadcast(
        group_, candidate.manifest_rank, text.size(),
        [&](std::uint64_t at, std::span<std::byte> chunk) {
          std::memcpy(chunk.data(), text.data() + at, chunk.size());
        },
        [&](std::uint64_t at, std::span<const std::byte> chunk) {
          std::memcpy(text.data() + at, chunk.data(), chunk.size());
        },
        from_.options);
    return parse_manifest(text);
  }

  LoadedCheckpoint load(const Candidate& candidate) {
    const Manifest manifest = share_manifest(candidate);
    const bool has_own = manifest.rank_count == group_.size();
    LoadTargets targets;
    std::vector<Read> reads;
    std::string problem = together([&] {
      targets = state_.to_load(manifest, group_.rank(), has_own);
      check_devices(targets.memory);
      reads = plan_reads(manifest, targets.wanted);
    });
    if (!problem.empty()) {
      throw CheckpointError("checkpoint " + candidate.place + " can't be loaded: " + problem +
                            "\nwhere: Checkpointer::load; nothing was changed\n"
                            "try:   add the same tensors as when it was saved, or another folder");
    }
    const std::vector<Audience> audiences = audiences_of(candidate, manifest.parts.size(), reads);
    for (std::size_t part = 0; part < manifest.parts.size(); ++part) {
      if (audiences[part] == Audience::nobody) continue;
      transfer(candidate, manifest, part, audiences[part], targets, reads);
    }
    problem = together([&] {
      for (const auto& [of, text] : targets.texts) of->text.take(text);
    });
    if (!problem.empty()) throw CheckpointError("checkpoint " + candidate.place + " can't be used: " + problem);
    for (const auto& [of, text] : targets.texts) {
      if (of->when_all_have_taken) of->when_all_have_taken();
    }
    return {candidate.id.round, candidate.id.step, manifest.rank_count, has_own, candidate.source == Source::memory};
  }

  void check_devices(const std::vector<MemoryRange>& ranges) const {
    for (const MemoryRange& range : ranges) require_reachable(range.device, group_.device());
  }

  // Who wants bytes of a part; the same on all ranks.
  enum class Audience { nobody, provider, others };

  std::vector<Audience> audiences_of(const Candidate& candidate, std::size_t part_count,
                                     const std::vector<Read>& reads) {
    std::string wanted(part_count, '0');
    for (const Read& read : reads) wanted[read.part] = '1';
    const auto by_rank = gather(wanted);
    std::vector<Audience> audiences(part_count, Audience::nobody);
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      for (std::size_t part = 0; part < part_count; ++part) {
        if (by_rank[rank][part] == '0' || audiences[part] == Audience::others) continue;
        const bool is_provider = candidate.providers[part] == static_cast<int>(rank);
        audiences[part] = is_provider ? Audience::provider : Audience::others;
      }
    }
    return audiences;
  }

  void transfer(const Candidate& candidate, const Manifest& manifest, std::size_t part, Audience audience,
                const LoadTargets& targets, const std::vector<Read>& reads) {
    const int provider = candidate.providers[part];
    std::vector<const Read*> own;  // in the order of bytes
    for (const Read& read : reads) {
      if (read.part == part) own.push_back(&read);
    }
    const std::uint64_t data_at = manifest.parts[part].data_at, bytes = manifest.parts[part].bytes - data_at;
    std::optional<PartReader> reader;
    std::exception_ptr failure;  // of reading, on the provider; thrown after the last chunk, on all ranks
    const auto read = [&](std::uint64_t at, std::span<std::byte> chunk) {
      try {
        if (!reader) reader.emplace(find(candidate)->reader_of(part));
        if (!failure) reader->read(data_at + at, chunk);
      } catch (const CheckpointError&) {
        failure = std::current_exception();
      }
    };
    const auto take = [&](std::uint64_t at, std::span<const std::byte> chunk) {
      fill(own, targets, data_at + at, chunk);
    };
    if (audience == Audience::others) {
      process_group::broadcast(group_, provider, bytes, read, take, from_.options);
    } else if (provider == group_.rank()) {
      std::vector<std::byte> chunk(static_cast<std::size_t>(std::min<std::uint64_t>(kReadBytes, bytes)));
      for (std::uint64_t at = 0; at < bytes; at += chunk.size()) {
        const std::span<std::byte> now(chunk.data(), std::min<std::uint64_t>(chunk.size(), bytes - at));
        read(at, now);
        take(at, now);
      }
    }
    const std::string problem = together([&] {
      if (failure) std::rethrow_exception(failure);
    });
    if (!problem.empty()) throw CheckpointError(problem);
  }

  // Copies what a chunk has, from byte `at` of a part on, to where it is wanted.
  void fill(const std::vector<const Read*>& reads, const LoadTargets& targets, std::uint64_t at,
            std::span<const std::byte> chunk) {
    std::vector<process_group::DeviceMemory::Copy> to_host, to_device;
    for (const Read* const read : reads) {
      const std::uint64_t begin = std::max(at, read->from), end = std::min(at + chunk.size(), read->from + read->bytes);
      if (begin >= end) continue;
      const MemoryRange& memory = targets.memory[read->wanted];
      auto& copies = memory.device == Device{} ? to_host : to_device;
      copies.push_back({static_cast<std::byte*>(memory.data) + read->to + (begin - read->from),
                        chunk.data() + (begin - at), static_cast<std::size_t>(end - begin)});
    }
    process_group::host_memory()->copy_from_host(to_host, nullptr);
    if (!to_device.empty()) group_.impl()->backend().device_memory()->copy_from_host(to_device, nullptr);
  }

  ProcessGroup& group_;
  const LoadFrom& from_;
  TrainingState& state_;
  std::vector<Reachable> reachable_;
};

}  // namespace

std::optional<LoadedCheckpoint> load_newest(ProcessGroup& group, const LoadFrom& from, TrainingState& state) {
  return Loader(group, from, state).run();
}

}  // namespace ddp::checkpoint
