// The sides that collectives_benchmark knows: how each is started, and whether it can be.
#pragma once

#include <optional>
#include <string>

#include "benchmarks/common/sides/side_processes.hpp"

namespace ddp::benchmarks {

class Catalogue {
 public:
  // The command of a side with as many ranks; nothing where it is not installed or built, with the reason in `why`.
  // "zero-copy" may have fewer processes than ranks: as many as cores.
  std::optional<SideCommand> command(const std::string& side, int ranks, std::string& why);

 private:
  std::optional<SideCommand> mpi(const std::string& side, int ranks, std::string& why) const;
  std::optional<SideCommand> gloo(const std::string& algorithm, int ranks, std::string& why);
  std::optional<SideCommand> torch(int ranks, std::string& why);

  MeetingFolder folder_;
};

}  // namespace ddp::benchmarks
