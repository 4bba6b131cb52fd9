#include "benchmarks/common/sides/zero_copy.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <system_error>

#include "benchmarks/common/sides/values.hpp"

// The same source for each instruction set; the loader takes the best that the machine has.
#if defined(__x86_64__)
#define DDP_VECTOR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DDP_VECTOR_CLONES
#endif

namespace ddp::benchmarks {

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBlock = 1024;  // elements whose sums stay in the first cache

DDP_VECTOR_CLONES void sum_two(float* a, float* b, std::size_t count) {
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

DDP_VECTOR_CLONES void sum_many(float* const* data, std::size_t buffers, std::size_t first, std::size_t last) {
  alignas(64) float sums[kBlock];
  for (std::size_t begin = first; begin < last; begin += kBlock) {
    const std::size_t count = std::min(kBlock, last - begin);
    const float* const a = data[0] + begin;
    const float* const b = data[1] + begin;
    for (std::size_t i = 0; i < count; ++i) sums[i] = a[i] + b[i];
    for (std::size_t k = 2; k < buffers; ++k) {
      const float* const more = data[k] + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] += more[i];
    }
    for (std::size_t k = 0; k < buffers; ++k) std::memcpy(data[k] + begin, sums, count * sizeof(float));
  }
}

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void sum_to_all(const std::vector<float*>& data, std::size_t first, std::size_t last) {
  if (data.size() == 2) return sum_two(data[0] + first, data[1] + first, last - first);
  if (data.size() > 2) sum_many(data.data(), data.size(), first, last);
}

ZeroCopySide::ZeroCopySide(RankLink& link, const Place& place)
    : link_(link), place_(place), barrier_(link.header().floor, place.process, place.processes) {}

void ZeroCopySide::prepare(const Request& request) {
  if (same_buffers(request, prepared_)) return;
  release();
  const std::map<std::string, Kind> kinds = {{"all_reduce", Kind::all_reduce},
                                             {"broadcast", Kind::broadcast},
                                             {"all_gather", Kind::all_gather},
                                             {"reduce_scatter", Kind::reduce_scatter},
                                             {"barrier", Kind::barrier}};
  kind_ = kinds.at(request.what);
  const auto buffers = static_cast<std::size_t>(place_.buffers);
  count_ = request.bytes / sizeof(float);
  part_ = count_ / buffers;
  const std::size_t stride = whole_pages(count_ * sizeof(float)) + whole_pages(part_ * sizeof(float));
  mapped_bytes_ = buffers * stride;
  if (mapped_bytes_ > 0) {
    // All extend the file to the same size.
    if (::ftruncate(link_.shared_file(), static_cast<off_t>(kSharedHeaderBytes + mapped_bytes_)) != 0) {
      throw std::system_error(errno, std::generic_category(), "shared memory");
    }
    mapping_ =
        ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, link_.shared_file(), kSharedHeaderBytes);
    if (mapping_ == MAP_FAILED) {
      mapping_ = nullptr;
      throw std::system_error(errno, std::generic_category(), "mmap of the buffers");
    }
    for (std::size_t b = 0; b < buffers; ++b) {
      char* const begin = static_cast<char*>(mapping_) + b * stride;
      data_.push_back(reinterpret_cast<float*>(begin));
      output_.push_back(reinterpret_cast<float*>(begin + whole_pages(count_ * sizeof(float))));
    }
  }
  prepared_ = request;
}

void ZeroCopySide::rewrite() {
  for (std::size_t b = 0; b < data_.size(); ++b) {
    const int rank = static_cast<int>(b);
    if (rank % place_.processes == place_.process) write_values(data_[b], count_, rank);
  }
}

void ZeroCopySide::call() {
  const auto process = static_cast<std::size_t>(place_.process);
  switch (kind_) {
    case Kind::all_reduce: {
      const std::size_t line = 16;  // elements, so that no two processes write one cache line
      const std::size_t lines = (count_ + line - 1) / line;
      const auto processes = static_cast<std::size_t>(place_.processes);
      const auto edge = [&](std::size_t p) { return std::min(count_, lines * p / processes * line); };
      sum_to_all(data_, edge(process), edge(process + 1));
      break;
    }
    case Kind::broadcast:
      if (process != 0) std::memcpy(data_[process], data_[0], count_ * sizeof(float));
      break;
    case Kind::all_gather:
      for (std::size_t peer = 0; peer < data_.size(); ++peer) {
        if (peer != process)
          std::memcpy(data_[process] + peer * part_, data_[peer] + peer * part_, part_ * sizeof(float));
      }
      break;
    case Kind::reduce_scatter:
      std::memcpy(output_[process], data_[(process + 1) % data_.size()] + process * part_, part_ * sizeof(float));
      break;
    case Kind::barrier: break;
  }
  barrier_.wait();
}

bool ZeroCopySide::is_right() {
  if (kind_ != Kind::all_reduce) return true;
  bool all = true;
  for (const float* buffer : data_) all &= are_sums(buffer, count_, place_.buffers);
  return all;
}

void ZeroCopySide::release() {
  if (mapping_ != nullptr) {
    ::munmap(mapping_, mapped_bytes_);
    ::fallocate(link_.shared_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kSharedHeaderBytes,
                static_cast<off_t>(mapped_bytes_));
  }
  mapping_ = nullptr;
  data_.clear(), output_.clear();
  prepared_ = Request{};
}

int be_zero_copy_rank(char** arguments) {
  const ZeroCopySide::Place place{std::atoi(arguments[1]), std::atoi(arguments[2]), std::atoi(arguments[3])};
  RankLink link(arguments[0], place.process);
  ZeroCopySide side(link, place);
  serve(side, link, place.process, place.processes);
  return 0;
}

}  // namespace ddp::benchmarks
