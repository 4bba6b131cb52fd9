// A worker for tests: where all ranks have met, rank 0 writes one checkpoint after the other into the given folder, and
// says from which round it took the newest that it found, when it has written two, and when one is refused because a
// newer round has written. Every rank then lives until it is ended.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "ddp/ddp.hpp"

namespace {

std::string round_in(const ddp::Metadata& metadata) {
  const auto found = metadata.find("round");
  return found != metadata.end() ? found->second : "no round";
}

void write_checkpoints(const ddp::ProcessGroup& world, const std::string& folder) {
  ddp::CheckpointDirectory directory(folder);
  const auto newest = directory.newest();
  const auto round = std::to_string(world.round().number);
  std::cout << "round " << round << " of " << world.size() << " found that of "
            << (newest ? "round " + round_in(newest->metadata()) : "nobody") << std::endl;
  // Steps of this process are above those of any round after it, so by their number alone they would be the newest.
  const std::uint64_t first = 1'000'000 - 1'000 * std::uint64_t{world.round().number};
  const std::vector<float> values{1, 2};
  for (std::uint64_t count = 1;; ++count) {
    try {
      directory.save(world.round(), first + count, {{"values", {2}, values}}, {{"round", round}});
    } catch (const ddp::CheckpointError& error) {
      std::cout << "round " << round << " was refused: " << error.what() << std::endl;
      return;
    }
    if (count == 2) std::cout << "round " << round << " of " << world.size() << " wrote two" << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the time of a step
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const auto world = ddp::init_process_group();
    if (world.rank() == 0) write_checkpoints(world, argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  while (true) ::pause();
}
