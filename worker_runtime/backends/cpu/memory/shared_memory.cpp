#include "worker_runtime/backends/cpu/memory/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "worker_runtime/backends/cpu/memory/available_memory.hpp"

namespace ddp::cpu_backend {

namespace {

constexpr std::size_t kFillBytes = 64u << 20;  // per system call: a signal makes the kernel undo the whole call
constexpr std::uint64_t kFileBytesMax = std::numeric_limits<std::int64_t>::max() / 2;

[[noreturn]] void fail(int reason, const char* what) { throw std::system_error(reason, std::generic_category(), what); }

std::size_t whole_pages(std::size_t bytes) {
  static const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page_bytes - 1) / page_bytes * page_bytes;
}

Gap whole_pages_of(Gap gap) {
  const std::size_t begin = whole_pages(gap.begin);
  return {.begin = begin, .end = std::max(begin, gap.end - gap.end % whole_pages(1))};
}

// Where the parts of the control block begin, after the words of each rank of this host.
struct ControlParts {
  explicit ControlParts(int here, int noted)
      : notes(static_cast<std::size_t>(here) * sizeof(RankControl)),
        gathered(notes + static_cast<std::size_t>(noted) * sizeof(RankNote)),
        bytes(whole_pages(gathered + static_cast<std::size_t>(noted) * sizeof(GatheredWords))) {}

  std::size_t notes, gathered, bytes;
};

ControlParts parts_of(const HostLayout& layout, int host) {
  const int noted = layout.host_count() > 1 ? layout.size() : 0;
  return ControlParts(static_cast<int>(layout.ranks_of(host).size()), noted);
}

// From one rank's part to the next: one page, which nobody has, more than a part. At a distance of 256 MiB or 512 the
// same element of two ranks is in the same bank of memory, and a sum over both takes half as long again.
std::size_t stride_of(std::size_t bytes) { return whole_pages(bytes) + whole_pages(1); }

// MAP_SHARED, invisible to forked children.
std::byte* map_shared(int file, std::uint64_t offset, std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  if (at == MAP_FAILED) fail(errno, "mmap");
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) {
    const int reason = errno;
    ::munmap(at, bytes);
    fail(reason, "madvise");
  }
  return static_cast<std::byte*>(at);
}

void allocate_pages(int file, std::uint64_t offset, std::size_t bytes) {
  while (bytes > 0) {
    const std::size_t now = std::min(bytes, kFillBytes);
    if (::fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(now)) == 0) {
      offset += now;
      bytes -= now;
    } else if (errno != EINTR) {
      fail(errno, "fallocate");
    }
  }
}

}  // namespace

Segment::Segment(std::shared_ptr<SharedMemory> memory, std::uint64_t offset, std::size_t bytes)
    : memory_(std::move(memory)), offset_(offset), bytes_(bytes), stride_bytes_(stride_of(bytes)) {
  base_ = map_shared(memory_->file_.get(), offset, stride_bytes_ * static_cast<std::size_t>(memory_->size_));
  memory_->add(this);
}

Segment::~Segment() {
  if (memory_->fork_guard_.in_forked_child()) return;  // nothing is mapped here, and the pages are the parent's
  memory_->remove(this);
  ::munmap(base_, stride_bytes_ * static_cast<std::size_t>(memory_->size_));
  if (!keeps_own_part_) memory_->punch(offset_ + static_cast<std::uint64_t>(own_part() - base_), stride_bytes_);
}

std::byte* Segment::own_part() const { return part(memory_->rank_); }

std::optional<Placement> Segment::place(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(own_part());
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  if (at < begin || at - begin > bytes_ || bytes > bytes_ - (at - begin)) return std::nullopt;
  return Placement{base_ + (at - begin), stride_bytes_, offset_ + (at - begin)};
}

bool Segment::has(std::uint64_t location, std::size_t bytes) const {
  return location >= offset_ && location - offset_ <= bytes_ && bytes <= bytes_ - (location - offset_);
}

