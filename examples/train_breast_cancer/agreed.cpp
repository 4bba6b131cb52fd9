#include "agreed.hpp"

#include "input_error.hpp"

#include <cstdint>
#include <cstdio>
#include <vector>

namespace train {
namespace {

// The rank that failed never comes to this barrier, which therefore fails when that rank leaves.
void wait_for_the_end_of_another(ddp::ProcessGroup& world) {
  try {
    world.barrier();
  } catch (const ddp::Error&) {
  }
}

}  // namespace

void run_agreed(ddp::ProcessGroup& world, const std::function<void()>& work) {
  std::vector<std::int64_t> code(1);
  std::exception_ptr failure;
  try {
    work();
  } catch (const InputError&) {
    code[0] = kExitWrongInput;
    failure = std::current_exception();
  } catch (const std::exception&) {
    code[0] = kExitFailure;
    failure = std::current_exception();
  }
  std::vector<std::int64_t> codes(static_cast<std::size_t>(world.size()));
  world.all_gather(code, codes);
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    if (static_cast<int>(rank) == world.rank()) std::rethrow_exception(failure);
    wait_for_the_end_of_another(world);
    throw ToldElsewhere(static_cast<int>(codes[rank]));
  }
}

int report_failure() {
  try {
    throw;
  } catch (const ToldElsewhere& error) {
    return error.exit_code();
  } catch (const InputError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kExitWrongInput;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kExitFailure;
  }
}

}  // namespace train
