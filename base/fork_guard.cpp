#include "base/fork_guard.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>

#include "ddp/error.hpp"

namespace ddp::base {

namespace {

volatile unsigned forks = 0;  // between this process and the first one

void count_forks() {
  static const int error = ::pthread_atfork(nullptr, nullptr, [] { forks = forks + 1; });
  if (error != 0) throw Error(std::string("forks of this process can't be noticed: ") + std::strerror(error));
}

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

ForkGuard::ForkGuard() {
  void* const page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw Error(std::string("no page of memory for the process group: ") + std::strerror(errno));
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) == 0) {
    mark_ = static_cast<volatile unsigned*>(page);
    *mark_ = 1;
  } else {
    ::munmap(page, page_bytes());
    count_forks();
    mark_ = &forks;
  }
  made_ = *mark_;
}

ForkGuard::~ForkGuard() {
  if (mark_ != &forks) ::munmap(const_cast<unsigned*>(mark_), page_bytes());
}

void ForkGuard::require_own_process() const {
  if (!in_forked_child()) return;
  throw InvalidArgument("a forked child (pid " + std::to_string(::getpid()) +
                        ") called a process group of its parent, in which it has no part\ntry:   call the group in the "
                        "process that made it; a child that exec's may be launched as a rank of its own");
}

}  // namespace ddp::base
