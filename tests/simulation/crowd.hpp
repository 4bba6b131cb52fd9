// Other jobs, which take places in the daemon's table of jobs for a while. Each has one node, which waits in vain for a
// second one. The node comes again if its connection ends.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/membership/messages.hpp"
#include "tests/simulation/clock.hpp"

namespace ddp::simulation {

class Channel;
class World;

class Crowd {
 public:
  explicit Crowd(World& world);

  // So many jobs come, and stay until then.
  void come(int jobs, TimePoint until);
  void go();

  // The address that the job's node comes from: each has its own.
  static std::string address_of(const std::string& run_id);
  static bool is_of_it(const std::string& run_id) { return run_id.rfind(kRunIdBegin, 0) == 0; }

 private:
  static constexpr const char* kRunIdBegin = "other-";

  void connect(int job, int visit);
  static rendezvous::Hello hello_of(int job);

  World& world_;
  Process process_;
  TimePoint until_{};
  int visit_ = 0;
  std::vector<Channel*> here_;
};

}  // namespace ddp::simulation
