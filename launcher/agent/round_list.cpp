#include "launcher/agent/round_list.hpp"

#include <chrono>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "base/with_limit.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kLimit{1};  // to write what is left, and to read it

}  // namespace

void RoundList::add(std::uint32_t round, std::string line) {
  if ((last_ && round <= *last_) || count_ == kRoundsMax) return;
  last_ = round;
  ++count_;
  try {
    if (!thread_) thread_.emplace(io_, base::FileThread::Options{.end_limit = kLimit});
  } catch (const std::system_error&) {  // no thread is to be had
    return;
  }
  auto work = [path = path_, line = std::move(line)] { std::ofstream(path, std::ios::app) << line << '\n'; };
  static_cast<void>(thread_->post(std::move(work), [] {}));
}

std::string RoundList::take() {
  if (!thread_) return {};
  thread_.reset();  // when it has ended
  const auto text = base::run_with_limit(kLimit, [path = path_] {
    std::ostringstream out;
    out << std::ifstream(path).rdbuf();
    return out.str();
  });
  return text.value_or("");
}

}  // namespace ddp::launcher
