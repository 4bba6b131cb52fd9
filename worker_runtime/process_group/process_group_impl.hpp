// What a ProcessGroup is made of: who this process is, and the backend that does the work.
#pragma once

#include <chrono>
#include <memory>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp {

class ProcessGroup::Impl {
 public:
  Impl(process_group::Membership membership, std::chrono::milliseconds timeout,
       std::unique_ptr<process_group::Backend> backend)
      : membership_(membership), timeout_(timeout), backend_(std::move(backend)) {}

  const process_group::Membership& membership() const { return membership_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  process_group::Backend& backend() const { return *backend_; }

 private:
  process_group::Membership membership_;
  std::chrono::milliseconds timeout_;  // of a collective that names none
  std::unique_ptr<process_group::Backend> backend_;
};

}  // namespace ddp
