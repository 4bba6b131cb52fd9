// How the algorithms inside a host keep step with the other ranks, within one call.
#pragma once

namespace ddp::cpu_backend {

class Steps {
 public:
  // Returns once all ranks of the host have called it as often as this rank; throws where one never will.
  virtual void meet() = 0;

  // After the first meet(): throws where the present calls of all ranks differ.
  virtual void require_same_calls() = 0;

  // Throws: the memory of rank `index` of the host can be read no more.
  virtual void lose(int index) = 0;

 protected:
  ~Steps() = default;
};

}  // namespace ddp::cpu_backend
