// A rank of a group in which the last rank is late: it comes to the third call only when the others have given up on it
// and have written their flight recorders' files to the folder that is named (or DDPRUN_ROUND_DIRECTORY). Every rank
// prints what it caught.
//
//   late_worker [<folder>]
#include <ddp/ddp.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

namespace {

// Nothing tells of a file that comes; there is no hurry.
void wait_for_file(const std::string& path) {
  while (!std::filesystem::exists(path)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace

int main(int argument_count, char** arguments) {
  const std::string folder = argument_count > 1 ? arguments[1] : std::getenv("DDPRUN_ROUND_DIRECTORY");
  auto group = ddp::init_process_group();
  const int last = group.size() - 1;
  try {
    std::vector<float> values(10);
    group.all_reduce(values);
    group.broadcast(values, 0);
    if (group.rank() == last) {
      for (int rank = 0; rank < last; ++rank) wait_for_file(folder + "/flight_recorder_" + std::to_string(rank));
    }
    group.all_reduce(values, ddp::ReduceOp::sum, {std::chrono::milliseconds(2'000)});
  } catch (const ddp::Error& error) {
    std::printf("rank %d caught: %s\n", group.rank(), error.what());
    return 0;
  }
  return 1;
}
