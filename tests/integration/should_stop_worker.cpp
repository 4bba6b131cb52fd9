// A worker that trains with libddp until it is told to stop, and prints the step at which it was.
#include <ddp/ddp.hpp>

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

// In one write, so that lines of several workers do not mix.
void print(const std::string& line) {
  static_cast<void>(!::write(STDOUT_FILENO, (line + " ;\n").data(), line.size() + 3));
}

}  // namespace

int main() {
  auto world = ddp::init_process_group();
  std::vector<std::int64_t> sums(1000, 1);
  std::int64_t step = 0;
  for (; !world.should_stop(); ++step) {
    world.all_reduce(sums);
    if (step == 0) print("up round=" + std::to_string(world.round().number));
  }
  world.barrier();  // as a checkpoint of all ranks would
  print("stops at " + std::to_string(step));
}
