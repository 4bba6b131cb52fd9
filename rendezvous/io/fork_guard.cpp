#include "rendezvous/io/fork_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "ddp/error.hpp"

namespace ddp::io {

namespace {

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

ForkGuard::ForkGuard() {
  void* const page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw Error(std::string("no page of memory for the process group: ") + std::strerror(errno));
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    const int reason = errno;
    ::munmap(page, page_bytes());
    throw Error(std::string("the kernel refuses MADV_WIPEONFORK (it needs Linux 4.14): ") + std::strerror(reason));
  }
  mark_ = static_cast<volatile int*>(page);
  *mark_ = 1;
}

ForkGuard::~ForkGuard() { ::munmap(const_cast<int*>(mark_), page_bytes()); }

void ForkGuard::require_own_process() const {
  if (!in_forked_child()) return;
  throw InvalidArgument("a forked child (pid " + std::to_string(::getpid()) +
                        ") called a process group of its parent, in which it has no part\ntry:   call the group in the "
                        "process that made it; a child that exec's may be launched as a rank of its own");
}

}  // namespace ddp::io
