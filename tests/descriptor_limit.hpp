// Lets this process open only a few more files.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <stdexcept>

namespace ddp::testing {

class DescriptorLimit {
 public:
  // `more`: of the lowest numbers that are free; those between them that are taken count too.
  explicit DescriptorLimit(unsigned more) {
    const int next = ::dup(0);
    ::close(next);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit low{static_cast<rlim_t>(next) + more, before_.rlim_max};
    if (next < 0 || ::setrlimit(RLIMIT_NOFILE, &low) != 0) throw std::runtime_error("the limit can't be set");
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace ddp::testing
