// Knows whether this process made it, or is a child forked since.
//
// A page that the kernel wipes in a forked child (MADV_WIPEONFORK): no handler, no system call to ask, and no fork is
// missed, however it was done. Sandboxes and kernels before 4.14 refuse that. There a handler counts the forks
// (pthread_atfork), which misses those of a bare clone().
//
// Threads: any.
#pragma once

namespace ddp::base {

class ForkGuard {
 public:
  ForkGuard();  // throws Error where the page can't be had
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  bool in_forked_child() const { return *mark_ != made_; }

  // Throws InvalidArgument in a forked child.
  void require_own_process() const;

 private:
  volatile unsigned* mark_;  // volatile: the kernel changes it behind the compiler's back
  unsigned made_;            // what *mark_ was then
};

}  // namespace ddp::base