base::UniqueFd SharedMemory::make_file(const HostLayout& layout, int host) {
  base::UniqueFd file(::memfd_create("ddp", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) fail(errno, "memfd_create");
  allocate_pages(file.get(), 0, parts_of(layout, host).bytes);
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) fail(errno, "F_ADD_SEALS");
  return file;
}

SharedMemory::SharedMemory(base::UniqueFd file, const HostLayout& layout, int rank)
    : file_(std::move(file)),
      rank_(layout.index_of(rank)),
      size_(static_cast<int>(layout.ranks_of(layout.host_of(rank)).size())),
      noted_count_(layout.host_count() > 1 ? layout.size() : 0),
      end_(parts_of(layout, layout.host_of(rank)).bytes) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) fail(errno, "fstat");
  if (static_cast<std::uint64_t>(status.st_size) < end_) fail(EINVAL, "the shared file is too short");
  control_bytes_ = static_cast<std::size_t>(end_);
  control_ = map_shared(file_.get(), 0, control_bytes_);
}

SharedMemory::~SharedMemory() {
  if (!fork_guard_.in_forked_child()) ::munmap(control_, control_bytes_);
}

// The file's zeroes are the first state of everything.
std::span<RankControl> SharedMemory::control() const {
  return {reinterpret_cast<RankControl*>(control_), static_cast<std::size_t>(size_)};
}

std::span<RankNote> SharedMemory::notes() const {
  const ControlParts parts(size_, noted_count_);
  return {reinterpret_cast<RankNote*>(control_ + parts.notes), static_cast<std::size_t>(noted_count_)};
}

std::span<GatheredWords> SharedMemory::gathered() const {
  const ControlParts parts(size_, noted_count_);
  return {reinterpret_cast<GatheredWords*>(control_ + parts.gathered), static_cast<std::size_t>(noted_count_)};
}

SharedMemory::Room SharedMemory::room_for(std::size_t bytes, Gap unused) const {
  const auto parts = static_cast<std::uint64_t>(size_);
  if (bytes > (kFileBytesMax - end_) / parts - stride_of(1)) return {.error = EOVERFLOW};
  const std::uint64_t all_bytes = stride_of(bytes) * parts;
  rlimit file_size{};
  // Growing the file beyond this limit would not only fail, but send SIGXFSZ.
  if (::getrlimit(RLIMIT_FSIZE, &file_size) == 0 && end_ + all_bytes > file_size.rlim_cur) return {.error = EFBIG};
  const Gap gap = whole_pages_of(unused);
  Room room{.needed_bytes = all_bytes - (gap.end - gap.begin) * parts, .available_bytes = available_memory_bytes()};
  if (room.needed_bytes > room.available_bytes) room.error = ENOMEM;
  return room;
}

std::shared_ptr<Segment> SharedMemory::reserve(std::size_t bytes, Gap unused) {
  const std::uint64_t offset = end_;
  const std::size_t part_bytes = whole_pages(bytes);
  end_ += stride_of(bytes) * static_cast<std::uint64_t>(size_);
  const std::uint64_t own = offset + stride_of(bytes) * static_cast<std::uint64_t>(rank_);
  const Gap gap = whole_pages_of(unused);
  try {
    allocate_pages(file_.get(), own, gap.begin);
    allocate_pages(file_.get(), own + gap.end, part_bytes - gap.end);
    return std::make_shared<Segment>(shared_from_this(), offset, bytes);
  } catch (...) {
    punch(own, part_bytes);
    throw;
  }
}

std::optional<Placement> SharedMemory::find(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Segment* segment : segments_) {
    if (auto placement = segment->place(data, bytes)) return placement;
  }
  return std::nullopt;
}

std::shared_ptr<const Segment> SharedMemory::hold(std::uint64_t location, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (const Segment* segment : segments_) {
    if (segment->has(location, bytes)) return segment->weak_from_this().lock();
  }
  return nullptr;
}

void SharedMemory::add(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  segments_.push_back(segment);
}

void SharedMemory::remove(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  std::erase(segments_, segment);
}

void SharedMemory::punch(std::uint64_t offset, std::size_t bytes) {
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(bytes));
}

}  // namespace ddp::cpu_backend
