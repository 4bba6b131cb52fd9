// No thread of this process can be had while one of these exists: no address space has room for such a stack.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <stdexcept>

namespace ddp::testing {

class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t huge;
    const bool done = ::pthread_getattr_default_np(&before_) == 0 && ::pthread_attr_init(&huge) == 0 &&
                      ::pthread_attr_setstacksize(&huge, std::size_t{1} << 50) == 0 &&
                      ::pthread_setattr_default_np(&huge) == 0;
    if (!done) throw std::runtime_error("the size of stacks can't be set");
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace ddp::testing
