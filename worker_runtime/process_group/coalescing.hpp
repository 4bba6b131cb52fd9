// The _async calls that a program makes within ProcessGroup::coalesce(), until they are begun as one.
//
// Threads: that of the coalesce().
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "worker_runtime/process_group/backend.hpp"

namespace ddp::process_group {

class Coalescing {
 public:
  static constexpr std::size_t kCallsMax = 65'536;

  explicit Coalescing(CollectiveOptions options);

  // What one of the calls is given instead of its own options.
  CollectiveOptions options_for(const CollectiveOptions& of_call) const;

  // Takes in a call that is checked. Throws Error beyond kCallsMax.
  Work add(const Collective& call);

  // Begins them all; what add() has returned waits for them from here on. Empty where there are none.
  Work begin(Backend& backend);

 private:
  class Joint;

  CollectiveOptions options_;
  std::vector<Collective> calls_;
  std::shared_ptr<Joint> joint_;
};

}  // namespace ddp::process_group
