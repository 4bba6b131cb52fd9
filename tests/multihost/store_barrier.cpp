// A worker for tests: meets all others of its round at the job's store, says so, and ends, or, with the argument
// `stay`, lives until it is ended.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "rendezvous/store/client.hpp"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

int main(int argc, char** argv) {
  // Whoever started this worker ends it if the others do not come.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::hours(1);
  try {
    auto store = ddp::store::Client::connect(
        {variable("MASTER_ADDR"), static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))), deadline});
    if (store.add("count", 1, deadline) == std::stoll(variable("WORLD_SIZE"))) store.set("all", "here", deadline);
    store.wait({"all"}, deadline);
    std::cout << "rank " << variable("RANK") << " of " << variable("WORLD_SIZE") << " met all at "
              << variable("MASTER_ADDR") << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  while (argc > 1 && std::string(argv[1]) == "stay") ::pause();
  return 0;
}
