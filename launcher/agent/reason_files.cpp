#include "launcher/agent/reason_files.hpp"

#include <chrono>
#include <memory>
#include <utility>

#include "launcher/output/line_tail.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kEndLimit{2};  // at the end of ddprun: a caller waits for its file

Reasons reasons_in(const ReasonFiles::Paths& paths) {
  Reasons out;
  for (const auto& path : paths.error_files) out.messages.push_back(read_error_file(path));
  if (!paths.stderr_file.empty()) out.stderr_tail = tail_of_file(paths.stderr_file);
  return out;
}

}  // namespace

ReasonFiles::ReasonFiles(boost::asio::io_context& io) : thread_(io, kEndLimit) {}

void ReasonFiles::read(Paths paths, std::function<void(const Reasons& reasons)> done) {
  auto reasons = std::make_shared<Reasons>();
  thread_.post([reasons, paths = std::move(paths)] { *reasons = reasons_in(paths); },
               [reasons, done = std::move(done)] { done(*reasons); });
}

void ReasonFiles::pass_on(RootCause cause, std::string path) {
  thread_.post([cause = std::move(cause), path = std::move(path)] { pass_error_on(cause, path); }, [] {});
}

}  // namespace ddp::launcher
